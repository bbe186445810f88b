/* The list with our declarations. */
#include <stddef.h>

#include "frontends/nccl/types.h"
#include "nccl/values.h"

const struct nccl_value nccl_our_values[] = {NCCL_VALUES(VALUE)};
const int nccl_our_value_count = sizeof nccl_our_values / sizeof nccl_our_values[0];
