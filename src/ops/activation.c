#include "ops/op.h"

const OpDef ops_activation[] = {{0}};
