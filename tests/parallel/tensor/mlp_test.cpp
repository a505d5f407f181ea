// SwiGLU whose features are split among ranks equals the formula in one process: outputs, gradients of the input and of
// every parameter.
#include <trireme/parallel/tensor/mlp.h>

#include <trireme/fused/fused.h>

#include "whole_and_parts.h"

#include <tests/support/run_ranks.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

namespace trireme::tensor {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

struct WholeMlp : torch::nn::Module {
  explicit WholeMlp(const ParallelMlpOptions& options) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.bias)));
    };
    gate = linear("gate_proj", options.hidden, options.intermediate);
    up = linear("up_proj", options.hidden, options.intermediate);
    down = linear("down_proj", options.intermediate, options.hidden);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor g = gate->forward(x);
    return down->forward(g * torch::sigmoid(g) * up->forward(x));
  }
  torch::nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};
};

void check_mlp(comm::World& world, const ParallelMlpOptions& options, bool sequence_parallel, at::ScalarType type) {
  at::set_num_threads(1);
  const Ranks ranks{world.group(), sequence_parallel};
  torch::manual_seed(7);
  WholeMlp whole(options);
  torch::manual_seed(7);
  ParallelMlp mine(options, ranks);
  for (const auto& item : mine->named_parameters()) {
    expect_part(item.value(), whole.named_parameters()[item.key()], *mine, item.key(), 0);
  }
  whole.to(type);
  mine->to(type);

  const double tolerance = type == at::kDouble ? 1e-10 : 1e-5;
  const at::Tensor x_whole = wave({2, 3 * world.size(), options.hidden}, type).set_requires_grad(true);
  const at::Tensor weights = wave(x_whole.sizes(), type).add(0.3);
  const at::Tensor expected = whole.forward(x_whole);
  (expected * weights).sum().backward();
  const auto part = [&](const at::Tensor& x) { return sequence_parallel ? x.chunk(world.size(), 1)[world.rank()] : x; };
  const at::Tensor x = part(x_whole.detach()).clone().set_requires_grad(true);
  const at::Tensor y = mine->forward(x);
  expect_close(y, part(expected), "output", tolerance);
  (y * part(weights)).sum().backward();
  expect_close(x.grad(), part(x_whole.grad()), "gradient of the input", tolerance);
  for (const auto& item : mine->named_parameters()) {
    const at::Tensor grad = item.value().grad().clone();
    if (sequence_parallel && item.key() == "down_proj.bias") { // each rank has the summand of its tokens
      world.group().all_reduce(grad).wait();
    }
    expect_part(grad, whole.named_parameters()[item.key()].grad(), *mine, item.key(), tolerance);
  }
}

// 10 features divide by 2 ranks alone.
TEST(TensorMlpTest, EqualsTheFormula) {
  for (const char* backend : {"shm", "gloo"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        for (const bool bias : {false, true}) {
          EXPECT_THAT(run_ranks(ranks,
                                [&](comm::World& world) {
                                  check_mlp(world, {.hidden = 6, .intermediate = 10, .bias = bias}, sequence_parallel,
                                            at::kDouble);
                                },
                                {.backend = backend}),
                      IsEmpty())
              << ranks << " ranks, " << backend << ", sequence_parallel " << sequence_parallel << ", bias " << bias;
        }
      }
    }
  }
  on_ranks(2, [&](comm::World& world) { check_mlp(world, {.hidden = 6, .intermediate = 10}, true, at::kFloat); });
}

TEST(TensorMlpTest, GateAndUpExchangeTheirInputOnce) {
  on_ranks(4, [](comm::World& world) {
    const comm::Group ranks = world.group();
    for (const bool sequence_parallel : {false, true}) {
      ParallelMlp mlp(ParallelMlpOptions{.hidden = 16, .intermediate = 32}, Ranks{ranks, sequence_parallel});
      const at::Tensor x = torch::ones({2, sequence_parallel ? 2 : 8, 16}).set_requires_grad(true);
      const int64_t P = 2 * 8 * 16 * 4 * 3 / 4; // a gather, or a reduce-scatter; a sum is two
      const int64_t before = ranks.bytes_sent();
      const at::Tensor y = mlp->forward(x);
      const int64_t between = ranks.bytes_sent();
      y.sum().backward();
      EXPECT_EQ(between - before, 2 * P) << sequence_parallel;
      EXPECT_EQ(ranks.bytes_sent() - between, sequence_parallel ? 3 * P : 2 * P)
          << "sequence_parallel gathers x again: " << sequence_parallel;
    }
  });
}

TEST(TensorMlpTest, SizesThatDoNotFitAreRefused) {
  EXPECT_THAT([] { ParallelMlp(ParallelMlpOptions{.hidden = 4}); },
              ThrowsMessage<InputError>(HasSubstr("an MLP of hidden 4 and intermediate 0")));
  on_ranks(3, [](comm::World& world) {
    EXPECT_THAT([&] { ParallelMlp(ParallelMlpOptions{.hidden = 4, .intermediate = 2}, Ranks{world.group()}); },
                ThrowsMessage<InputError>(HasSubstr("a layer has 2 outputs, fewer than the 3 tensor-parallel ranks")));
  });
}

TEST(TensorMlpTest, TheDerivativeOfADerivativeIsRefused) {
  const at::Tensor x = torch::ones({3}).set_requires_grad(true);
  const at::Tensor y = fused::gated_silu(x, x).sum();
  EXPECT_THAT([&] { torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true); },
              ThrowsMessage<Error>(HasSubstr("create_graph")));
}

} // namespace
} // namespace trireme::tensor
