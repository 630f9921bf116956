#include "ops/op.h"

const OpDef ops_pool[] = {{0}};
