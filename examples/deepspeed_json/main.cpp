// An engine from a DeepSpeed configuration, with a model and data of one's own:
//   trireme launch -n 2 -- deepspeed_json examples/deepspeed_json/ds_config.json
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>

// y = sin(sum of x).
class Waves : public trireme::data::Dataset {
 public:
  int64_t size() const override { return 4096; }
  trireme::data::Batch get(std::span<const int64_t> indices) const override {
    const at::Tensor i =
        torch::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), torch::kFloat32).unsqueeze(1);
    const at::Tensor x = torch::sin(i * torch::arange(1, 9, torch::kFloat32));
    return {{x}, {torch::sin(x.sum(1, true))}, static_cast<int64_t>(indices.size())};
  }
  std::string describe() const override { return "waves"; }
};

int main(int argc, char** argv) try {
  auto world = trireme::World::connect();
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  trireme::InitializeOptions options;
  options.model = model.ptr();
  options.loss = [&](const trireme::data::Batch& batch) {
    return torch::mse_loss(model->forward(batch.input()), batch.target());
  };
  options.config = trireme::read_config(argc > 1 ? argv[1] : "examples/deepspeed_json/ds_config.json");
  options.training_data = std::make_shared<Waves>();
  auto [engine, optimizer, loader, schedule] = trireme::initialize(world, options);
  for (int step = 1; step <= 300; ++step) {
    const double loss = engine->train_batch().item<double>(); // the same on every rank
    if (world.rank() == 0 && step % 50 == 0) {
      std::printf("step %d  loss %.4f  lr %.2e\n", step, loss, engine->get_lr());
    }
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
