#include "ops/op.h"

const OpDef ops_norm[] = {{0}};
