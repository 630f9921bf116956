#include "ops/op.h"

const OpDef ops_view[] = {{0}};
