// Vectors of floats in few bits: blocks of whole numbers, each block with a
// scale.

#ifndef TF_CONVPAR_CUSTOM_OPS_BLOCKS_KERNELS_H_
#define TF_CONVPAR_CUSTOM_OPS_BLOCKS_KERNELS_H_

#include <cstdint>

namespace tf_convpar {
namespace blocks {

// Values that have one scale.
constexpr int64_t kBlock = 256;

// Blocks of so many values; the last may have fewer.
constexpr int64_t Count(int64_t values) {
  return (values + kBlock - 1) / kBlock;
}

// Bytes of the numbers of a block.
constexpr int64_t Width(int bits) { return kBlock * bits / 8; }

// Bytes of the numbers and scales of so many values.
constexpr int64_t MessageBytes(int bits, int64_t values) {
  return Count(values) * (Width(bits) + int64_t{sizeof(float)});
}

// One instruction set's code. Numbers have 8 or 4 bits; two of 4 are a byte,
// of which the first is the lower half.
struct Kernels {
  // The `count` values of a block, at most `kBlock`, as numbers and their
  // scale; zeros follow. `less` is taken from them first, unless it is null.
  // `left` is added to them, and then what rounding has left of them is in
  // `rest`, unless both are null.
  void (*encode)(int bits, const float* values, const float* less,
                 const float* left, int64_t count, uint8_t* numbers,
                 float* scale, float* rest);
  // The first `count` values of a block, added to others unless these are
  // null. `added` and `values` may be the same.
  void (*decode)(int bits, const uint8_t* numbers, float scale, int64_t count,
                 const float* added, float* values);
};

}  // namespace blocks
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_BLOCKS_KERNELS_H_
