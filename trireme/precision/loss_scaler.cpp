#include <trireme/precision/loss_scaler.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace trireme::precision {
namespace {

constexpr double kLargestScale = 0x1p127;

void require_option(bool holds, const char* option, const char* range, double value) {
  if (!holds) {
    throw InputError("precision", concat("loss scaling: ", option, " must be ", range, ", got ", value));
  }
}

template <typename T>
T field(const nlohmann::json& state, const char* name) {
  const auto found = state.find(name);
  const bool fits =
      found != state.end() && (std::is_same_v<T, double> ? found->is_number() : found->is_number_integer());
  if (!fits) {
    throw InputError("precision", concat("a saved loss scaler has no number \"", name, "\": ", state.dump()),
                     "The checkpoint is damaged or of another program; take an older one.");
  }
  return found->template get<T>();
}

} // namespace

LossScaler::LossScaler() = default;

LossScaler::LossScaler(const LossScaleOptions& options)
    : options_(options),
      dynamic_(options.loss_scale == 0),
      scale_(options.loss_scale),
      hysteresis_(options.hysteresis) {
  require_option(options.loss_scale >= 0 && options.loss_scale <= kLargestScale, "loss_scale",
                 "0 (dynamic) or a number up to 2^127", options.loss_scale);
  if (!dynamic_) {
    return;
  }
  const auto power = static_cast<double>(options.initial_scale_power);
  require_option(power >= 0 && power <= 127, "initial_scale_power", "from 0 to 127", power);
  require_option(options.loss_scale_window >= 1, "loss_scale_window", ">= 1",
                 static_cast<double>(options.loss_scale_window));
  require_option(options.hysteresis >= 1, "hysteresis", ">= 1", static_cast<double>(options.hysteresis));
  scale_ = std::ldexp(1.0, static_cast<int>(options.initial_scale_power));
  require_option(options.min_loss_scale > 0 && options.min_loss_scale <= scale_, "min_loss_scale",
                 "> 0 and at most 2^initial_scale_power", options.min_loss_scale);
}

bool LossScaler::limit(double largest) {
  if (dynamic_) {
    return false;
  }
  largest_ = std::min(largest_, largest);
  const bool lowered = scale_ > largest_;
  scale_ = std::min(scale_, largest_);
  return lowered;
}

LossScaler::Update LossScaler::update(bool overflow) {
  Update out;
  out.used = scale_;
  out.skipped = overflow;
  overflows_in_a_row_ = overflow ? overflows_in_a_row_ + 1 : 0;
  if (dynamic_ && overflow) {
    if (hysteresis_ > 1) {
      --hysteresis_;
    } else {
      out.at_minimum = scale_ <= options_.min_loss_scale;
      scale_ = std::max(scale_ / 2, options_.min_loss_scale);
    }
    last_overflow_ = iteration_;
  } else if (dynamic_) {
    const int64_t counted = iteration_ - last_overflow_ - 1;
    const bool window_full = counted > 0 && counted % options_.loss_scale_window == 0;
    if (window_full) {
      scale_ = std::min(scale_ * 2, kLargestScale);
    }
    if (window_full || options_.consecutive_hysteresis) {
      hysteresis_ = options_.hysteresis;
    }
  }
  ++iteration_;
  out.scale = scale_;
  return out;
}

nlohmann::json LossScaler::state() const {
  return {{"loss_scale", scale_},
          {"largest", largest_},
          {"hysteresis", hysteresis_},
          {"iteration", iteration_},
          {"last_overflow", last_overflow_},
          {"overflows_in_a_row", overflows_in_a_row_}};
}

void LossScaler::load_state(const nlohmann::json& state) {
  const auto scale = field<double>(state, "loss_scale");
  const auto largest = state.contains("largest") ? field<double>(state, "largest") : kLargestScale;
  const auto hysteresis = field<int64_t>(state, "hysteresis");
  const auto iteration = field<int64_t>(state, "iteration");
  const auto last_overflow = field<int64_t>(state, "last_overflow");
  const auto overflows_in_a_row = field<int64_t>(state, "overflows_in_a_row");
  const bool sane = scale > 0 && scale <= kLargestScale && largest > 0 && largest <= kLargestScale && hysteresis >= 1 &&
                    last_overflow >= -1 && last_overflow < iteration && overflows_in_a_row >= 0 &&
                    overflows_in_a_row <= iteration;
  if (!sane) {
    throw InputError("precision", concat("a saved loss scaler has impossible values: ", state.dump()),
                     "The checkpoint is damaged; take an older one.");
  }
  if (dynamic_) {
    scale_ = std::max(scale, options_.min_loss_scale);
    hysteresis_ = std::min(hysteresis, options_.hysteresis);
  } else if (options_.loss_scale > 0) {
    largest_ = largest;
    scale_ = std::min(options_.loss_scale, largest_);
    if (scale_ < options_.loss_scale) {
      log::info("the loss scale is ", scale_, ", to which a loss in fp16 lowered it before the checkpoint, not ",
                options_.loss_scale);
    }
  }
  iteration_ = iteration;
  last_overflow_ = last_overflow;
  overflows_in_a_row_ = overflows_in_a_row;
}

} // namespace trireme::precision
