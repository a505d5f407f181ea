#pragma once

#include <trireme/data/dataset.h>
#include <trireme/models/bert_layers.h>

#include <torch/utils.h>

namespace trireme::test {

inline constexpr int64_t kMaskToken = 30; // of a vocabulary of 31

/// 64 sequences of different lengths that count upwards, for a BERT; in each half of a sequence one token is to be
/// guessed.
class Gaps : public data::Dataset {
 public:
  explicit Gaps(int64_t length) : length_(length) {}
  int64_t size() const override { return 64; }
  data::Batch get(std::span<const int64_t> indices) const override {
    std::vector<at::Tensor> tokens, masks, targets;
    for (const int64_t i : indices) {
      const at::Tensor sample = (torch::arange(length_) * (1 + i % 3) + i * 7) % kMaskToken;
      const at::Tensor there = torch::arange(length_) < length_ - i % 5;
      at::Tensor asked = torch::zeros({length_}, torch::kBool);
      asked[1 + i % 2] = true;
      asked[length_ / 2] = true;
      tokens.push_back(sample.masked_fill(asked, kMaskToken).masked_fill(~there, 0));
      masks.push_back(there);
      targets.push_back(sample.masked_fill(~asked, models::kIgnoredTarget));
    }
    return {{torch::stack(tokens), torch::stack(masks)}, {torch::stack(targets)}, static_cast<int64_t>(indices.size())};
  }
  std::string describe() const override { return "gaps"; }

 private:
  int64_t length_;
};

} // namespace trireme::test
