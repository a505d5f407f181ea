// The training loop a libtorch user writes: Trireme's model, torch's optimizer, backward(), in one process ("engine":
// "raw"), or in several with DataParallel ("parallel") or Horovod's interface ("horovod"). Usage: benchmark_raw_loop
// SPEC, where SPEC is the JSON object that benchmarks/workloads.py makes; ranks find each other by RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT. Prints one JSON line: step_ms, ended (seconds at the end of each step), losses,
// peak_rss_bytes.
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/comm/world.h>
#include <trireme/horovod.h>
#include <trireme/models/gpt.h>
#include <trireme/monitor/resources.h>
#include <trireme/shards/data_parallel/data_parallel.h>

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace {

constexpr double kLearningRate = 3e-4;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.95;
constexpr double kEpsilon = 1e-8;
constexpr double kWeightDecay = 0.1;

struct Spec {
  std::filesystem::path tokens;
  std::string engine;    // "raw", "parallel", "horovod"
  std::string optimizer; // "adamw": torch::optim::AdamW; "fused": at::_fused_adamw_
  int64_t steps, micro, accumulate, ranks;
  int threads;
  trireme::models::GptOptions model;
};

Spec read_spec(const char* text) {
  const auto json = nlohmann::json::parse(text);
  Spec spec;
  spec.tokens = json.at("tokens").get<std::string>();
  spec.engine = json.at("engine");
  spec.optimizer = json.at("optimizer");
  spec.steps = json.at("steps");
  spec.micro = json.at("micro");
  spec.accumulate = json.at("accumulate");
  spec.ranks = json.at("ranks");
  spec.threads = json.at("threads");
  spec.model.layers = json.at("layers");
  spec.model.hidden = json.at("hidden");
  spec.model.heads = json.at("heads");
  spec.model.sequence_length = json.at("length");
  spec.model.vocab_size = json.at("vocab");
  spec.model.tie_embeddings = json.value("tie", true);
  spec.model.seed = json.at("seed");
  return spec;
}

struct MicroBatch {
  at::Tensor input_BT, target_BT;
};

// Sample i is tokens [i*L, i*L+L], and rank r takes every ranks-th, from r on; all of them are made before the clock
// starts.
std::vector<MicroBatch> read_batches(const Spec& spec, int64_t rank) {
  const int64_t length = spec.model.sequence_length;
  const int64_t count = spec.steps * spec.accumulate;
  std::string bytes = trireme::read_file(spec.tokens);
  if (static_cast<int64_t>(bytes.size() / 2) < count * spec.micro * spec.ranks * length + 1) {
    throw trireme::InputError("raw_loop",
                              trireme::concat(spec.tokens.string(), " has too few tokens for ", spec.steps, " steps"));
  }
  const auto tokens =
      torch::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size() / 2)}, torch::kUInt16).to(torch::kInt64);
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * spec.micro * spec.ranks * length;
    const int64_t end = begin + spec.micro * spec.ranks * length;
    const auto mine = [&](int64_t shift) {
      return tokens.slice(0, begin + shift, end + shift)
          .view({spec.micro, spec.ranks, length})
          .select(1, rank)
          .contiguous();
    };
    batches.push_back({mine(0), mine(1)});
  }
  return batches;
}

// What torch::optim would do if it had Python's fused=True: one call over all parameters.
class FusedAdamW : public torch::optim::Optimizer {
 public:
  explicit FusedAdamW(std::vector<at::Tensor> parameters)
      : torch::optim::Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                                std::make_unique<torch::optim::AdamWOptions>(kLearningRate)),
        parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) {
      exp_avg_.push_back(torch::zeros_like(parameter));
      exp_avg_sq_.push_back(torch::zeros_like(parameter));
      step_.push_back(torch::zeros({}, torch::kFloat));
    }
  }
  at::Tensor step(LossClosure) override {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) {
      gradients.push_back(parameter.grad());
    }
    at::_foreach_add_(step_, 1);
    at::_fused_adamw_(parameters_, gradients, exp_avg_, exp_avg_sq_, {}, step_, kLearningRate, kBeta1, kBeta2,
                      kWeightDecay, kEpsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
    return {};
  }

 private:
  std::vector<at::Tensor> parameters_, exp_avg_, exp_avg_sq_, step_;
};

int train(const Spec& spec) {
  at::set_num_threads(spec.threads);
  trireme::models::Gpt model(spec.model);
  model->train();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (spec.optimizer == "fused") {
    optimizer = std::make_unique<FusedAdamW>(model->parameters());
  } else {
    const auto options =
        torch::optim::AdamWOptions(kLearningRate).betas({kBeta1, kBeta2}).eps(kEpsilon).weight_decay(kWeightDecay);
    optimizer = std::make_unique<torch::optim::AdamW>(model->parameters(), options);
  }
  std::optional<trireme::comm::World> world;
  std::optional<trireme::parallel::DataParallel> parallel;
  std::optional<trireme::horovod::DistributedOptimizer> distributed;
  if (spec.engine != "raw") {
    world.emplace(trireme::comm::World::connect());
  }
  if (spec.engine == "parallel") {
    parallel.emplace(*model, world->group());
  } else if (spec.engine == "horovod") {
    trireme::horovod::init(*world);
    trireme::horovod::broadcast_parameters(model->named_parameters(), 0);
    trireme::horovod::DistributedOptimizerOptions options;
    options.backward_passes_per_step = spec.accumulate;
    distributed.emplace(*optimizer, model->named_parameters(), options);
  }
  const std::vector<MicroBatch> batches = read_batches(spec, world ? world->rank() : 0);

  std::vector<double> step_ms, ended, losses;
  for (int64_t step = 0; step < spec.steps; ++step) {
    const double start = trireme::monitor::monotonic_seconds();
    double sum = 0;
    for (int64_t i = 0; i < spec.accumulate; ++i) {
      const MicroBatch& batch = batches[static_cast<size_t>(step * spec.accumulate + i)];
      std::optional<trireme::parallel::DataParallel::NoSync> local;
      if (parallel && i + 1 < spec.accumulate) {
        local.emplace(*parallel);
      }
      const at::Tensor loss = model->loss(batch.input_BT, batch.target_BT);
      (spec.accumulate == 1 ? loss : loss / spec.accumulate).backward();
      sum += loss.item<double>();
    }
    distributed ? distributed->step() : static_cast<void>(optimizer->step(nullptr));
    parallel ? parallel->zero_grad() : model->zero_grad(/*set_to_none=*/true);
    ended.push_back(trireme::monitor::monotonic_seconds());
    step_ms.push_back((ended.back() - start) * 1e3);
    losses.push_back(sum / static_cast<double>(spec.accumulate));
  }
  const nlohmann::json row{{"step_ms", step_ms},
                           {"ended", ended},
                           {"losses", losses},
                           {"peak_rss_bytes", trireme::monitor::peak_rss_bytes()}};
  std::printf("%s\n", row.dump().c_str());
  distributed.reset();
  trireme::horovod::shutdown();
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) {
      throw trireme::InputError("raw_loop",
                                "one argument is needed: the JSON object that benchmarks/workloads.py makes.",
                                "Start it with benchmarks/run train --engines raw.");
    }
    return train(read_spec(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "benchmark_raw_loop: %s\n", error.what());
    return 2;
  }
}
