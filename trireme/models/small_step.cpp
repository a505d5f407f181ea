#include <trireme/models/small_step.h>

#include <trireme/device/move.h>
#include <trireme/device/stream.h>
#include <trireme/memory/recompute/state.h>
#include <trireme/models/gpt.h>
#include <trireme/precision/cast.h>

#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace trireme::models {
namespace {

using precision::Type;

constexpr int64_t kHidden = 256;
constexpr int64_t kMostHidden = 4096;
constexpr double kLaunchesAreHidden = 0.005; // seconds of a step
// Of a measurement, whose best step counts: each start of a run waits for it.
constexpr double kEnoughSeconds = 0.25;
constexpr int kLeastRounds = 5;

Gpt small_gpt(Type type, int64_t hidden, at::Device device) {
  GptOptions options;
  options.layers = 1;
  options.hidden = hidden;
  const ModelRanks alone; // as a default argument it makes gcc 12 warn
  Gpt model(options, alone);
  precision::cast_module(*model, type);
  device::move(*model, device);
  return model;
}

double time_step(Gpt& model, const at::Tensor& tokens) {
  const auto start = std::chrono::steady_clock::now();
  model->loss(tokens, tokens).backward();
  device::Event done(tokens.device().type());
  done.record(device::current_stream(tokens.device()));
  done.synchronize();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  model->zero_grad();
  return taken.count();
}

} // namespace

StepSeconds time_small_gpt(at::Device device) {
  const recompute::RandomGuard random(recompute::RandomState::of({}));
  const at::AutoGradMode with_gradients(true);
  const at::Tensor tokens = torch::arange(2 * 128).reshape({2, 128}).to(device);
  int64_t hidden = kHidden;
  Gpt fp32 = small_gpt(Type::fp32, hidden, device);
  time_step(fp32, tokens); // compiles the kernels
  while (!device.is_cpu() && hidden < kMostHidden && time_step(fp32, tokens) < kLaunchesAreHidden) {
    hidden *= 2;
    fp32 = small_gpt(Type::fp32, hidden, device);
    time_step(fp32, tokens);
  }
  Gpt bf16 = small_gpt(Type::bf16, hidden, device);
  time_step(bf16, tokens);
  StepSeconds best{std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
  double spent = 0;
  for (int round = 0; round < kLeastRounds || spent < kEnoughSeconds; ++round) {
    const StepSeconds now{time_step(fp32, tokens), time_step(bf16, tokens)};
    best = {std::min(best.fp32, now.fp32), std::min(best.bf16, now.bf16)};
    spent += now.fp32 + now.bf16;
  }
  return best;
}

} // namespace trireme::models
