#include "ops/op.h"

const OpDef ops_loss[] = {{0}};
