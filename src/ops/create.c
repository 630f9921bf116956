#include "ops/op.h"

const OpDef ops_create[] = {{0}};
