#include "ops/op.h"

const OpDef ops_random[] = {{0}};
