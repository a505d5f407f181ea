#pragma once

#include <trireme/precision/loss_scaler.h>

#include <c10/core/ScalarType.h>

#include <nlohmann/json_fwd.hpp>

namespace trireme::engine {

/// The loss scale of the present step, which all gradients of all ranks must carry.
///
/// The loss itself is never multiplied, which in fp16 would be infinite. What backward begins with has the loss's type:
/// 65536 is not in fp16, so such a loss lowers a fixed scale on its rank, and the ranks agree on that at the end of the
/// step; a dynamic scale is lowered by the overflow.
class StepScale {
 public:
  StepScale() = default;
  explicit StepScale(const precision::LossScaleOptions& options) : scaler_(options), agreed_(scaler_.scale()) {}

  /// The gradient of a micro-batch's loss of this type, one of `micro_batches`.
  double root_gradient(at::ScalarType loss, int64_t micro_batches);

  /// What the ranks add up: 0 where the scale is the agreed one; 1 where it was lowered before the first gradient of
  /// the step, 0.5 after it.
  double lowered() const;
  /// Lowers the scale where `sum`, of lowered(), says that some rank has. False when gradients of the step carry
  /// different scales.
  bool agree(double sum, int ranks, int64_t micro_batches);
  /// The same for stages: only the last one knows the loss's type.
  void limit(double largest) {
    scaler_.limit(largest);
  }

  /// Ends a step; every rank says the same.
  precision::LossScaler::Update update(bool overflow);
  /// Forgets the gradients of a step that ended or was dropped.
  void start_over() {
    was_used_ = lowered_between_ = false;
  }

  const precision::LossScaler& scaler() const {
    return scaler_;
  }
  /// The scale that the last finished step used.
  double used() const {
    return used_;
  }
  /// Errors: InputError as LossScaler::load_state(). The loaded scale is the ranks' own until agree_on_loaded().
  void load_state(const nlohmann::json& state) {
    scaler_.load_state(state);
  }
  void agree_on_loaded() {
    agreed_ = scaler_.scale();
  }

 private:
  precision::LossScaler scaler_;
  double agreed_ = 1; // what every rank has, but for those whose loss has lowered it since
  double used_ = 1;
  bool was_used_ = false;        // by a gradient of this step
  bool lowered_between_ = false; // so gradients of this step have different factors
};

} // namespace trireme::engine
