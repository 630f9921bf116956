#include "ops/op.h"

const OpDef ops_inplace[] = {{0}};
