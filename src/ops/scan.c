#include "ops/op.h"

const OpDef ops_scan[] = {{0}};
