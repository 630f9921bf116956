#include "ops/op.h"

const OpDef ops_assert[] = {{0}};
