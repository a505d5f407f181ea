#pragma once

#include <trireme/precision/loss_scaler.h>

#include <c10/core/ScalarType.h>

#include <nlohmann/json_fwd.hpp>

namespace trireme::engine {

/// The loss scale of the current step, the same in the gradients of all ranks.
///
/// The loss itself is never multiplied, which would overflow in fp16; the scale is the first gradient of backward, in
/// the loss's type. If that type cannot hold a fixed scale (65536 in fp16), its rank lowers it, and the ranks agree on
/// the lower one at the end of the step. A dynamic scale is lowered by the overflow.
class StepScale {
 public:
  StepScale() = default;
  explicit StepScale(const precision::LossScaleOptions& options) : scaler_(options), agreed_(scaler_.scale()) {}

  /// Returns the initial gradient of backward for a micro-batch's loss of this type, one of `micro_batches`.
  double root_gradient(at::ScalarType loss, int64_t micro_batches);

  /// The same if the outcome of the last step is not known yet, so that the scale is one of two. For dynamic scales.
  struct Roots {
    double if_taken = 1;
    double if_skipped = 1;
  };
  Roots root_gradients(int64_t micro_batches) const;

  /// This rank's summand: 0 if this rank has the agreed scale; 1 if it lowered the scale before the step's first
  /// gradient, 0.5 if after it.
  double lowered() const;
  /// Lowers the scale if `sum`, over the ranks' lowered(), says that some rank has. False if gradients of the step have
  /// different scales.
  bool agree(double sum, int ranks, int64_t micro_batches);
  /// The same for stages: only the last one knows the type of the loss.
  void limit(double largest) { scaler_.limit(largest); }

  /// Ends a step. `overflow` must be the same on every rank.
  precision::LossScaler::Update update(bool overflow);
  /// Drops the state of a step that ended or was dropped.
  void start_over() { was_used_ = lowered_between_ = false; }

  const precision::LossScaler& scaler() const { return scaler_; }
  /// Errors: InputError as LossScaler::load_state(). Ranks may have different scales until agree_on_loaded().
  void load_state(const nlohmann::json& state) { scaler_.load_state(state); }
  void agree_on_loaded() { agreed_ = scaler_.scale(); }

 private:
  precision::LossScaler scaler_;
  double agreed_ = 1;            // the same on every rank; ranks whose loss has lowered it since differ
  bool was_used_ = false;        // by a gradient of this step
  bool lowered_between_ = false; // gradients of this step have different factors
};

} // namespace trireme::engine
