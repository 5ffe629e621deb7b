#include "custom_ops/kernels/bilinear_program.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "custom_ops/bilinear/pass.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_convpar {

absl::Status OwnedProgram::Read(tensorflow::OpKernelConstruction* ctx,
                                const std::string& prefix) {
  TF_RETURN_IF_ERROR(
      ctx->GetAttr(absl::StrCat(prefix, "structure"), &numbers_));
  TF_RETURN_IF_ERROR(ctx->GetAttr(absl::StrCat(prefix, "values"), &values_));
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("Expected `", prefix, "structure` to describe stages ",
                     "that follow one another. Received: ", what));
  };
  size_t at = 0, value = 0;
  program_ = {};
  while (at < numbers_.size()) {
    if (numbers_.size() - at < 5) return bad("a stage that is cut off.");
    bilinear::Stage stage = {};
    stage.rows = numbers_[at];
    stage.cols = numbers_[at + 1];
    stage.outer = numbers_[at + 2];
    stage.inner = numbers_[at + 3];
    at += 4;
    constexpr int kMost = 1 << 12;
    for (const int size : {stage.rows, stage.cols, stage.outer, stage.inner}) {
      if (size < 1 || size > kMost) return bad(absl::StrCat("size ", size));
    }
    const size_t begins = static_cast<size_t>(stage.rows) + 1;
    if (numbers_.size() - at < begins) return bad("rows that are cut off.");
    stage.begin = &numbers_[at];
    if (stage.begin[0] != 0) return bad("a first row not at 0.");
    for (int r = 0; r < stage.rows; ++r) {
      if (stage.begin[r + 1] < stage.begin[r]) return bad("rows out of order.");
    }
    at += begins;
    const size_t count = static_cast<size_t>(stage.begin[stage.rows]);
    if (numbers_.size() - at < count || values_.size() - value < count) {
      return bad("values that are cut off.");
    }
    stage.index = numbers_.data() + at;
    stage.value = values_.data() + value;
    for (size_t n = 0; n < count; ++n) {
      if (stage.index[n] < 0 || stage.index[n] >= stage.cols) {
        return bad(absl::StrCat("index ", stage.index[n], " of ", stage.cols));
      }
    }
    at += count;
    value += count;
    const int64_t columns = int64_t{stage.outer} * stage.inner;
    const int64_t from = columns * stage.cols, to = columns * stage.rows;
    if (from > kMost || to > kMost) return bad("a stage that is too large.");
    if (stages_.empty()) program_.inputs = static_cast<int>(from);
    if (!stages_.empty() && program_.outputs != from) {
      return bad(absl::StrCat("a stage of ", from, " values after one of ",
                              program_.outputs));
    }
    program_.outputs = static_cast<int>(to);
    program_.largest = std::max(
        {program_.largest, static_cast<int>(from), static_cast<int>(to)});
    stages_.push_back(stage);
  }
  if (stages_.empty()) return bad("nothing.");
  program_.num_stages = static_cast<int>(stages_.size());
  program_.stages = stages_.data();
  return absl::OkStatus();
}

}  // namespace tf_convpar
