#include "custom_ops/channels/joined.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/rows.h"

namespace tf_convpar {
namespace channels {

Joined::Joined(std::vector<Part> parts, const Change& change, int64_t images,
               int64_t pixels)
    : parts_(std::move(parts)),
      pixels_(std::max<int64_t>(1, change.of_each ? pixels : images * pixels)),
      epsilon_(change.epsilon),
      channels_(0) {
  for (const Part& part : parts_) channels_ += part.channels;
  if (change.scale == nullptr && change.offset == nullptr &&
      change.activation == Activation::kLinear && epsilon_ < 0) {
    return;
  }
  const std::vector<float> ones(change.scale == nullptr ? channels_ : 0, 1.0f);
  const std::vector<float> zeros(change.offset == nullptr ? channels_ : 0);
  const float* scale = change.scale == nullptr ? ones.data() : change.scale;
  for (int64_t i = 0; i < (change.of_each ? images : 1); ++i) {
    scaled_.emplace_back(
        std::vector<const float*>{scale + i * channels_},
        change.offset == nullptr ? zeros.data() : change.offset, channels_,
        change.activation);
  }
}

const float* Joined::AsTheyAre() const {
  return parts_.size() == 1 && scaled_.empty() ? parts_[0].maps : nullptr;
}

void Joined::Rows(int64_t begin, int64_t end, float* to) const {
  if (parts_.size() > 1 || scaled_.empty()) Join(begin, end, to);
  if (scaled_.empty()) return;
  while (begin < end) {
    const int64_t number = begin / pixels_;
    const int64_t rows = std::min(end, (number + 1) * pixels_) - begin;
    const float* from =
        parts_.size() > 1 ? to : parts_[0].maps + begin * channels_;
    if (epsilon_ >= 0) {
      NormalizeRows(from, rows, channels_, epsilon_, to);
      from = to;
    }
    scaled_[number].Run({from}, 0, rows, to);
    begin += rows, to += rows * channels_;
  }
}

void Joined::Join(int64_t begin, int64_t end, float* to) const {
  for (const Part& part : parts_) {
    const float* from = part.maps + begin * part.channels;
    float* row = to;
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(from, part.channels, row);
      from += part.channels, row += channels_;
    }
    to += part.channels;
  }
}

}  // namespace channels
}  // namespace tf_convpar
