#include "ops/op.h"

const OpDef ops_unary[] = {{0}};
