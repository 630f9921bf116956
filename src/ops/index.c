#include "ops/op.h"

const OpDef ops_index[] = {{0}};
