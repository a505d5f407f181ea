#include <trireme/models/rotary.h>

#include <trireme/base/error.h>
#include <trireme/parallel/context/sequence.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::models {
namespace {

using Kind = RopeScaling::Kind;

// Types and order of operations are transformers', so that angles are equal bit for bit.

int64_t max_positions(const LlamaOptions& options) {
  return options.max_positions == 0 ? options.sequence_length : options.max_positions;
}

int64_t original_positions(const LlamaOptions& options) {
  return options.rope_scaling.original_positions == 0 ? max_positions(options)
                                                      : options.rope_scaling.original_positions;
}

/// base^(2i / dim).
at::Tensor periods(const at::Scalar& base, int64_t dim) {
  return at::pow(base, at::arange(0, dim, 2, at::TensorOptions(at::kFloat)) / dim);
}

at::Tensor dynamic_angles(const LlamaOptions& options, int64_t length) {
  const int64_t dim = options.width_of_head(), most = max_positions(options);
  const double factor = options.rope_scaling.factor;
  const double exponent = static_cast<double>(dim) / static_cast<double>(dim - 2);
  if (length <= most) {
    return periods(options.rope_theta * std::pow(factor - (factor - 1), exponent), dim).reciprocal();
  }
  const at::Tensor tokens = at::scalar_tensor(length, at::TensorOptions(at::kLong));
  const at::Tensor base = ((tokens * factor / most) - (factor - 1)).pow(exponent) * options.rope_theta;
  return at::pow(base, at::arange(0, dim, 2, at::TensorOptions(at::kFloat)) / dim).reciprocal();
}

at::Tensor llama3_angles(const LlamaOptions& options) {
  const RopeScaling& scaling = options.rope_scaling;
  const auto original = static_cast<double>(original_positions(options));
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const at::Tensor plain = periods(options.rope_theta, options.width_of_head()).reciprocal();
  const at::Tensor wavelength = plain.reciprocal() * (2 * std::numbers::pi);
  const at::Tensor is_long = wavelength > original / low;
  const at::Tensor scaled = at::where(is_long, plain / scaling.factor, plain);
  const at::Tensor smooth = (wavelength.reciprocal() * original - low) / (high - low);
  const at::Tensor blended = (1 - smooth) * scaled / scaling.factor + smooth * scaled;
  const at::Tensor is_medium = (wavelength < original / high).logical_or_(is_long).logical_not_();
  return at::where(is_medium, blended, scaled);
}

/// The dim whose wavelength turns `rotations` times in the original positions.
double dim_of_rotations(double rotations, const LlamaOptions& options) {
  const auto original = static_cast<double>(original_positions(options));
  return static_cast<double>(options.width_of_head()) * std::log(original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(options.rope_theta));
}

at::Tensor yarn_angles(const LlamaOptions& options) {
  const RopeScaling& scaling = options.rope_scaling;
  const int64_t dim = options.width_of_head();
  double low = dim_of_rotations(scaling.beta_fast, options), high = dim_of_rotations(scaling.beta_slow, options);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) {
    high += 0.001;
  }
  const at::Tensor ramp =
      ((at::arange(dim / 2, at::TensorOptions(at::kFloat)) - low) / (high - low)).clamp_(0, 1); // 1: interpolated
  const at::Tensor periods_of_dims = periods(options.rope_theta, dim);
  const at::Tensor kept = 1 - ramp;
  return (periods_of_dims * scaling.factor).reciprocal() * (1 - kept) + periods_of_dims.reciprocal() * kept;
}

double yarn_factor(const RopeScaling& scaling) {
  const auto of = [&](double scale) {
    return scaling.factor <= 1 ? 1.0 : 0.1 * scale * std::log(scaling.factor) + 1.0;
  };
  if (scaling.attention_factor != 0) {
    return scaling.attention_factor;
  }
  return scaling.mscale != 0 && scaling.mscale_all_dim != 0 ? of(scaling.mscale) / of(scaling.mscale_all_dim) : of(1);
}

} // namespace

RotaryFrequencies rotary_frequencies(const LlamaOptions& options, int64_t length) {
  switch (options.rope_scaling.kind) {
    case Kind::none:
      break;
    case Kind::linear:
      return {periods(options.rope_theta, options.width_of_head()).reciprocal() / options.rope_scaling.factor};
    case Kind::dynamic:
      return {dynamic_angles(options, length)};
    case Kind::llama3:
      return {llama3_angles(options)};
    case Kind::yarn:
      return {yarn_angles(options), yarn_factor(options.rope_scaling)};
  }
  return {periods(options.rope_theta, options.width_of_head()).reciprocal()};
}

RotaryPositions::RotaryPositions(const LlamaOptions& options, const ModelRanks& ranks)
    : options_(options), ranks_(ranks) {
  if (options.width_of_head() % 2 != 0 || options.width_of_head() < 2 ||
      (options.rope_scaling.kind == Kind::dynamic && options.width_of_head() == 2)) {
    throw InputError(
        "llama", concat("rotary positions turn pairs of a head's features, but head_dim is ", options.width_of_head()),
        "Choose an even model.head_dim (hidden / heads by default), above 2 for dynamic scaling.");
  }
}

int64_t RotaryPositions::scaled_length(int64_t length) const {
  return options_.rope_scaling.kind == Kind::dynamic && length > max_positions(options_) ? length : 0;
}

RotaryPositions::Table RotaryPositions::compute(int64_t tokens, const at::Device& device) const {
  const c10::InferenceMode no_inference(false); // training reads the table later
  const torch::NoGradGuard no_grad;
  const int64_t length = tokens * ranks_.context.size();
  const RotaryFrequencies frequencies = rotary_frequencies(options_, length);
  const at::Tensor positions = ranks_.shares_tokens()
                                   ? context::positions(length, ranks_.context, ranks_.context_kind, device)
                                   : at::arange(length, at::TensorOptions(at::kLong).device(device));
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(1) * frequencies.angles.to(device);
  return {angles.cos() * frequencies.factor, angles.sin() * frequencies.factor};
}

RotaryPositions::Table RotaryPositions::of(int64_t tokens, const at::Device& device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t scaled = scaled_length(tokens * ranks_.context.size());
  const bool only_whole = ranks_.shares_tokens() || scaled != 0;
  auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) {
    const int64_t known = one.table.cos.size(0);
    return (only_whole ? known == tokens : known >= tokens) && one.table.cos.device() == device &&
           one.scaled_length == scaled;
  });
  if (found == kept_.end()) {
    // Without a length of their own, angles of a longer sequence begin with those of a shorter one.
    int64_t most = tokens;
    if (!only_whole) {
      constexpr int64_t kStep = 256; // generation asks for one more each time
      const bool grows = options_.rope_scaling.kind != Kind::dynamic;
      most = std::max(grows ? (tokens + kStep - 1) / kStep * kStep : tokens,
                      std::min(options_.sequence_length, max_positions(options_)));
    }
    std::erase_if(kept_, [](const Kept& one) { return !one.trains; });
    found = kept_.insert(kept_.end(), Kept{compute(most, device), scaled});
  }
  found->trains = found->trains || at::GradMode::is_enabled();
  return {found->table.cos.slice(0, 0, tokens), found->table.sin.slice(0, 0, tokens)};
}

RotaryPositions::Table RotaryPositions::of(const at::Tensor& positions, int64_t length) const {
  const Table all = of(length, positions.device());
  return {all.cos.index_select(0, positions), all.sin.index_select(0, positions)};
}

} // namespace trireme::models
