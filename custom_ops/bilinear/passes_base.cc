// The passes for any processor.

#include <cstdint>

#include "custom_ops/bilinear/passes.h"

#define ISA base
#define NAME "base"
#define LANES 4
#define ROWS 6
#include "custom_ops/bilinear/passes_impl.h"
