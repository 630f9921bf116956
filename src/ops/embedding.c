#include "ops/op.h"

const OpDef ops_embedding[] = {{0}};
