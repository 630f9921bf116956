#include "ops/op.h"

const OpDef ops_binary[] = {{0}};
