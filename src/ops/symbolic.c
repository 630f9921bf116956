#include "ops/op.h"

const OpDef ops_symbolic[] = {{0}};
