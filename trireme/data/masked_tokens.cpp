#include <trireme/data/masked_tokens.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>

#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace trireme::data {
namespace {

// Numbers for different purposes at one position.
constexpr uint64_t kOrder = 0, kAction = 1, kToken = 2, kStreams = 3;

// How many values draw() has, and the shares of what becomes of a target.
constexpr double kAll = 18446744073709551616.0;
constexpr double kMasked = 0.8, kRandom = 0.9;

} // namespace

MaskedTokens::MaskedTokens(std::shared_ptr<const Dataset> tokens, const MaskedTokensOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  if (!(options.fraction > 0 && options.fraction < 1)) {
    throw InputError("data", concat("mask_fraction must be above 0 and below 1, got ", options.fraction));
  }
  if (options.mask_token < 0 || options.vocabulary < 1) {
    throw InputError("data", concat("masking needs a mask token and a vocabulary, got ", options.mask_token, " and ",
                                    options.vocabulary));
  }
}

// SplitMix64 with the place as its counter.
uint64_t MaskedTokens::draw(uint64_t stream, int64_t sample, int64_t position) const {
  const uint64_t key = mix64(static_cast<uint64_t>(options_.seed) * kStreams + stream + kMixStep);
  const uint64_t row = mix64(key + (static_cast<uint64_t>(sample) + 1) * kMixStep);
  return mix64(row + (static_cast<uint64_t>(position) + 1) * kMixStep);
}

std::vector<int64_t> MaskedTokens::targets_of(int64_t sample, int64_t length) const {
  std::vector<std::pair<uint64_t, int64_t>> order(static_cast<size_t>(length));
  for (int64_t position = 0; position < length; ++position) {
    order[static_cast<size_t>(position)] = {draw(kOrder, sample, position), position};
  }
  const auto count = std::max<int64_t>(1, std::llround(options_.fraction * static_cast<double>(length)));
  std::nth_element(order.begin(), order.begin() + count - 1, order.end());
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::transform(order.begin(), order.begin() + count, positions.begin(), [](const auto& one) { return one.second; });
  return positions;
}

int64_t MaskedTokens::replacement(int64_t sample, int64_t position, int64_t token) const {
  const double action = static_cast<double>(draw(kAction, sample, position)) / kAll;
  if (action < kMasked) {
    return options_.mask_token;
  }
  if (action < kRandom) {
    return static_cast<int64_t>(draw(kToken, sample, position) % static_cast<uint64_t>(options_.vocabulary));
  }
  return token;
}

Batch MaskedTokens::get_part(std::span<const int64_t> indices, Part part) const {
  Batch batch = tokens_->get_part(indices, Part::inputs);
  const at::Tensor tokens_BL = batch.inputs.at(0).contiguous();
  const at::Tensor input_BL = tokens_BL.clone();
  const at::Tensor target_BL = at::full_like(tokens_BL, kIgnored);
  const int64_t length = tokens_BL.size(1);
  const auto* tokens = tokens_BL.const_data_ptr<int64_t>();
  auto* input = input_BL.mutable_data_ptr<int64_t>();
  auto* target = target_BL.mutable_data_ptr<int64_t>();
  for (const int64_t sample : indices) {
    for (const int64_t position : targets_of(sample, length)) {
      input[position] = replacement(sample, position, tokens[position]);
      target[position] = tokens[position];
    }
    tokens += length;
    input += length;
    target += length;
  }
  batch.inputs.clear();
  if (part != Part::targets) {
    batch.inputs = {input_BL, at::ones(input_BL.sizes(), at::kBool)};
  }
  if (part != Part::inputs) {
    batch.targets = {target_BL};
  }
  return batch;
}

std::string MaskedTokens::describe() const {
  return concat(tokens_->describe(), ", ", 100 * options_.fraction, " % masked");
}

} // namespace trireme::data
