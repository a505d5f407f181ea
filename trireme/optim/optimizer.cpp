#include <trireme/optim/optimizer.h>

#include <trireme/base/error.h>
#include <trireme/kernels/kernels.h>
#include <trireme/optim/adagrad.h>
#include <trireme/optim/adam.h>
#include <trireme/optim/lamb.h>
#include <trireme/optim/lion.h>
#include <trireme/optim/parallel_blocks.h>
#include <trireme/optim/rmsprop.h>
#include <trireme/optim/sgd.h>
#include <trireme/optim/shard_check.h>

#include <ATen/Functions.h>

namespace trireme::optim {
namespace {

static_assert(kStateBlock == kernels::kStateBlock);
static_assert(kBlock % kStateBlock == 0, "threads get whole blocks of 8-bit states");

kernels::StateArray codes_and_scales(const at::Tensor& codes, const at::Tensor& scales) {
  return {codes.mutable_data_ptr(), kernels::Element::u8, scales.mutable_data_ptr<float>()};
}

} // namespace

void Optimizer::prepare(const ShardStep&, std::span<double>) const {
  throw Error("optim", concat(name(), ": a step has one phase, prepare() is for those that need norms."));
}

at::ScalarType scalar_type(StateType type) {
  return type == StateType::bf16 ? at::kBFloat16 : type == StateType::int8 ? at::kByte : at::kFloat;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  using Kind = OptimizerOptions::Kind;
  switch (options.kind) {
    case Kind::sgd:
      return std::make_unique<Sgd>(options.sgd, options.state_type);
    case Kind::lamb:
      return std::make_unique<Lamb>(options.lamb, options.state_type);
    case Kind::lion:
      return std::make_unique<Lion>(options.lion, options.state_type);
    case Kind::adagrad:
      return std::make_unique<Adagrad>(options.adagrad, options.state_type);
    case Kind::rmsprop:
      return std::make_unique<Rmsprop>(options.rmsprop, options.state_type);
    case Kind::adam:
      break;
  }
  return std::make_unique<Adam>(options.adam, options.state_type);
}

double squared_norm(const at::Tensor& grad) {
  check_flat(grad, "squared_norm: grad", {at::kFloat, at::kBFloat16, at::kHalf});
  const int64_t n = grad.numel();
  const auto* data = static_cast<const char*>(grad.const_data_ptr());
  const auto bytes = static_cast<int64_t>(grad.element_size());
  const kernels::Element type = element_of(grad.scalar_type());
  const auto& kernels = kernels::active_kernels();
  std::vector<double> sums((n + kBlock - 1) / kBlock);
  parallel_ranges(n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBlock) {
      sums[i / kBlock] = kernels.squared_norm(data + i * bytes, type, std::min(kBlock, end - i));
    }
  });
  double sum = 0;
  for (double block : sums) {
    sum += block;
  }
  return sum;
}

at::Tensor decode_states(const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  at::Tensor values = at::empty({codes.numel()}, at::kFloat);
  float* const to = values.mutable_data_ptr<float>();
  const auto& kernels = kernels::active_kernels();
  const kernels::StateArray state = codes_and_scales(codes, scales);
  parallel_ranges(codes.numel(), [&](int64_t begin, int64_t end) { kernels.decode_state(state, is_signed, begin, end, to + begin); });
  return values;
}

void encode_states(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  const float* const from = values.const_data_ptr<float>();
  const auto& kernels = kernels::active_kernels();
  const kernels::StateArray state = codes_and_scales(codes, scales);
  parallel_ranges(codes.numel(), [&](int64_t begin, int64_t end) { kernels.encode_state(state, is_signed, begin, end, from + begin, kernels::kToNearest); });
}

} // namespace trireme::optim
