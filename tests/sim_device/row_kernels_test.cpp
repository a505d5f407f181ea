// The passes of fused/ on a device that has row kernels give the CPU's bits, in as few launches as they promise.
#include "child.h"

#include <trireme/fused/dropout.h>
#include <trireme/fused/fused.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

namespace trireme::sim {
namespace {

using at::Tensor;
using Pass = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

struct Case {
  const char* name;
  std::vector<std::vector<int64_t>> inputs;
  Pass pass;
  int64_t forward_launches; // of fp32; 0: not counted
  bool exact = true;        // else sums over rows are in another order
};

/// During its lifetime the default generator draws the same on each device. What the CPU's draws after it, too.
class SameNoise {
 public:
  explicit SameNoise(at::Device device) {
    at::Generator(at::globalContext().defaultGenerator(device)).set_current_seed(9);
  }
  ~SameNoise() { torch::manual_seed(4); }
  SameNoise(const SameNoise&) = delete;
};

std::vector<Case> cases() {
  const auto pair = [](const std::pair<Tensor, Tensor>& both) { return std::vector<Tensor>{both.first, both.second}; };
  const std::vector<int64_t> x{3, 5, 40}, c{40};
  return {
      {"bias_gelu",
       {x, c},
       [](const auto& in) { return std::vector<Tensor>{fused::bias_gelu(in[0], in[1], fused::Gelu::tanh)}; },
       1},
      {"erf",
       {x, c},
       [](const auto& in) { return std::vector<Tensor>{fused::bias_gelu(in[0], in[1], fused::Gelu::erf)}; },
       1},
      {"layer_norm",
       {x, c, c},
       [](const auto& in) { return std::vector<Tensor>{fused::layer_norm(in[0], in[1], in[2], 1e-5)}; },
       1},
      {"add_layer_norm",
       {x, x, c, c, c},
       [&](const auto& in) { return pair(fused::add_layer_norm(in[0], in[1], in[2], in[3], in[4], 1e-5)); },
       1},
      {"add_bias",
       {x, x, c},
       [](const auto& in) { return std::vector<Tensor>{fused::add_bias(in[0], in[1], in[2])}; },
       1},
      {"rms_norm", {x, c}, [](const auto& in) { return std::vector<Tensor>{fused::rms_norm(in[0], in[1], 1e-5)}; }, 1},
      {"add_rms_norm",
       {x, x, c},
       [&](const auto& in) { return pair(fused::add_rms_norm(in[0], in[1], in[2], 1e-5)); },
       1},
      {"rotate",
       {{2, 3, 5, 8}, {2, 1, 5, 8}, {5, 4}, {5, 4}},
       [&](const auto& in) { return pair(fused::rotate(in[0], in[1], in[2].detach(), in[3].detach())); },
       2},
      {"gated_silu", {x, x}, [](const auto& in) { return std::vector<Tensor>{fused::gated_silu(in[0], in[1])}; }, 1},
      {"dropout",
       {x},
       [](const auto& in) {
         const SameNoise same(in[0].device());
         return std::vector<Tensor>{fused::dropout(in[0], 0.3)};
       },
       2}, // the seed's is one
      {"add_dropout",
       {x, x},
       [](const auto& in) {
         const SameNoise same(in[0].device());
         return std::vector<Tensor>{fused::add_dropout(in[0], in[1], 0.3)};
       },
       2},
      {"cross_entropy",
       {{6, 50}},
       [](const auto& in) {
         const Tensor target = (torch::arange(6) * 7).index_fill_(0, torch::tensor({2}, at::kLong), -100);
         return std::vector<Tensor>{fused::cross_entropy(in[0], target.to(in[0].device()), at::Reduction::Mean)};
       },
       0,
       false},
  };
}

struct Result {
  std::vector<Tensor> all; // outputs, then gradients, on the CPU
  int64_t forward_launches = 0;
};

Result run(const Case& one, const at::Device& where, at::ScalarType type) {
  torch::manual_seed(3);
  std::vector<Tensor> leaves;
  for (const auto& sizes : one.inputs) {
    const Tensor values = torch::randn(sizes);
    const bool keeps = sizes == std::vector<int64_t>{5, 4}; // angles are fp32
    leaves.push_back(values.to(where, keeps ? at::kFloat : type).requires_grad_());
  }
  Result result;
  const int64_t before = where.is_cpu() ? 0 : launches(0);
  const std::vector<Tensor> outputs = one.pass(leaves);
  result.forward_launches = where.is_cpu() ? 0 : launches(0) - before;
  Tensor loss = torch::zeros({}, at::TensorOptions(at::kFloat).device(where));
  for (const Tensor& output : outputs) {
    result.all.push_back(output.detach().cpu());
    loss = loss + (output.to(at::kFloat) * torch::randn(output.sizes()).to(where)).sum();
  }
  loss.backward();
  for (const Tensor& leaf : leaves) {
    result.all.push_back(leaf.grad().defined() ? leaf.grad().cpu() : Tensor());
  }
  return result;
}

TEST(SimDeviceRowKernels, GiveTheBitsOfTheCpuInFewLaunches) {
  in_a_child([] {
    int64_t with_aten = 0, with_kernels = 0;
    for (const Case& one : cases()) {
      with_aten += run(one, device(), at::kFloat).forward_launches;
    }
    use_cpu_row_kernels();
    for (const Case& one : cases()) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(testing::Message() << one.name << ' ' << type);
        const Result expected = run(one, at::kCPU, type);
        const Result found = run(one, device(), type);
        ASSERT_EQ(found.all.size(), expected.all.size());
        for (size_t i = 0; i < found.all.size(); ++i) {
          ASSERT_EQ(found.all[i].defined(), expected.all[i].defined()) << "tensor " << i;
          const bool same = !found.all[i].defined() || (one.exact ? at::equal(found.all[i], expected.all[i])
                                                                  : at::allclose(found.all[i], expected.all[i], 1e-2));
          EXPECT_TRUE(same) << "tensor " << i;
        }
        if (type == at::kFloat && one.forward_launches > 0) { // in bf16 weights and biases are converted before
          EXPECT_EQ(found.forward_launches, one.forward_launches);
          with_kernels += found.forward_launches;
        }
      }
    }
    EXPECT_GE(with_aten, 2 * with_kernels) << with_kernels << " with kernels of our own";
    EXPECT_THAT(problems(), testing::IsEmpty());
  });
}

} // namespace
} // namespace trireme::sim
