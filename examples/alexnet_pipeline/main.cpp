// AlexNet as a list of layers, spread over the stages of a pipeline:
//   trireme launch -n 2 -- alexnet_pipeline
// Options: --cifar FOLDER (CIFAR-10's binary files) or --fashion FOLDER (data/fashion-mnist), --stages 2 (the ranks
// divided by it are data-parallel replicas), --steps 60, --schedule 1f1b (naive, gpipe, 1f1b, interleaved,
// zero-bubble), --partition parameters,
// --micro-batches 4, --micro 16, --resize 64 (pixels), --test 500 (images).
#include "../arguments.h"
#include "../per_rank.h"

#include <trireme/data/cifar10.h>
#include <trireme/data/idx_images.h>
#include <trireme/engine/peak_memory.h>
#include <trireme/models/alexnet_layers.h>
#include <trireme/trireme.h>

#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <numeric>

namespace {

namespace data = trireme::data;
namespace models = trireme::models;
namespace pipeline = trireme::pipeline;

struct Options {
  std::filesystem::path cifar, fashion;
  int steps, micro, micro_batches, test_images;
  models::AlexNetOptions model;
  pipeline::PipelineOptions pipeline;
};

Options read_options(int argc, char** argv) {
  Arguments arguments(argc, argv);
  Options out;
  out.cifar = arguments.text("--cifar");
  out.fashion = arguments.text("--fashion", "data/fashion-mnist");
  out.steps = arguments.whole("--steps", 60);
  out.micro = arguments.whole("--micro", 16);
  out.micro_batches = arguments.whole("--micro-batches", 4);
  out.test_images = arguments.whole("--test", 500);
  out.model.resize = arguments.whole("--resize", 64);
  out.model.channels = out.cifar.empty() ? 1 : data::Cifar10::kChannels;
  out.pipeline.stages = arguments.whole("--stages", 2);
  out.pipeline.schedule = pipeline::parse_schedule(arguments.text("--schedule", "1f1b"));
  out.pipeline.chunks = out.pipeline.schedule == pipeline::ScheduleKind::interleaved ? 2 : 1;
  out.pipeline.partition = arguments.text("--partition", "parameters");
  arguments.finish();
  return out;
}

std::shared_ptr<const data::Dataset> open_images(const Options& options, bool training) {
  if (!options.cifar.empty()) {
    data::Cifar10::Options cifar;
    cifar.files = training ? data::Cifar10::training_files(options.cifar) : data::Cifar10::test_files(options.cifar);
    return std::make_shared<data::Cifar10>(cifar);
  }
  const std::string name = training ? "train" : "t10k";
  data::IdxImages::Options fashion;
  fashion.images = {options.fashion / (name + "-images-idx3-ubyte")};
  fashion.labels = {options.fashion / (name + "-labels-idx1-ubyte")};
  fashion.mean = 0.286;
  fashion.std = 0.353;
  fashion.classes = options.model.classes;
  return std::make_shared<data::IdxImages>(fashion);
}

// The share of wrong labels is a mean over samples like a loss, so that every stage is told it.
at::Tensor share_of_wrong(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  return outputs.at(0).argmax(1).ne(targets.at(0)).to(at::kFloat).mean();
}

int run(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  auto world = trireme::World::connect();
  const bool talks = world.rank() == 0;

  // In evaluation the "loss" is the share of wrong labels; a loss is any function of outputs and targets.
  const auto evaluating = std::make_shared<bool>(false);
  const auto loss = [evaluating](const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
    return *evaluating ? share_of_wrong(outputs, targets) : models::label_loss(outputs, targets);
  };
  trireme::InitializeOptions needs;
  needs.pipeline =
      std::make_shared<pipeline::PipelineModule>(models::alexnet_layers(options.model), loss, options.pipeline);
  needs.config.batch.micro = options.micro;
  needs.config.batch.accumulation = options.micro_batches;
  needs.config.optimizer.emplace();
  std::get<trireme::optim::AdamOptions>(needs.config.optimizer->rule).lr = 3e-4;
  needs.training_data = open_images(options, true);
  std::vector<int64_t> first_samples(static_cast<size_t>(options.micro));
  std::iota(first_samples.begin(), first_samples.end(), 0);
  needs.pipeline->set_sample_inputs(
      needs.training_data->get_part(first_samples, data::Part::inputs).inputs); // for --partition profile
  const auto test_images = open_images(options, false);
  auto [engine, optimizer, loader, schedule] = trireme::initialize(world, needs);
  if (talks) {
    std::printf("%s\n", needs.training_data->describe().c_str());
  }

  double seconds = 0;
  for (int step = 1; step <= options.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const double value = engine->train_batch().item<double>(); // the same on every rank
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (talks && (step % 10 == 0 || step == 1 || step == options.steps)) {
      std::printf("step %d  loss %.4f  %.0f ms a step\n", step, value, 1e3 * seconds / step);
      std::fflush(stdout);
    }
  }

  *evaluating = true;
  data::SamplerOptions sampling;
  sampling.shuffle = false;
  sampling.rank = engine->group().rank();
  sampling.replicas = engine->group().size();
  data::DataLoader tests(test_images, data::DistributedSampler(test_images->size(), sampling), options.micro);
  const double wrong =
      engine->evaluate(tests, std::max(1, options.test_images / (options.micro * engine->group().size())));
  const auto busy = of_each_rank(world, seconds);
  const auto memory = of_each_rank(world, static_cast<double>(trireme::engine::peak_memory_bytes()) / (1 << 20));
  if (talks) {
    std::printf("accuracy on test images: %.1f %%\n", 100 * (1 - wrong));
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      std::printf("rank %zu: %.1f s of training, at most %.0f MB\n", rank, busy[rank], memory[rank]);
    }
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) try { return run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "alexnet_pipeline: %s\n", error.what());
  return 2;
}
