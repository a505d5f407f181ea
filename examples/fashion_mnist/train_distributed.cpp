// The ordinary libtorch program beside this file on several ranks:
//   trireme launch -n 2 -- fashion_mnist_distributed data/fashion-mnist [epochs]
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <cstdio>
#include <cstdlib>

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(32 * 7 * 7, 128))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(128, 10))};

  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }
};
TORCH_MODULE(Net);

template <typename Loader>
double accuracy(Net& model, Loader& loader, torch::Device device) {
  torch::NoGradGuard no_grad;
  int64_t right = 0, seen = 0;
  for (auto& batch : loader) {
    const at::Tensor choice = model(batch.data.to(device)).argmax(1);
    right += choice.eq(batch.target.to(device)).sum().template item<int64_t>();
    seen += batch.target.size(0);
  }
  return static_cast<double>(right) / static_cast<double>(seen);
}

int main(int argc, char** argv) try {
  auto world = trireme::World::connect();
  using namespace torch::data;
  const std::string folder = argc > 1 ? argv[1] : "data/fashion-mnist";
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 3;
  torch::manual_seed(1);
  const torch::Device device = world.device();
  Net model;
  model->to(device);
  trireme::DataParallel parallel(*model, world.group());
  auto train = datasets::MNIST(folder).map(transforms::Normalize<>(0.286, 0.353)).map(transforms::Stack<>());
  auto test = datasets::MNIST(folder, datasets::MNIST::Mode::kTest).map(transforms::Normalize<>(0.286, 0.353)).map(transforms::Stack<>());
  const size_t train_size = train.size().value();
  auto loader = make_data_loader(std::move(train), trireme::TorchSampler(train_size, world), /*batch_size=*/64);
  auto test_loader = make_data_loader<samplers::SequentialSampler>(std::move(test), /*batch_size=*/500);

  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model(batch.data.to(device)), batch.target.to(device)).backward();
      optimizer.step();
    }
    if (world.rank() == 0) std::printf("epoch %d: test accuracy %.2f %%\n", epoch, 100 * accuracy(model, *test_loader, device));
    std::fflush(stdout);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
