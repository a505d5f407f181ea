#pragma once

#include <trireme/base/stateful.h>
#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::precision {

/// torch.amp.GradScaler's names and defaults.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  /// Good steps in a row before the scale grows.
  int64_t growth_interval = 2000;
  /// false: the scaler has no effect.
  bool enabled = true;
};

/// Scales losses for fp16 gradients in a plain libtorch loop, as torch.amp.GradScaler does in Python. Engines use
/// LossScaler.
///
///   GradScaler scaler;                      // or GradScaler scaler({}, group): all its ranks step or none does
///   {
///     const Autocast autocast(Type::fp16, at::kCUDA);
///     loss = model->forward(inputs);
///   }
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);             // only where gradients are clipped or looked at
///   scaler.step(optimizer);
///   scaler.update();
///
/// Bit-equal to Python's: the scale is an fp32 number, and gradients are multiplied by its fp32 reciprocal.
/// With a group one element is all-reduced (max) for each optimizer and step, started in unscale_() and waited for in
/// step(). Cost: unscale_() reads and writes each gradient once. Not thread-safe.
class GradScaler final : public Stateful {
 public:
  /// Errors: InputError for growth_factor <= 1, backoff_factor outside (0, 1), growth_interval < 1 or an init_scale
  /// that fp32 cannot hold.
  explicit GradScaler(const GradScalerOptions& options = {}, comm::Group group = {});

  /// `outputs` times the scale; itself when disabled.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the gradients by the scale, once per step, after the last backward. Collective with a group. Errors: Error
  /// when called twice before update(), after step(), or before any scale(); InputError for fp16 gradients (parameters
  /// must be fp32).
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Calls unscale_() unless it was called, then the optimizer's step unless a gradient is NaN or Inf on any rank.
  /// Returns whether it stepped. Errors: Error when called twice before update(), or without any gradient.
  bool step(torch::optim::Optimizer& optimizer);
  /// Ends the iteration: the scale shrinks when a step was skipped, and grows after growth_interval good ones.
  /// Errors: Error when no gradients were unscaled before.
  void update();
  /// Ends the iteration and sets the scale. Errors: InputError unless it is finite and positive.
  void update(double new_scale);

  /// 1 when disabled.
  double get_scale() const;
  double get_growth_factor() const { return options_.growth_factor; }
  void set_growth_factor(double factor);
  double get_backoff_factor() const { return options_.backoff_factor; }
  void set_backoff_factor(double factor);
  int64_t get_growth_interval() const { return options_.growth_interval; }
  void set_growth_interval(int64_t interval);
  bool is_enabled() const { return options_.enabled; }

  /// Python's state_dict(): {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}; {} when
  /// disabled. Call it after update().
  nlohmann::json state() const override;
  /// Errors: InputError when it is malformed or was saved by a disabled scaler; nothing changes then. Does nothing when
  /// disabled.
  void load_state(const nlohmann::json& state) override;

 private:
  // State of one optimizer in this iteration; the entry exists once its gradients are unscaled.
  struct Progress {
    at::Tensor flag;                // [1], fp32: 1 when a gradient is not finite; undefined without a gradient
    std::optional<comm::Work> work; // the all-reduce of the flag
    bool stepped = false;
    bool found();
  };

  GradScalerOptions options_;
  comm::Group group_;
  float scale_;
  bool has_scaled_ = false;
  int64_t growth_tracker_ = 0;
  std::map<const torch::optim::Optimizer*, Progress> progress_;
};

} // namespace trireme::precision
