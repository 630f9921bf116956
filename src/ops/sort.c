#include "ops/op.h"

const OpDef ops_sort[] = {{0}};
