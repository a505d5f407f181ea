#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::optim {

/// Adam and AdamW (Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101).
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  /// true: decay acts on the weight (AdamW); false: decay is added to the gradient.
  bool decoupled_weight_decay = true;
  bool bias_correction = true;
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// The optimizer of a run: a kind and the options of that kind.
struct OptimizerOptions {
  enum class Kind { adam, sgd };
  Kind kind = Kind::adam;
  AdamOptions adam;
  SgdOptions sgd;

  double lr() const {
    return kind == Kind::adam ? adam.lr : sgd.lr;
  }
  double weight_decay() const {
    return kind == Kind::adam ? adam.weight_decay : sgd.weight_decay;
  }
};

/// DeepSpeed's five learning-rate schedules with its defaults; see schedule.h for the formulas.
struct ScheduleOptions {
  enum class Kind { constant, lr_range_test, one_cycle, warmup, warmup_decay, warmup_cosine };
  Kind kind = Kind::constant;

  // warmup, warmup_decay, warmup_cosine
  double warmup_min_lr = 0;
  /// Absent: the optimizer's lr; for warmup_decay 0.001, as in DeepSpeed.
  std::optional<double> warmup_max_lr;
  int64_t warmup_num_steps = 1000;
  enum class Warmup { log, linear };
  Warmup warmup_type = Warmup::log;
  /// warmup_decay and warmup_cosine: where the decay ends.
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;

  // lr_range_test
  double lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;

  // one_cycle
  double cycle_min_lr = 0;
  double cycle_max_lr = 0;
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size;
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count;
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};

} // namespace trireme::optim
