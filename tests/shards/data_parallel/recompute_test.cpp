#include "toy.h"

#include <trireme/memory/recompute/recompute.h>
#include <trireme/shards/data_parallel/data_parallel.h>

#include <tests/support/run_ranks.h>

#include <torch/nn/modules/activation.h>

#include <gmock/gmock.h>

namespace trireme::parallel {
namespace {

// Both halves of the model run a second time in backward, each in a backward of its own: the reduction must
// wait for the outermost one.
std::vector<at::Tensor> gradients(comm::World& world, bool recomputed, int64_t& bytes) {
  torch::manual_seed(1);
  torch::nn::Sequential lower(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 9));
  torch::nn::Sequential upper(torch::nn::Tanh(), torch::nn::Linear(9, 9), torch::nn::Linear(9, 1));
  torch::nn::Module model;
  model.register_module("lower", lower);
  model.register_module("upper", upper);
  DataParallelOptions options;
  options.op = DataParallelOptions::Op::sum; // a mean would hide that a bucket went twice
  options.bucket_bytes = 300;
  options.first_bucket_bytes = 64;
  DataParallel parallel(model, world.group(), options);
  const int64_t before = world.group().bytes_sent();
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 3; ++step) {
    parallel.zero_grad();
    at::Tensor x = toy_batch(step * 10 + world.rank(), 4);
    for (torch::nn::Sequential half : {lower, upper}) {
      x = recomputed ? recompute::call([half](const at::Tensor& y) mutable { return half->forward(y); }, x)
                     : half->forward(x);
    }
    x.square().mean().backward();
    for (const at::Tensor& parameter : model.parameters()) {
      seen.push_back(parameter.grad().clone());
    }
  }
  bytes = world.group().bytes_sent() - before;
  return seen;
}

TEST(DataParallelRecomputeTest, GradientsKeepTheirBits) {
  test::on_ranks(2, [](comm::World& world) {
    int64_t bytes = 0;
    int64_t recomputed_bytes = 0;
    const auto plain = gradients(world, false, bytes);
    const auto recomputed = gradients(world, true, recomputed_bytes);
    EXPECT_EQ(bytes, recomputed_bytes);
    ASSERT_EQ(plain.size(), 24u);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(plain[i].equal(recomputed[i])) << "gradient " << i;
      EXPECT_GT(plain[i].abs().sum().item<float>(), 0);
    }
  });
}

} // namespace
} // namespace trireme::parallel
