#pragma once

#include <trireme/base/stateful.h>
#include <trireme/precision/options.h>

#include <cstdint>

namespace trireme::precision {

/// Sets the loss scale of each step: one rule for every engine and ZeRO stage.
///
///   overflow:    hysteresis left > 1: one less. Else scale = max(scale / 2, min_loss_scale).
///                The step is skipped; counting of good steps begins anew.
///   no overflow: consecutive_hysteresis: hysteresis is full again.
///                Each time loss_scale_window good steps are counted: scale *= 2, hysteresis is full again.
///
/// The rule and its counting are DeepSpeed's: the first step of a run and the first one after an overflow are not
/// counted, so the scale first doubles in good step loss_scale_window + 1, and then every loss_scale_window steps.
/// The scale stops growing at 2^127, the largest power of two that fp32 holds.
///
/// A step's gradients carry the scale that its loss was multiplied with, so unscale them before update(), or with
/// Update::used: DeepSpeed divides by the scale of the *next* step (zero/stage_1_and_2.py), so that gradients are
/// halved whenever the scale doubles.
///
///   (scaler.scale() * loss).backward();
///   bool overflow = ...;                            // the same on all ranks
///   const LossScaler::Update update = scaler.update(overflow);
///   if (!update.skipped) step(1 / update.used);
///
/// Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.
class LossScaler final : public Stateful {
 public:
  /// The decision of update().
  struct Update {
    /// Scale of the gradients of the step that just ended.
    double used = 1;
    /// Scale of the next step's loss.
    double scale = 1;
    bool skipped = false;
    /// An overflow occurred while the dynamic scale was at its minimum. DeepSpeed ends the run here; name the gradients
    /// (OverflowWatch) when doing so.
    bool at_minimum = false;
  };

  /// Scales nothing: bf16 and fp32. update() still decides which steps to skip.
  LossScaler();
  /// Errors: InputError naming the option that has an impossible value.
  explicit LossScaler(const LossScaleOptions& options);

  /// Scale of the current step's loss.
  double scale() const { return scale_; }
  bool dynamic() const { return dynamic_; }
  /// Overflows until the scale is halved, the halving one included.
  int64_t hysteresis() const { return hysteresis_; }
  /// Steps skipped in a row so far.
  int64_t overflows_in_a_row() const { return overflows_in_a_row_; }

  /// Lowers a larger fixed scale to `largest`, for losses of a type with a smaller range. Returns whether it was
  /// larger. A dynamic scale is lowered by its rule.
  bool limit(double largest);
  /// Largest scale allowed so far.
  double largest() const { return largest_; }

  /// Ends a step. `overflow`: a gradient was NaN or Inf on some rank; every rank passes the same.
  Update update(bool overflow);

  /// {"loss_scale", "largest", "hysteresis", "iteration", "last_overflow", "overflows_in_a_row"}
  nlohmann::json state() const override;
  /// Continues from the saved state. This scaler's options decide whether the scale changes: a fixed scale stays, up to
  /// the saved limit. Errors: InputError when it is malformed; nothing changes then.
  void load_state(const nlohmann::json& state) override;

 private:
  LossScaleOptions options_;
  bool dynamic_ = false;
  double scale_ = 1;
  double largest_ = 0x1p127; // largest power of two in fp32
  int64_t hysteresis_ = 1;
  int64_t iteration_ = 0;
  int64_t last_overflow_ = -1;
  int64_t overflows_in_a_row_ = 0;
};

} // namespace trireme::precision
