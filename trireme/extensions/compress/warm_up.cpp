#include <trireme/extensions/compress/warm_up.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace trireme::compress {

WarmUp::WarmUp(std::optional<int64_t> steps, double beta2)
    : steps_(steps), between_(std::max<int64_t>(1, std::llround(1 / (1 - beta2)))) {}

bool WarmUp::ends_after(int64_t step, const std::function<double()>& norm) {
  if (steps_) {
    return step >= *steps_;
  }
  if (step % between_ != 0) {
    return false;
  }
  const double before = last_norm_;
  last_norm_ = norm();
  return before > 0 && std::min(before, last_norm_) >= kSettled * std::max(before, last_norm_);
}

nlohmann::json WarmUp::state() const {
  return last_norm_;
}

void WarmUp::load_state(const nlohmann::json& state) {
  last_norm_ = state.is_number() ? state.get<double>() : 0;
}

} // namespace trireme::compress
