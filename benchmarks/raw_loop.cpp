// The training loop a libtorch user writes without Trireme: Trireme's model, torch's optimizer, backward(), one process.
// Usage: benchmark_raw_loop SPEC, where SPEC is the JSON object that benchmarks/workloads.py makes.
// Prints one JSON line: step_ms, ended (seconds at the end of each step), losses, peak_rss_bytes.
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/models/gpt.h>
#include <trireme/monitor/resources.h>

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
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
  std::string optimizer; // "adamw": torch::optim::AdamW; "fused": at::_fused_adamw_
  int64_t steps, micro, accumulate;
  int threads;
  trireme::models::GptOptions model;
};

Spec read_spec(const char* text) {
  const auto json = nlohmann::json::parse(text);
  Spec spec;
  spec.tokens = json.at("tokens").get<std::string>();
  spec.optimizer = json.at("optimizer");
  spec.steps = json.at("steps");
  spec.micro = json.at("micro");
  spec.accumulate = json.at("accumulate");
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

// Sample i is tokens [i*L, i*L+L]; all of them are made before the clock starts.
std::vector<MicroBatch> read_batches(const Spec& spec) {
  const int64_t length = spec.model.sequence_length;
  const int64_t count = spec.steps * spec.accumulate;
  std::string bytes = trireme::read_file(spec.tokens);
  if (static_cast<int64_t>(bytes.size() / 2) < count * spec.micro * length + 1) {
    throw trireme::InputError("raw_loop", trireme::concat(spec.tokens.string(), " has too few tokens for ", spec.steps, " steps"));
  }
  const auto tokens = torch::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size() / 2)}, torch::kUInt16).to(torch::kInt64);
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * spec.micro * length;
    const int64_t end = begin + spec.micro * length;
    batches.push_back({tokens.slice(0, begin, end).view({spec.micro, length}).contiguous(),
                       tokens.slice(0, begin + 1, end + 1).view({spec.micro, length}).contiguous()});
  }
  return batches;
}

// What torch::optim would do if it had Python's fused=True: one call over all parameters.
class FusedAdamW {
 public:
  explicit FusedAdamW(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) {
      exp_avg_.push_back(torch::zeros_like(parameter));
      exp_avg_sq_.push_back(torch::zeros_like(parameter));
      step_.push_back(torch::zeros({}, torch::kFloat));
    }
  }
  void step() {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) {
      gradients.push_back(parameter.grad());
    }
    at::_foreach_add_(step_, 1);
    at::_fused_adamw_(parameters_, gradients, exp_avg_, exp_avg_sq_, {}, step_, kLearningRate, kBeta1, kBeta2, kWeightDecay, kEpsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
  }

 private:
  std::vector<at::Tensor> parameters_, exp_avg_, exp_avg_sq_, step_;
};

int train(const Spec& spec) {
  at::set_num_threads(spec.threads);
  trireme::models::Gpt model(spec.model);
  model->train();
  std::unique_ptr<FusedAdamW> fused;
  std::unique_ptr<torch::optim::AdamW> adamw;
  if (spec.optimizer == "fused") {
    fused = std::make_unique<FusedAdamW>(model->parameters());
  } else {
    const auto options = torch::optim::AdamWOptions(kLearningRate).betas({kBeta1, kBeta2}).eps(kEpsilon).weight_decay(kWeightDecay);
    adamw = std::make_unique<torch::optim::AdamW>(model->parameters(), options);
  }
  const std::vector<MicroBatch> batches = read_batches(spec);

  std::vector<double> step_ms, ended, losses;
  for (int64_t step = 0; step < spec.steps; ++step) {
    const double start = trireme::monitor::monotonic_seconds();
    double sum = 0;
    for (int64_t i = 0; i < spec.accumulate; ++i) {
      const MicroBatch& batch = batches[static_cast<size_t>(step * spec.accumulate + i)];
      const at::Tensor loss = model->loss(batch.input_BT, batch.target_BT);
      (spec.accumulate == 1 ? loss : loss / spec.accumulate).backward();
      sum += loss.item<double>();
    }
    fused ? fused->step() : static_cast<void>(adamw->step());
    model->zero_grad(/*set_to_none=*/true);
    ended.push_back(trireme::monitor::monotonic_seconds());
    step_ms.push_back((ended.back() - start) * 1e3);
    losses.push_back(sum / static_cast<double>(spec.accumulate));
  }
  const nlohmann::json row{{"step_ms", step_ms}, {"ended", ended}, {"losses", losses}, {"peak_rss_bytes", trireme::monitor::peak_rss_bytes()}};
  std::printf("%s\n", row.dump().c_str());
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) {
      throw trireme::InputError("raw_loop", "one argument is needed: the JSON object that benchmarks/workloads.py makes.",
                                "Start it with benchmarks/run train --engines raw.");
    }
    return train(read_spec(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "benchmark_raw_loop: %s\n", error.what());
    return 2;
  }
}
