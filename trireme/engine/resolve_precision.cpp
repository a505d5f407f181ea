#include <trireme/engine/resolve_precision.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/device/move.h>
#include <trireme/device/stream.h>
#include <trireme/engine/stopwatch.h>
#include <trireme/memory/recompute/state.h>
#include <trireme/models/gpt.h>
#include <trireme/precision/cast.h>
#include <trireme/precision/half_products.h>

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::engine {
namespace {

using precision::Type;

constexpr int64_t kHidden = 256;
constexpr int64_t kMostHidden = 4096;
constexpr double kLaunchesAreHidden = 0.005; // seconds of a step
// Of a measurement, whose best step counts: each start of a run waits for it.
constexpr double kEnoughSeconds = 0.25;
constexpr int kLeastRounds = 5;

models::Gpt small_gpt(Type type, int64_t hidden, at::Device device) {
  models::GptOptions options;
  options.layers = 1;
  options.hidden = hidden;
  const models::ModelRanks alone; // as a default argument it makes gcc 12 warn
  models::Gpt model(options, alone);
  precision::cast_module(*model, type);
  device::move(*model, device);
  return model;
}

double time_step(models::Gpt& model, const at::Tensor& tokens) {
  double seconds = 0;
  {
    const Stopwatch watch(seconds);
    model->loss(tokens, tokens).backward();
    device::Event done(tokens.device().type());
    done.record(device::current_stream(tokens.device()));
    done.synchronize();
  }
  model->zero_grad();
  return seconds;
}

enum class Saved { nothing, fp32, bf16 };

// Returns nothing for a checkpoint that cannot be read; the load reports the error.
Saved type_saved_in(const std::filesystem::path& path) {
  try {
    checkpoint::OpenOptions quick;
    quick.verify_hashes = false;
    const auto saved = checkpoint::Checkpoint::open(path, "", quick);
    for (const std::string& name : saved.names("parameter")) {
      if (saved.entry(name).dtype == "BF16") {
        return Saved::bf16;
      }
    }
    return Saved::fp32;
  } catch (const Error&) {
    return Saved::nothing;
  }
}

} // namespace

StepSeconds time_small_gpt(at::Device device) {
  const recompute::RandomGuard random(recompute::RandomState::of({}));
  const at::AutoGradMode with_gradients(true);
  const at::Tensor tokens = torch::arange(2 * 128).reshape({2, 128}).to(device);
  int64_t hidden = kHidden;
  models::Gpt fp32 = small_gpt(Type::fp32, hidden, device);
  time_step(fp32, tokens); // compiles the kernels
  while (!device.is_cpu() && hidden < kMostHidden && time_step(fp32, tokens) < kLaunchesAreHidden) {
    hidden *= 2;
    fp32 = small_gpt(Type::fp32, hidden, device);
    time_step(fp32, tokens);
  }
  models::Gpt bf16 = small_gpt(Type::bf16, hidden, device);
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

void resolve_precision(precision::PrecisionOptions& precision, const comm::Group& everyone, at::Device device,
                       const std::optional<std::filesystem::path>& resumed,
                       const std::function<StepSeconds(at::Device)>& measure) {
  precision::multiply_halves_in_fp32(); // on a GPU too: what is left on the CPU has one result in every process
  if (!precision.bf16_if_faster) {
    return;
  }
  at::Tensor found =
      torch::tensor({static_cast<int64_t>(resumed && everyone.rank() == 0 ? type_saved_in(*resumed) : Saved::nothing)});
  everyone.broadcast(found, 0, "type of the checkpoint").wait();
  const auto saved = static_cast<Saved>(found.item<int64_t>());
  std::string why = "as in the checkpoint";
  bool use_bf16 = saved == Saved::bf16;
  if (saved == Saved::nothing) {
    const StepSeconds mine = measure(device);
    at::Tensor all = torch::tensor({mine.fp32, mine.bf16}, torch::kFloat64);
    everyone.all_reduce(all, comm::ReduceOp::sum, "seconds in fp32 and bf16").wait();
    const StepSeconds sum{all[0].item<double>(), all[1].item<double>()};
    use_bf16 = sum.bf16_is_faster();
    why = concat("bf16 takes ", std::lround(100 * sum.bf16 / sum.fp32), " % of the time of fp32");
  }
  precision.compute = use_bf16 ? Type::bf16 : Type::fp32;
  precision.bf16_if_faster = false;
  if (everyone.rank() == 0) {
    log::info("bf16 \"auto\": ", precision::type_name(precision.compute), ", ", why);
  }
}

} // namespace trireme::engine
