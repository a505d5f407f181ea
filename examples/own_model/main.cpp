// Trains models and data of its own as `trireme train` does: own_model train run.json -n 2. docs/own_model.md explains
// it.
#include <trireme/data/from_torch.h>
#include <trireme/data/from_torch_loader.h>
#include <trireme/data/torch_sampler.h>
#include <trireme/train/train_main.h>

#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace {

using trireme::data::Batch;

// Points of two spirals: 0 or 1, the same in every process.
std::pair<at::Tensor, at::Tensor> spirals(int64_t samples, double turns) {
  const at::Tensor number = torch::arange(samples);
  const at::Tensor spiral = number.remainder(2);
  const at::Tensor radius = (number + 1) / static_cast<double>(samples);
  const at::Tensor angle = radius * (turns * 6.2832) + spiral * 3.1416;
  return {torch::stack({radius * angle.cos(), radius * angle.sin()}, 1), spiral};
}

class Spirals : public torch::data::datasets::Dataset<Spirals> {
 public:
  Spirals(int64_t samples, double turns) : points_(spirals(samples, turns)) {}
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {points_.first[i], points_.second[i]};
  }
  std::optional<size_t> size() const override { return points_.first.size(0); }

 private:
  std::pair<at::Tensor, at::Tensor> points_;
};

// "model": {"type": "mlp", "width": 32}: a model in one piece.
trireme::ModelType mlp(trireme::Keys& keys) {
  const int64_t width = keys.at_least(1, "width", 32);
  return [width](const trireme::ModelContext&) {
    torch::nn::Sequential net(torch::nn::Linear(2, width), torch::nn::Functional(torch::tanh),
                              torch::nn::Linear(width, 2));
    return trireme::train::Model{.module = net.ptr(),
                                 .loss =
                                     [net](const Batch& batch) mutable {
                                       return torch::cross_entropy_loss(net->forward(batch.input()), batch.target());
                                     },
                                 .loss_unit = "nats",
                                 .count_right =
                                     [net](const Batch& batch) mutable {
                                       const at::Tensor chosen = net->forward(batch.input()).argmax(1);
                                       return chosen.eq(batch.target()).narrow(0, 0, batch.samples).sum();
                                     }};
  };
}

// "model": {"type": "deep_mlp", "width": 32, "depth": 4}: a list of layers, which a pipeline can spread over stages.
trireme::ModelType deep_mlp(trireme::Keys& keys) {
  const int64_t width = keys.at_least(1, "width", 32);
  const int64_t depth = keys.at_least(1, "depth", 4);
  trireme::ModelType type = [width, depth](const trireme::ModelContext&) {
    trireme::pipeline::LayerList layers;
    for (int64_t i = 0; i < depth; ++i) {
      layers.push_back(trireme::pipeline::LayerSpec<torch::nn::Linear>(i == 0 ? 2 : width, width));
      layers.push_back(trireme::pipeline::LayerList([](at::Tensor x) { return x.tanh(); }));
    }
    layers.push_back(trireme::pipeline::LayerSpec<torch::nn::Linear>(width, 2));
    return trireme::train::Layers{
        .layers = layers,
        .loss =
            [](const trireme::pipeline::Tensors& outputs, const trireme::pipeline::Tensors& targets) {
              return torch::cross_entropy_loss(outputs.at(0), targets.at(0));
            },
        .loss_unit = "nats"};
  };
  type.describe = [width, depth](const trireme::estimate::Conditions& with) {
    trireme::estimate::Model model;
    for (int64_t i = 0; i <= depth; ++i) {
      const int64_t in = i == 0 ? 2 : width, out = i == depth ? 2 : width;
      trireme::estimate::Layer linear{
          std::to_string(2 * i), "Linear", {{.name = "weight", .numel = in * out}, {.name = "bias", .numel = out}}};
      linear.kept = 4 * with.samples * in; // bytes that its backward needs
      model.layers.push_back(linear);
      if (i < depth) {
        model.layers.push_back({.name = std::to_string(2 * i + 1), .type = "function", .kept = 4 * with.samples * out});
      }
    }
    return model;
  };
  return type;
}

// "data": {"type": "spirals", "samples": 512, "turns": 1.5}: the engine's loader shuffles and divides it.
trireme::Registry::MakeData spirals_data(trireme::Keys& keys) {
  const int64_t samples = keys.at_least(2, "samples", 512);
  const double turns = keys.get("turns", 1.5);
  return [samples, turns](const trireme::DataContext&) {
    return trireme::data::Datasets{.train = trireme::data::from_torch(Spirals(samples, turns)),
                                   .validation = trireme::data::from_torch(Spirals(samples / 2, turns))};
  };
}

// "data": {"type": "spirals_by_torch"}: a loader of torch::data, started anew when it ends.
trireme::Registry::MakeData spirals_by_torch(trireme::Keys& keys) {
  const int64_t samples = keys.at_least(2, "samples", 512);
  const int64_t workers = keys.at_least(0, "workers", 0);
  return [samples, workers](const trireme::DataContext& with) {
    trireme::data::TorchSampler sampler(samples, with.rank, with.replicas);
    auto loader = torch::data::make_data_loader(Spirals(samples, 1.5), sampler,
                                                torch::data::DataLoaderOptions(static_cast<size_t>(with.micro_batch))
                                                    .workers(static_cast<size_t>(workers))
                                                    .drop_last(true));
    auto epochs = trireme::data::from_torch_loader(
        std::move(loader), {.set_epoch = [sampler](int64_t epoch) mutable { sampler.set_epoch(epoch); },
                            .name = "spirals by torch::data",
                            .rank = with.world.rank()});
    return trireme::data::Datasets{.loader = std::make_shared<trireme::data::RepeatingLoader>(std::move(epochs))};
  };
}

} // namespace

int main(int argc, char** argv) {
  trireme::Registry registry;
  registry.model("mlp", mlp);
  registry.model("deep_mlp", deep_mlp);
  registry.data("spirals", spirals_data);
  registry.data("spirals_by_torch", spirals_by_torch);
  return trireme::train_main(argc, argv, registry);
}
