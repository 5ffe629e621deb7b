#include "custom_ops/channels/joined.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "custom_ops/channels/activation.h"
#include "custom_ops/channels/rows.h"
#include "custom_ops/simd/kernels.h"

namespace tf_convpar {
namespace channels {

Joined::Joined(std::vector<Part> parts, const Change& change, int64_t images,
               int64_t pixels)
    : parts_(std::move(parts)),
      change_(change),
      pixels_(std::max<int64_t>(1, change.of_each ? pixels : images * pixels)),
      changes_(change.scale != nullptr || change.offset != nullptr ||
               change.activation != Activation::kLinear) {
  for (const Part& part : parts_) channels_ += part.channels;
  if (change.scale == nullptr) ones_.assign(channels_, 1.0f);
  if (change.offset == nullptr) zeros_.assign(channels_, 0.0f);
}

bool Joined::Untouched() const {
  return parts_.size() == 1 && !changes_ && change_.epsilon < 0;
}

const float* Joined::AsTheyAre() const {
  return Untouched() ? parts_[0].maps : nullptr;
}

void Joined::Rows(int64_t begin, int64_t end, float* to) const {
  if (change_.epsilon >= 0) {
    const float* from = to;
    if (parts_.size() == 1) {
      from = parts_[0].maps + begin * channels_;
    } else {
      Join(begin, end, to);
    }
    simd::Best().channels.normalize(from, end - begin, channels_,
                                    change_.epsilon, to);
    if (changes_) Scale({{to, channels_}}, begin, begin, end, to);
  } else if (changes_) {
    Scale(parts_, 0, begin, end, to);
  } else {
    Join(begin, end, to);
  }
}

void Joined::Scale(const std::vector<Part>& parts, int64_t start, int64_t begin,
                   int64_t end, float* to) const {
  while (begin < end) {
    const int64_t number = begin / pixels_;
    const int64_t rows = std::min(end, (number + 1) * pixels_) - begin;
    const float* scale = change_.scale == nullptr
                             ? ones_.data()
                             : change_.scale + number * channels_;
    const float* offset =
        change_.offset == nullptr ? zeros_.data() : change_.offset;
    int64_t first = 0;
    for (const Part& part : parts) {
      ScaleInto(change_.activation, part.maps + (begin - start) * part.channels,
                scale + first, offset + first, rows, part.channels, channels_,
                to + first);
      first += part.channels;
    }
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
