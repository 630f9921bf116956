#include "ops/op.h"

const OpDef ops_where[] = {{0}};
