#include "ops/op.h"

const OpDef ops_softmax[] = {{0}};
