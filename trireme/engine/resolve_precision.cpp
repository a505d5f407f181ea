#include <trireme/engine/resolve_precision.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/precision/half_products.h>

#include <torch/utils.h>

#include <cmath>

namespace trireme::engine {
namespace {

using precision::Type;

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

void resolve_precision(precision::PrecisionOptions& precision, const comm::Group& everyone, at::Device device,
                       const std::optional<std::filesystem::path>& resumed,
                       const std::function<models::StepSeconds(at::Device)>& measure) {
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
    const models::StepSeconds mine = measure(device);
    at::Tensor all = torch::tensor({mine.fp32, mine.bf16}, torch::kFloat64);
    everyone.all_reduce(all, comm::ReduceOp::sum, "seconds in fp32 and bf16").wait();
    const models::StepSeconds sum{all[0].item<double>(), all[1].item<double>()};
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
