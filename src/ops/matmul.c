#include "ops/op.h"

const OpDef ops_matmul[] = {{0}};
