#include "ops/op.h"

const OpDef ops_scatter[] = {{0}};
