#include "ops/op.h"

const OpDef ops_distance[] = {{0}};
