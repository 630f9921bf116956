/* gradients.h -- cases of gradients of DTensors. */
#ifndef TESTS_DTENSOR_GRADIENTS_H
#define TESTS_DTENSOR_GRADIENTS_H

#include "ranks.h"

RankCheck check_grad_redistribute, check_grad_from_local, check_grad_to_local, check_grad_full;

#endif
