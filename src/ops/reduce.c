#include "ops/op.h"

const OpDef ops_reduce[] = {{0}};
