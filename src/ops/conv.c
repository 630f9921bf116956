#include "ops/op.h"

const OpDef ops_conv[] = {{0}};
