// The kernels of kernels.h for one instruction set; see vectors_impl.h.

#ifndef TF_CONVPAR_CUSTOM_OPS_SIMD_KERNELS_IMPL_H_
#define TF_CONVPAR_CUSTOM_OPS_SIMD_KERNELS_IMPL_H_

#include "custom_ops/bilinear/forward_impl.h"
#include "custom_ops/bilinear/gradient_impl.h"
#include "custom_ops/bilinear/kernels_impl.h"
#include "custom_ops/bilinear/parts_impl.h"
#include "custom_ops/bilinear/product_impl.h"
#include "custom_ops/blocks/blocks_impl.h"
#include "custom_ops/channels/rows_impl.h"
#include "custom_ops/channels/streamed_impl.h"
#include "custom_ops/depthwise/forward_impl.h"
#include "custom_ops/depthwise/kernel_gradient_impl.h"
#include "custom_ops/pooling/max_gradient_impl.h"
#include "custom_ops/pooling/pool_impl.h"
#include "custom_ops/simd/conversions_impl.h"
#include "custom_ops/simd/kernels.h"
#include "custom_ops/simd/vectors_impl.h"

namespace tf_convpar {
namespace simd {
namespace TF_CONVPAR_SET {

extern const Kernels kKernels = {
    kSet,
    {bilinear::Spectrum, bilinear::Forward, bilinear::ForwardByParts,
     bilinear::Gradient, bilinear::Pack, bilinear::Product},
    blocks::kKernels,
    {channels::AddRows, channels::AddSquares, channels::AddProducts,
     channels::ScaleOne, channels::ScaleTwo, channels::AddThrough,
     channels::GradientThrough, channels::BiasedGradient, channels::Normalize,
     channels::NormalizeBy, channels::NormalizeGradient, channels::Streamed},
    {depthwise::Forward, depthwise::KernelGradient},
    {pooling::Pool, pooling::MaxGradient},
    kConversions,
};

}  // namespace TF_CONVPAR_SET
}  // namespace simd
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_SIMD_KERNELS_IMPL_H_
