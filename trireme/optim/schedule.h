#pragma once

#include <trireme/base/stateful.h>
#include <trireme/optim/optimizer.h>
#include <trireme/optim/options.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::optim {

/// Gives the learning rate of each optimizer step, and counts the steps taken.
///
/// Steps count from 1 and are optimizer steps: call advance() after each step that was applied, not after one skipped
/// for overflow. lr_at() and betas_at() are pure, so any step may be queried.
///
/// DeepSpeed's schedules (runtime/lr_schedules.py, 0.19.8) set their first value when they are made and step after the
/// optimizer, so its iteration i = step - 2. Values are equal to the last digits, its peculiarities included:
/// - The three warm-ups run steps 1 and 2 both at the minimum, which is 0 by default: step 1 changes
///   nothing but the optimizer's states.
/// - warmup_cosine starts step 1 at 0 even when warmup_min_ratio is not 0.
/// - one_cycle with cycle_momentum sets beta1 to cycle_min_mom in step 1 only, then moves it from
///   cycle_max_mom down and up again; beta2 is 0.99 all along. With SGD it changes nothing.
///
///   warmup         min + (max - min) gamma(i); max from i = n on; n = max(2, warmup_num_steps)
///                  gamma = ln(i + 1) / ln(n), or i / n with warmup_type linear
///   warmup_decay   the same to i = n, then min + (max - min) max(0, (total - i) / max(1, total - n))
///   warmup_cosine  lr (r + (1 - r) gamma(i)) with r = warmup_min_ratio, then
///                  lr (c + (1 - c) (1 + cos(pi min(1, (i - n + 1) / max(1, total - n)))) / 2), c = cos_min_ratio
///   lr_range_test  min (1 + rate (i + 1) / step_size), the quotient rounded down with staircase
///   one_cycle      up to the maximum, down to the minimum, then min / (1 + decay_lr_rate k / decay_step_size)
class Schedule : public Stateful {
 public:
  /// DeepSpeed's name: "WarmupLR", "OneCycle", ...; "Constant".
  virtual const char* name() const = 0;

  /// The learning rate of optimizer step number `step`, counted from 1. Errors: Error for step < 1.
  double lr_at(int64_t step) const;
  /// Adam's betas in that step; nullopt if the schedule does not change them.
  std::optional<Betas> betas_at(int64_t step) const;

  /// The values of the next step.
  double lr() const { return lr_at(steps_taken_ + 1); }
  std::optional<Betas> betas() const { return betas_at(steps_taken_ + 1); }

  /// The lr of each group of the optimizer relative to lr(), if it may change (ParameterOptions::group); empty: it does
  /// not.
  virtual std::vector<double> group_factors() const { return {}; }

  /// Sets the lr of all later steps; saved in checkpoints. Errors: InputError if the schedule decides the lr.
  virtual void set_lr(double lr);

  int64_t steps_taken() const { return steps_taken_; }
  void advance() { ++steps_taken_; }

  /// Warnings about the chosen values, to be shown once: steps at learning rate 0, a warm-up longer than the run, ...
  virtual std::vector<std::string> warnings() const { return {}; }

  /// {"schedule": name, "steps_taken": n}
  nlohmann::json state() const override;
  /// Errors: InputError if `state` is malformed or of another schedule, before anything is changed.
  void load_state(const nlohmann::json& state) override;

 protected:
  /// `iteration` is DeepSpeed's last_batch_iteration: step - 2, so -1 in step 1.
  virtual double lr_of(int64_t iteration) const = 0;
  virtual std::optional<Betas> betas_of(int64_t iteration) const;

 private:
  int64_t steps_taken_ = 0;
};

/// Makes the schedule of `options`. `optimizer_lr` is the lr of the optimizer's options: constant and warmup_cosine use
/// it, and warmup if warmup_max_lr is absent (warmup_decay then uses 0.001, as in DeepSpeed). Errors: InputError naming
/// the option that has an impossible value.
std::unique_ptr<Schedule> make_schedule(const ScheduleOptions& options, double optimizer_lr);

/// A custom schedule: `lr_at` returns the lr of optimizer step number `step`, counted from 1. Errors of lr():
/// InputError if that is negative or not finite.
std::unique_ptr<Schedule> make_schedule(std::function<double(int64_t step)> lr_at);

} // namespace trireme::optim
