#include <trireme/extensions/compress/intervals.h>

#include <nlohmann/json.hpp>

namespace trireme::compress {

void Intervals::moved() {
  ++moves_;
  if (++counter_ == options_.var_update_scaler) {
    counter_ = 0;
    interval_ *= 2;
  }
}

int64_t Intervals::next_meeting(int64_t step) const {
  while (!meet_in(step)) {
    ++step;
  }
  return step;
}

nlohmann::json Intervals::state() const {
  return {{"interval", interval_}, {"counter", counter_}, {"moves", moves_}};
}

void Intervals::load_state(const nlohmann::json& state, int64_t steps) {
  interval_ = state.is_object() ? state.at("interval").get<int64_t>() : 1;
  counter_ = state.is_object() ? state.at("counter").get<int64_t>() : 0;
  moves_ = state.is_object() ? state.at("moves").get<int64_t>() : steps;
}

} // namespace trireme::compress
