#include <trireme/optim/states.h>

#include <trireme/base/overloaded.h>

namespace trireme::optim {

std::vector<StateInfo> states_of(const AdamOptions&) {
  return {{"exp_avg"}, {"exp_avg_sq", false}};
}

std::vector<StateInfo> states_of(const SgdOptions& options) {
  return options.momentum == 0 ? std::vector<StateInfo>{} : std::vector<StateInfo>{{"momentum_buffer"}};
}

std::vector<StateInfo> states_of(const LambOptions&) {
  return {{"exp_avg"}, {"exp_avg_sq", false}};
}

std::vector<StateInfo> states_of(const LionOptions&) {
  return {{"exp_avg"}};
}

std::vector<StateInfo> states_of(const AdagradOptions& options) {
  return {{"sum", false, options.initial_accumulator_value}};
}

std::vector<StateInfo> states_of(const RmspropOptions& options) {
  std::vector<StateInfo> states = {{"square_avg", false}};
  if (options.centered) {
    states.push_back({"grad_avg"});
  }
  if (options.momentum > 0) {
    states.push_back({"momentum_buffer"});
  }
  return states;
}

std::vector<StateInfo> states_of(const Rule& rule) {
  return std::visit([](const auto& options) { return states_of(options); }, rule);
}

const char* family_of(const Rule& rule) {
  return std::visit(Overloaded{
                        [](const AdamOptions&) { return "adam"; },
                        [](const SgdOptions&) { return "sgd"; },
                        [](const LambOptions&) { return "lamb"; },
                        [](const LionOptions&) { return "lion"; },
                        [](const AdagradOptions&) { return "adagrad"; },
                        [](const RmspropOptions&) { return "rmsprop"; },
                    },
                    rule);
}

} // namespace trireme::optim
