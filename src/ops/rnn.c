#include "ops/op.h"

const OpDef ops_rnn[] = {{0}};
