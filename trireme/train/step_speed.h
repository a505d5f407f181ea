#pragma once

#include <trireme/config/run_file.h>
#include <trireme/device/card_peaks.h>
#include <trireme/models/options.h>
#include <trireme/monitor/metrics.h>
#include <trireme/precision/options.h>
#include <trireme/train/task.h>

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>

namespace trireme::train {

/// What the matrix products of a training on a GPU are computed in; `tf32`: those of fp32 may be in TF32.
device::ProductType product_type(const precision::PrecisionOptions& precision, bool tf32);

/// What to say at the start of a training on a GPU whose products are fp32 or TF32: which, how to change it, and what
/// bf16 would gain where `peak` is known. "" for half types.
std::string describe_products(device::ProductType type, const std::optional<device::CardPeak>& peak);

/// Floating-point operations of matrix products and causal attention for a token, in forward and backward, without
/// recomputation: 6 for an element of a matrix, of which 2 are for its gradient, and 6 L H T for attention.
/// `trained`: share of the parameters that are trained, others have no gradient. A bert attends to all tokens: twice
/// the last term.
double operations_per_token(const models::TransformerShape& shape, double trained);

/// The speed of a run's steps, by the host's clock.
class StepSpeed {
 public:
  /// What the run computes, for mfu.
  struct Work {
    /// The model's shape, with its vocabulary; nullopt: unknown.
    std::optional<models::TransformerShape> shape;
    /// As for operations_per_token().
    double trained = 1;
    double tokens_of_step = 0;
    int64_t ranks = 1;
  };
  /// Compares steps with the peak of the GPU with this name, if the table has it; logs describe_products().
  void compare(const std::string& card, device::ProductType type, const Work& work);
  /// The same for the GPU of the engine; nothing on the CPU. `ranks`: of the whole run.
  void compare(const config::RunConfig& run, const Task& task, const engine::Engine& engine,
               const data::Datasets& datasets, int64_t ranks);
  /// A step begins now. What came before, as an evaluation, is not counted.
  void begin() { begin_ = Clock::now(); }
  /// A step ends and the next one begins: sets step_ms, tokens_per_s or samples_per_s, and mfu.
  void end(monitor::StepMetrics& metrics, double samples, double tokens_per_sample);

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
  std::optional<double> seconds_at_peak_; ///< of a step
};

/// The run's model for StepSpeed::Work; nullopt for one that does not read tokens. `tokenizer_size`: where the run file
/// leaves the vocabulary to the tokenizer.
std::optional<models::TransformerShape> computed_shape(const config::ModelConfig& model, int64_t tokenizer_size);

/// CUDA's name of the GPU; "" for other devices.
std::string card_name(c10::Device device);

} // namespace trireme::train
