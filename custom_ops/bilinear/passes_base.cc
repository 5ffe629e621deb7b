// The passes for any processor.

#define TF_CONVPAR_ISA base
#include "custom_ops/bilinear/passes_impl.h"
