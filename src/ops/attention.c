#include "ops/op.h"

const OpDef ops_attention[] = {{0}};
