#include <trireme/data/mixture_order.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme::data {

MixtureOrder::MixtureOrder(std::vector<double> weights) : shares_(std::move(weights)) {
  double sum = 0;
  for (const double weight : shares_) {
    if (!(weight > 0) || !std::isfinite(weight)) {
      throw InputError("data", concat("the weight of a set of a mixture must be above 0, got ", weight));
    }
    sum += weight;
  }
  if (shares_.empty() || !std::isfinite(sum)) {
    throw InputError("data", shares_.empty() ? "a mixture has no sets" : "the weights of a mixture are too large");
  }
  for (double& share : shares_) {
    share /= sum;
  }
  starts_.emplace_back(shares_.size(), 0);
}

// This file is compiled without fused multiply-add, which would round otherwise: all hosts must choose the same.
size_t MixtureOrder::step(int64_t sample, std::vector<int64_t>& counts) const {
  const auto number = static_cast<double>(std::max<int64_t>(sample, 1));
  size_t chosen = 0;
  double most = shares_[0] * number - static_cast<double>(counts[0]);
  for (size_t set = 1; set < shares_.size(); ++set) {
    if (const double lacks = shares_[set] * number - static_cast<double>(counts[set]); lacks > most) {
      most = lacks;
      chosen = set;
    }
  }
  ++counts[chosen];
  return chosen;
}

const std::vector<int64_t>& MixtureOrder::start_of(int64_t block) const {
  while (std::ssize(starts_) <= block) {
    std::vector<int64_t> counts = starts_.back();
    const int64_t begin = (std::ssize(starts_) - 1) * kBlock;
    for (int64_t sample = begin; sample < begin + kBlock; ++sample) {
      step(sample, counts);
    }
    starts_.push_back(std::move(counts));
  }
  return starts_[static_cast<size_t>(block)];
}

MixtureOrder::Place MixtureOrder::at(int64_t sample) const {
  const std::lock_guard lock(mutex_);
  if (const int64_t block = sample / kBlock; block != current_) {
    std::vector<int64_t> counts = start_of(block);
    block_.clear();
    for (int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
      const size_t set = step(i, counts);
      block_.push_back({set, counts[set] - 1});
    }
    current_ = block;
  }
  return block_[static_cast<size_t>(sample % kBlock)];
}

std::vector<int64_t> MixtureOrder::counts(int64_t samples) const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> counts = start_of(samples / kBlock);
  for (int64_t sample = samples / kBlock * kBlock; sample < samples; ++sample) {
    step(sample, counts);
  }
  return counts;
}

} // namespace trireme::data
