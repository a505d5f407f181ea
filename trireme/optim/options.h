#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

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

/// 1-bit Adam (Tang et al. 2021, arXiv:2102.02888) with DeepSpeed's names. AdamW whose second moment is frozen after
/// some steps; ranks then exchange momenta of one bit per element (compress::OneBitAdamSync).
struct OneBitAdamOptions : AdamOptions {
  /// Steps before the second moment is frozen. Absent: until it has settled.
  std::optional<int64_t> freeze_step = 100000;
};

/// 0/1 Adam (Lu et al. 2022, arXiv:2202.06009) with DeepSpeed's names. AdamW whose second moment is updated at growing
/// intervals; between updates, ranks exchange gradients of one bit per element. Later, ranks step locally and exchange
/// their accumulated updates at intervals (compress::ZeroOneAdamSync).
struct ZeroOneAdamOptions : AdamOptions {
  /// Steps after which the second moment is frozen.
  int64_t var_freeze_step = 100000;
  /// Updates of the second moment before their interval doubles.
  int64_t var_update_scaler = 16;
  /// Steps after var_freeze_step before the interval of synchronizations doubles. The number is DeepSpeed's.
  int64_t local_step_scaler = 32678;
  /// Longest interval of synchronizations; 1: the ranks synchronize in every step.
  int64_t local_step_clipper = 16;

  /// Steps between two synchronizations at `step`, which counts from 1: 1 until local_step_scaler steps after
  /// var_freeze_step, then doubled after every local_step_scaler steps.
  constexpr int64_t local_interval(int64_t step) const {
    int64_t interval = 1;
    for (int64_t doublings = (step - var_freeze_step - 1) / local_step_scaler;
         doublings > 0 && interval < local_step_clipper; --doublings) {
      interval = 2 * interval < local_step_clipper ? 2 * interval : local_step_clipper;
    }
    return interval;
  }
  constexpr bool meet_in(int64_t step) const { return step % local_interval(step) == 0; }
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// LAMB (You et al. 2020, arXiv:1904.00962) as in DeepSpeed: each parameter's step is scaled by
/// |weight| / |update|, clamped to [min_coeff, max_coeff], or 1 if either norm is 0.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  double max_coeff = 10;
  double min_coeff = 0.01;
  bool eps_inside_sqrt = false;
};

/// 1-bit LAMB (Li et al. 2021, arXiv:2104.06069) with DeepSpeed's names. LAMB whose second moment is frozen after some
/// steps; ranks then exchange momenta of one bit per element, and trust ratios follow from earlier ones
/// (compress::OneBitLambSync).
struct OneBitLambOptions : LambOptions {
  /// Steps before the second moment is frozen. Absent: until it has settled.
  std::optional<int64_t> freeze_step = 100000;
  /// Decay of the average of each parameter's trust ratios before the freeze.
  double coeff_beta = 0.9;
  /// Limits of the factor on that average, and of its relative change per step.
  double factor_max = 4;
  double factor_min = 0.5;
  double factor_threshold = 0.1;
};

/// Lion (Chen et al. 2023, arXiv:2302.06675); decay acts on the weight.
struct LionOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

/// torch.optim.Adagrad (Duchi et al. 2011).
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double eps = 1e-10;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
};

/// torch.optim.RMSprop (Tieleman & Hinton 2012).
struct RmspropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

/// Type of optimizer states: 4, 2 or 1 bytes per element. int8: blocks of 256 elements of one parameter with a scale
/// each (Dettmers et al. 2022, arXiv:2110.02861). Arithmetic is always fp32. bf16 and int8 are rounded stochastically,
/// with the same bits on every machine.
enum class StateType { fp32, bf16, int8 };

/// "fp32", "bf16" or "int8", the name in a configuration.
inline const char* name(StateType type) {
  return type == StateType::bf16 ? "bf16" : type == StateType::int8 ? "int8" : "fp32";
}

constexpr int64_t bytes_of(StateType type) {
  return type == StateType::fp32 ? 4 : type == StateType::bf16 ? 2 : 1;
}

/// Which parameters have weight decay. all: as in PyTorch and DeepSpeed. matrices: parameters with at least two
/// dimensions, not biases and norms, as usual for GPTs.
enum class DecayRule { all, matrices };

/// The options of an optimizer; their type selects the optimizer.
using Rule = std::variant<AdamOptions, SgdOptions, LambOptions, LionOptions, AdagradOptions, RmspropOptions,
                          OneBitAdamOptions, OneBitLambOptions, ZeroOneAdamOptions>;

/// The optimizer of a run: {.rule = SgdOptions{.lr = 0.1, .momentum = 0.9}}. Default: AdamW.
struct OptimizerOptions {
  Rule rule = AdamOptions{};
  StateType state_type = StateType::fp32;
  DecayRule decay_rule = DecayRule::all;

  double lr() const {
    return std::visit([](const auto& options) { return options.lr; }, rule);
  }
  /// Whether a step needs the norm of each full parameter. Tensor ranks then cannot split parameters.
  bool needs_norms() const {
    return std::holds_alternative<LambOptions>(rule) || std::holds_alternative<OneBitLambOptions>(rule);
  }
  double weight_decay() const {
    return std::visit([](const auto& options) { return options.weight_decay; }, rule);
  }
  /// Whether ranks exchange compressed momenta in place of gradients: the 1-bit optimizers.
  bool compresses_momenta() const {
    return std::holds_alternative<OneBitAdamOptions>(rule) || std::holds_alternative<OneBitLambOptions>(rule);
  }
  /// Whether the optimizer itself compresses what ranks exchange.
  bool compresses() const { return compresses_momenta() || std::holds_alternative<ZeroOneAdamOptions>(rule); }
  /// Weight decay of a parameter with this number of dimensions.
  double weight_decay_of(size_t dimensions) const {
    return decay_rule == DecayRule::matrices && dimensions < 2 ? 0 : weight_decay();
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
