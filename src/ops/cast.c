#include "ops/op.h"

const OpDef ops_cast[] = {{0}};
