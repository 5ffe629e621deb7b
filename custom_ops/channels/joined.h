// Feature maps that are joined along their channels, scaled and activated, as
// rows of floats for something that reads them once.

#ifndef TF_CONVPAR_CUSTOM_OPS_CHANNELS_JOINED_H_
#define TF_CONVPAR_CUSTOM_OPS_CHANNELS_JOINED_H_

#include <cstdint>
#include <vector>

#include "custom_ops/channels/activation.h"

namespace tf_convpar {
namespace channels {

class Joined {
 public:
  // Maps with channels of their own.
  struct Part {
    const float* maps;
    int64_t channels;
  };

  // What is done to them, with nulls for nothing.
  struct Change {
    const float* scale;
    // Whether each image has a factor for each channel, or all have the same.
    bool of_each;
    const float* offset;  // of each channel
    Activation activation;
    // What is added to the variance of the channels of a pixel, to normalize
    // them before; less than 0 for no such normalization.
    float epsilon = -1;
  };

  // So many images of so many pixels.
  Joined(std::vector<Part> parts, const Change& change, int64_t images,
         int64_t pixels);

  int64_t channels() const { return channels_; }

  // Whether they are one part that nothing is done to.
  bool Untouched() const;

  // The maps, if they are; else null.
  const float* AsTheyAre() const;

  // Rows from `begin` to `end`, which are pixels of all images.
  void Rows(int64_t begin, int64_t end, float* to) const;

 private:
  void Join(int64_t begin, int64_t end, float* to) const;
  // Of parts whose maps begin with row `start`.
  void Scale(const std::vector<Part>& parts, int64_t start, int64_t begin,
             int64_t end, float* to) const;

  const std::vector<Part> parts_;
  const Change change_;
  const int64_t pixels_;  // that are scaled alike
  const bool changes_;    // whether more is done than to join and normalize
  int64_t channels_ = 0;
  std::vector<float> ones_, zeros_;  // in the place of what is not there
};

}  // namespace channels
}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_CHANNELS_JOINED_H_
