// DataParallel in a loop of one's own, on the simulated device: the CPU's bits.
#include "engine_case.h"

#include <tests/shards/data_parallel/toy.h>

#include <trireme/device/move.h>
#include <trireme/shards/data_parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>

namespace trireme::engine {
namespace {

using parallel::Toy;
using parallel::toy_batch;

Seen plain_loop(comm::World& world, at::Device device, bool batch_norm) {
  constexpr int64_t kRows = 12;
  Toy toy(1 + world.rank()); // other weights on every rank: construction hands out rank 0's
  torch::nn::Sequential model(torch::nn::Linear(6, 6));
  if (batch_norm) {
    model->push_back(torch::nn::BatchNorm1d(6));
  }
  toy->register_module("before", model);
  device::move(*toy, device); // Module::to() cannot change the kind of a device that libtorch does not know
  parallel::DataParallelOptions options = parallel::small_buckets();
  options.sync_batch_norm = batch_norm;
  parallel::DataParallel wrapped(*toy, world.group(), options);
  torch::optim::AdamW optimizer(toy->parameters(), torch::optim::AdamWOptions(0.01));
  Seen seen;
  const int64_t rows = kRows / world.size();
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const at::Tensor mine = toy_batch(step, kRows).slice(0, world.rank() * rows, (world.rank() + 1) * rows).to(device);
    const bool use_sometimes = step % 3 != 1; // a layer without gradients in this step
    const at::Tensor loss = toy->loss(model->forward(mine), use_sometimes);
    loss.backward();
    optimizer.step();
    seen.numbers.push_back(loss.item<double>());
  }
  for (const at::Tensor& parameter : toy->parameters()) {
    seen.weights.push_back(parameter.detach().cpu().clone());
  }
  for (const at::Tensor& buffer : toy->buffers()) {
    seen.weights.push_back(buffer.cpu().clone());
  }
  return seen;
}

TEST(SimDeviceDataParallel, AnOrdinaryLoop) {
  for (const int ranks : {1, 2, 3}) {
    on_both(ranks, [](comm::World& world, at::Device device) { return plain_loop(world, device, false); });
  }
}

TEST(SimDeviceDataParallel, BatchNormOverTheRanks) {
  on_both(2, [](comm::World& world, at::Device device) { return plain_loop(world, device, true); });
}

TEST(SimDeviceDataParallel, BackendsHaveTheirNames) {
  test::on_ranks(2, [](comm::World& world) {
    start();
    EXPECT_STREQ(world.group().backend(sim::device()), "") << "not open";
    world.group().open(sim::device());
    EXPECT_STREQ(world.group().backend(sim::device()), "staged");
    EXPECT_STREQ(world.group().backend(), "shm");
  });
}

} // namespace
} // namespace trireme::engine
