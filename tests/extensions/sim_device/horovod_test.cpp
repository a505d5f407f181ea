// Horovod's exchange uses a stream of its own: on the simulated device the results are the CPU's, without a race.
#include <tests/sim_device/engine_case.h>

#include <trireme/device/move.h>
#include <trireme/horovod.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

namespace trireme::engine {
namespace {

using test::run_ranks;
using testing::IsEmpty;
namespace hvd = horovod;

TEST(SimDeviceHorovod, TrainsAsOnTheCpu) {
  on_both(3, [](comm::World& world, at::Device device) {
    hvd::init(world);
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
    device::move(*net, device);
    hvd::broadcast_parameters(net->named_parameters(), 0);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    Seen seen;
    {
      hvd::DistributedOptimizer optimizer(sgd, net->named_parameters());
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const at::Tensor x =
            torch::sin(torch::arange(32, torch::kFloat32).reshape({8, 4}) * (1.0 + step) + 3.0 * world.rank())
                .to(device);
        net->forward(x).square().mean().backward();
        optimizer.step();
      }
    }
    for (const at::Tensor& parameter : net->parameters()) {
      seen.weights.push_back(parameter.detach().cpu().clone());
    }
    hvd::shutdown();
    return seen;
  });
}

TEST(SimDeviceHorovod, EveryOperation) {
  on_both(2, [](comm::World& world, at::Device device) {
    hvd::init(world);
    Seen seen;
    const at::Tensor x = torch::arange(12, torch::kFloat32).view({6, 2}).to(device) * (1.5 + world.rank());
    const auto add = [&](const at::Tensor& result) { seen.weights.push_back(result.cpu().clone()); };
    for (const hvd::Op op :
         {hvd::Op::average, hvd::Op::sum, hvd::Op::min, hvd::Op::max, hvd::Op::product, hvd::Op::adasum}) {
      add(hvd::allreduce(x + 1, {.op = op}) + 1); // used at once, on the caller's stream
    }
    add(hvd::allgather(x.slice(0, 0, 1 + world.rank())) * 2);
    add(hvd::broadcast(x, 1) * 2);
    add(hvd::alltoall(x).first * 2);
    add(hvd::reducescatter(x) * 2);
    for (int batch = 0; batch < 1 + world.rank(); ++batch) {
      add(hvd::allreduce(x * (batch + 1)));
    }
    hvd::join();
    hvd::shutdown();
    return seen;
  });
}

} // namespace
} // namespace trireme::engine
