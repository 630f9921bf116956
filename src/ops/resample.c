#include "ops/op.h"

const OpDef ops_resample[] = {{0}};
