// The README's lines in a stranger's project.
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>

int main() {
  auto world = trireme::World::connect();
  trireme::manual_seed(1, world);
  torch::nn::Linear model(4, 1);
  model->to(world.device());
  trireme::DataParallel parallel(*model, world.group(), trireme::DataParallelOptions());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  trireme::TorchSampler sampler(100, world);
  sampler.reset();
  while (auto batch = sampler.next(10)) {
    optimizer.zero_grad();
    model->forward(torch::ones({10, 4}, world.device())).pow(2).mean().backward();
    optimizer.step();
  }
  std::printf("rank %d of %d: %.6f\n", world.rank(), world.size(), model->weight.abs().sum().item<double>());
}
