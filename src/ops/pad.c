#include "ops/op.h"

const OpDef ops_pad[] = {{0}};
