// Sizes of what is made of an image by a window that moves over it.

#ifndef TF_CONVPAR_CUSTOM_OPS_WINDOWS_SIZES_H_
#define TF_CONVPAR_CUSTOM_OPS_WINDOWS_SIZES_H_

#include <algorithm>
#include <cstdint>

namespace tf_convpar {
namespace windows {

// Sizes of one image, of its feature maps and of the window.
struct Sizes {
  int64_t channels;
  int64_t height, width;          // of the image
  int64_t out_height, out_width;  // of the feature maps
  int64_t window_height, window_width;
  int64_t stride;
  int64_t top, left;  // zeros before the image

  // Whether some window sees zeros.
  bool Pads() const {
    return top > 0 || left > 0 ||
           (out_height - 1) * stride + window_height > height ||
           (out_width - 1) * stride + window_width > width;
  }

  // The same of an image that has these zeros, and no pixels that none sees.
  Sizes WithZeros() const {
    Sizes found = *this;
    found.height = (out_height - 1) * stride + window_height;
    found.width = (out_width - 1) * stride + window_width;
    found.top = found.left = 0;
    return found;
  }

  // Columns of the feature maps, from `*inner` to `*outer`, for which all of
  // so many columns of the window, from the first, see pixels of the image.
  void Inside(int64_t first, int64_t columns, int64_t* inner,
              int64_t* outer) const {
    const int64_t shift = first - left;
    const int64_t room = width - columns - shift;
    *inner = std::min(out_width,
                      shift < 0 ? (stride - 1 - shift) / stride : int64_t{0});
    *outer =
        std::max(*inner, room < 0 ? 0 : std::min(out_width, room / stride + 1));
  }
};

// Feature maps along an axis, and zeros before the image, as TensorFlow pads.
// A window has a pixel at least.
inline void Along(int64_t size, int64_t window, int64_t stride, bool same,
                  int64_t* out, int64_t* before) {
  if (same) {
    *out = (size + stride - 1) / stride;
    const int64_t zeros =
        std::max<int64_t>(0, (*out - 1) * stride + window - size);
    *before = zeros / 2;
  } else {
    *out = size < window ? 0 : (size - window) / stride + 1;
    *before = 0;
  }
}

// Zeros beside those of the padding, and how the window moves.
struct Padded {
  int64_t stride;
  bool same;
  int64_t top, bottom, left, right;

  // The sizes for an image of `height` and `width`, and a window.
  Sizes Over(int64_t height, int64_t width, int64_t channels,
             int64_t window_height, int64_t window_width) const {
    Sizes of;
    of.channels = channels, of.stride = stride;
    of.height = height, of.width = width;
    of.window_height = window_height, of.window_width = window_width;
    Along(height + top + bottom, window_height, stride, same, &of.out_height,
          &of.top);
    Along(width + left + right, window_width, stride, same, &of.out_width,
          &of.left);
    of.top += top, of.left += left;
    return of;
  }
};

}  // namespace windows
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_WINDOWS_SIZES_H_
