#include <trireme/optim/schedule.h>

#include <trireme/base/error.h>
#include <trireme/optim/schedules.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <utility>

namespace trireme::optim {

double Schedule::lr_at(int64_t step) const {
  if (step < 1) {
    throw Error("optim", concat(name(), ": steps count from 1, got ", step, '.'));
  }
  return lr_of(step - 2);
}

std::optional<Betas> Schedule::betas_at(int64_t step) const {
  if (step < 1) {
    throw Error("optim", concat(name(), ": steps count from 1, got ", step, '.'));
  }
  return betas_of(step - 2);
}

std::optional<Betas> Schedule::betas_of(int64_t) const {
  return std::nullopt;
}

void Schedule::set_lr(double lr) {
  throw InputError("optim",
                   concat("The learning rate cannot be set to ", lr, ": the schedule ", name(), " decides it."),
                   "Leave the \"scheduler\" out of the configuration.");
}

nlohmann::json Schedule::state() const {
  return {{"schedule", name()}, {"steps_taken", steps_taken_}};
}

void Schedule::load_state(const nlohmann::json& state) {
  const auto member = [&](const char* key) {
    return state.is_object() && state.contains(key) ? state.at(key) : nlohmann::json();
  };
  const nlohmann::json schedule = member("schedule");
  const nlohmann::json steps = member("steps_taken");
  if (!schedule.is_string() || !steps.is_number_integer() || steps.get<int64_t>() < 0) {
    throw InputError("optim",
                     concat("The checkpoint has no state of a learning-rate schedule, got ", state.dump(), '.'),
                     "Load the run's own checkpoint, or start anew from its weights (model.init_from).");
  }
  if (schedule.get<std::string>() != name()) {
    throw InputError(
        "optim", concat("The checkpoint's schedule is ", schedule.get<std::string>(), ", this run's is ", name(), '.'),
        "Use the same scheduler.type, or start anew from its weights (model.init_from).");
  }
  steps_taken_ = steps.get<int64_t>();
}

namespace {

bool is_rate(double lr) {
  return lr >= 0 && std::isfinite(lr);
}

double check(double lr, int64_t step) {
  if (!is_rate(lr)) {
    throw InputError("optim", concat("The learning rate of step ", step, " is ", lr, '.'),
                     "It must be a number of 0 or more.");
  }
  return lr;
}

class Constant final : public Schedule {
 public:
  explicit Constant(double lr) : made_with_(lr), lr_(lr) {}

  const char* name() const override { return "Constant"; }
  void set_lr(double lr) override {
    check(lr, steps_taken() + 1);
    lr_ = lr;
    was_set_ = true;
  }
  nlohmann::json state() const override {
    nlohmann::json state = Schedule::state();
    if (was_set_) {
      state["lr"] = lr_;
    }
    return state;
  }
  void load_state(const nlohmann::json& state) override {
    const bool was_set = state.is_object() && state.contains("lr");
    if (was_set && !(state.at("lr").is_number() && is_rate(state.at("lr").get<double>()))) {
      throw InputError(
          "optim",
          concat("The checkpoint's learning rate is ", state.at("lr").dump(), "; it must be a number of 0 or more."),
          "The checkpoint is damaged: load another one, or start anew from its weights (model.init_from).");
    }
    Schedule::load_state(state);
    was_set_ = was_set;
    lr_ = was_set ? state.at("lr").get<double>() : made_with_;
  }

 private:
  double lr_of(int64_t) const override { return lr_; }

  double made_with_;
  double lr_;
  bool was_set_ = false; // by set_lr()
};

class Function final : public Schedule {
 public:
  explicit Function(std::function<double(int64_t)> lr_at) : lr_at_(std::move(lr_at)) {}

  const char* name() const override { return "Function"; }

 private:
  double lr_of(int64_t iteration) const override {
    const int64_t step = iteration + 2;
    return check(lr_at_(step), step);
  }

  std::function<double(int64_t)> lr_at_;
};

} // namespace

std::unique_ptr<Schedule> make_schedule(const ScheduleOptions& options, double optimizer_lr) {
  using Kind = ScheduleOptions::Kind;
  switch (options.kind) {
    case Kind::lr_range_test:
      return make_lr_range_test(options);
    case Kind::one_cycle:
      return make_one_cycle(options);
    case Kind::warmup:
    case Kind::warmup_decay:
    case Kind::warmup_cosine:
      return make_warmup(options, optimizer_lr);
    case Kind::constant:
      break;
  }
  return std::make_unique<Constant>(optimizer_lr);
}

std::unique_ptr<Schedule> make_schedule(std::function<double(int64_t)> lr_at) {
  return std::make_unique<Function>(std::move(lr_at));
}

} // namespace trireme::optim
