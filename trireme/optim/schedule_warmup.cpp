#include <trireme/base/error.h>
#include <trireme/optim/schedules.h>
#include <trireme/optim/shard_check.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::optim {
namespace {

/// The rising part of the three schedules.
class Warmup {
 public:
  Warmup(const char* schedule, const ScheduleOptions& options)
      : linear_(options.warmup_type == ScheduleOptions::Warmup::linear),
        asked_(options.warmup_num_steps),
        steps_(std::max<int64_t>(2, asked_)),
        inverse_log_(1.0 / std::log(static_cast<double>(steps_))) {
    check_option(asked_ >= 0, schedule, "warmup_num_steps", "at least 0", static_cast<double>(asked_));
  }

  int64_t steps() const { return steps_; }
  bool rising(int64_t iteration) const { return iteration < steps_; }
  /// From 0 at iteration 0 to 1 at the end. The order of operations is DeepSpeed's.
  double gamma(int64_t iteration) const {
    const double i = static_cast<double>(iteration);
    return linear_ ? i / static_cast<double>(steps_) : inverse_log_ * std::log(i + 1);
  }

 private:
  bool linear_;
  int64_t asked_;
  int64_t steps_;
  double inverse_log_;
};

class WarmupSchedule : public Schedule {
 public:
  const char* name() const override { return name_; }

  std::vector<std::string> warnings() const override {
    std::vector<std::string> found;
    if (lr_at(1) == 0 && lr_at(2) == 0) {
      found.push_back(concat(name_, " runs optimizer steps 1 and 2 at learning rate 0, as DeepSpeed does",
                             decays_ && total_ <= 2 ? "." : "; a warm-up minimum above 0 avoids one or both."));
    }
    if (decays_ && total_ < warmup_.steps()) {
      found.push_back(concat(name_, ": total_num_steps ", total_, " is less than warmup_num_steps ", warmup_.steps(),
                             ", so the learning rate never reaches its maximum."));
    }
    return found;
  }

 protected:
  WarmupSchedule(const char* name, const ScheduleOptions& options, bool decays)
      : name_(name), warmup_(name, options), decays_(decays), total_(options.total_num_steps) {
    if (decays && total_ < 1) {
      throw InputError("optim", concat(name, " needs total_num_steps of at least 1, got ", total_, '.'),
                       "Set scheduler.params.total_num_steps to the number of optimizer steps of the run.");
    }
  }

  const char* name_;
  Warmup warmup_;
  bool decays_;
  int64_t total_;
};

/// WarmupLR and WarmupDecayLR.
class WarmupLr final : public WarmupSchedule {
 public:
  WarmupLr(const char* name, const ScheduleOptions& options, bool decays, double max_lr)
      : WarmupSchedule(name, options, decays), min_(options.warmup_min_lr), delta_(max_lr - min_) {
    check_option(min_ >= 0, name, "warmup_min_lr", "at least 0", min_);
    check_option(max_lr >= 0, name, "warmup_max_lr", "at least 0", max_lr);
  }

 private:
  double lr_of(int64_t iteration) const override { return iteration < 0 ? min_ : min_ + delta_ * factor(iteration); }

  double factor(int64_t iteration) const {
    if (warmup_.rising(iteration)) {
      return warmup_.gamma(iteration);
    }
    if (!decays_) {
      return 1.0;
    }
    const double left = static_cast<double>(total_ - iteration);
    return std::max(0.0, left / static_cast<double>(std::max<int64_t>(1, total_ - warmup_.steps())));
  }

  double min_;
  double delta_;
};

class WarmupCosineLr final : public WarmupSchedule {
 public:
  WarmupCosineLr(const ScheduleOptions& options, double lr)
      : WarmupSchedule("WarmupCosineLR", options, true),
        lr_(lr),
        warmup_ratio_(options.warmup_min_ratio),
        cosine_ratio_(options.cos_min_ratio) {
    check_option(warmup_ratio_ >= 0, name_, "warmup_min_ratio", "at least 0", warmup_ratio_);
    check_option(cosine_ratio_ >= 0, name_, "cos_min_ratio", "at least 0", cosine_ratio_);
  }

 private:
  double lr_of(int64_t iteration) const override { return iteration < 0 ? 0.0 : lr_ * ratio(iteration); }

  double ratio(int64_t iteration) const {
    if (warmup_.rising(iteration)) {
      return warmup_ratio_ + warmup_.gamma(iteration) * (1.0 - warmup_ratio_);
    }
    const double done = static_cast<double>(iteration - warmup_.steps() + 1);
    const double all = static_cast<double>(std::max<int64_t>(1, total_ - warmup_.steps()));
    const double wave = (1 + std::cos(std::numbers::pi * std::min(1.0, done / all))) / 2;
    return std::max(0.0, cosine_ratio_ + (1.0 - cosine_ratio_) * wave);
  }

  double lr_;
  double warmup_ratio_;
  double cosine_ratio_;
};

} // namespace

std::unique_ptr<Schedule> make_warmup(const ScheduleOptions& options, double optimizer_lr) {
  using Kind = ScheduleOptions::Kind;
  if (options.kind == Kind::warmup_cosine) {
    return std::make_unique<WarmupCosineLr>(options, optimizer_lr);
  }
  if (options.kind == Kind::warmup_decay) {
    return std::make_unique<WarmupLr>("WarmupDecayLR", options, true, options.warmup_max_lr.value_or(1e-3));
  }
  return std::make_unique<WarmupLr>("WarmupLR", options, false, options.warmup_max_lr.value_or(optimizer_lr));
}

} // namespace trireme::optim
