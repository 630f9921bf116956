#include "ops/op.h"

const OpDef ops_fft[] = {{0}};
