#include <trireme/optim/schedules.h>
#include <trireme/optim/shard_check.h>

#include <cmath>

namespace trireme::optim {
namespace {

// Smith 2018, arXiv:1803.09820, for both.

class LrRangeTest final : public Schedule {
 public:
  explicit LrRangeTest(const ScheduleOptions& options)
      : min_(options.lr_range_test_min_lr),
        step_size_(static_cast<double>(options.lr_range_test_step_size)),
        rate_(options.lr_range_test_step_rate),
        staircase_(options.lr_range_test_staircase) {
    check_option(min_ >= 0, name(), "lr_range_test_min_lr", "at least 0", min_);
    check_option(step_size_ > 0, name(), "lr_range_test_step_size", "at least 1", step_size_);
  }

  const char* name() const override { return "LRRangeTest"; }

 private:
  double lr_of(int64_t iteration) const override {
    const double interval = static_cast<double>(iteration + 1) / step_size_;
    return min_ * (1 + rate_ * (staircase_ ? std::floor(interval) : interval));
  }

  double min_;
  double step_size_;
  double rate_;
  bool staircase_;
};

class OneCycle final : public Schedule {
 public:
  explicit OneCycle(const ScheduleOptions& o)
      : min_(o.cycle_min_lr),
        max_(o.cycle_max_lr),
        first_(static_cast<double>(o.cycle_first_step_size)),
        second_(static_cast<double>(o.cycle_second_step_size.value_or(o.cycle_first_step_size))),
        total_(first_ + second_),
        first_stairs_(static_cast<double>(o.cycle_first_stair_count)),
        second_stairs_(static_cast<double>(o.cycle_second_stair_count.value_or(o.cycle_first_stair_count))),
        decay_step_(static_cast<double>(o.decay_step_size)),
        decay_lr_(decay_step_ == 0 ? 0 : o.decay_lr_rate),
        momentum_(o.cycle_momentum),
        min_mom_(o.cycle_min_mom),
        max_mom_(o.cycle_max_mom),
        decay_mom_(decay_step_ == 0 ? 0 : o.decay_mom_rate) {
    const auto check = [this](bool holds, const char* option, const char* range, double value) {
      check_option(holds, name(), option, range, value);
    };
    check(min_ >= 0, "cycle_min_lr", "at least 0", min_);
    check(max_ >= 0, "cycle_max_lr", "at least 0", max_);
    check(first_ > 0, "cycle_first_step_size", "at least 1", first_);
    check(second_ >= 0, "cycle_second_step_size", "at least 0", second_);
    check(first_stairs_ >= 0, "cycle_first_stair_count", "at least 0", first_stairs_);
    check(second_stairs_ >= 0, "cycle_second_stair_count", "at least 0", second_stairs_);
    check(decay_step_ >= 0, "decay_step_size", "at least 0", decay_step_);
    check(decay_lr_ >= 0, "decay_lr_rate", "at least 0", decay_lr_);
    check(min_mom_ >= 0 && min_mom_ < 1, "cycle_min_mom", "in [0, 1)", min_mom_);
    check(max_mom_ >= 0 && max_mom_ < 1, "cycle_max_mom", "in [0, 1)", max_mom_);
  }

  const char* name() const override { return "OneCycle"; }

 private:
  double lr_of(int64_t iteration) const override {
    if (iteration < 0) {
      return min_;
    }
    if (static_cast<double>(iteration) < total_) {
      return min_ + (max_ - min_) * height(iteration);
    }
    return decay_lr_ == 0 ? min_ : min_ / (1 + decay_lr_ * decay_interval(iteration));
  }

  std::optional<Betas> betas_of(int64_t iteration) const override {
    if (!momentum_) {
      return std::nullopt;
    }
    if (iteration < 0) {
      return Betas{min_mom_, kBeta2};
    }
    if (static_cast<double>(iteration) < total_) {
      return Betas{max_mom_ - (max_mom_ - min_mom_) * height(iteration), kBeta2};
    }
    return Betas{decay_mom_ == 0 ? max_mom_ : max_mom_ * (1 + decay_mom_ * decay_interval(iteration)), kBeta2};
  }

  double decay_interval(int64_t iteration) const { return (static_cast<double>(iteration) - total_ + 1) / decay_step_; }

  /// Height in the triangle: 0 at its ends, 1 at its top. Uses DeepSpeed's order of operations. Stairs are cut from the
  /// iteration, not from the height, which rounding can put below a stair.
  double height(int64_t iteration) const {
    const double at = static_cast<double>(iteration + 1);
    const double peak = first_ / total_;
    const double x = 1. + at / total_ - std::floor(1 + at / total_);
    const bool rising = x <= peak;
    const double stairs = rising ? first_stairs_ : second_stairs_;
    if (stairs > 0) {
      const double in_cycle = std::fmod(at, total_);
      const double position = in_cycle <= first_ ? in_cycle * stairs / first_ : (total_ - in_cycle) * stairs / second_;
      return std::floor(position) / stairs;
    }
    return rising ? x / peak : (x - 1) / (peak - 1);
  }

  static constexpr double kBeta2 = 0.99;

  double min_, max_;
  double first_, second_, total_;
  double first_stairs_, second_stairs_;
  double decay_step_, decay_lr_;
  bool momentum_;
  double min_mom_, max_mom_, decay_mom_;
};

} // namespace

std::unique_ptr<Schedule> make_lr_range_test(const ScheduleOptions& options) {
  return std::make_unique<LrRangeTest>(options);
}

std::unique_ptr<Schedule> make_one_cycle(const ScheduleOptions& options) {
  return std::make_unique<OneCycle>(options);
}

} // namespace trireme::optim
