// A step, replayed as two graphs (forward and backward, then norm and optimizer): every number is the one of a run
// without.
#include "sim_device.h"

#include <tests/engine/small_run.h>
#include <tests/support/run_ranks.h>

#include <trireme/engine/step_outcome.h>
#include <trireme/models/llama.h>

#include <ATen/Parallel.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>

namespace trireme::engine {
namespace {

using config::CudaGraph;
using precision::Type;
using testing::HasSubstr;
using testing::IsEmpty;

struct GraphCase {
  std::string name;
  int zero_stage = 0;
  Type type = Type::fp32;
  bool autocast = false;
  int64_t accumulation = 1;
  double clipping = 1;
  double dropout = 0;
  std::string optimizer = "AdamW";
  std::vector<int> overflows = {}; // steps whose gradients are infinite, from 0
  bool two_lengths = false;        // sequences of 8 and 6 tokens in turns
  bool evaluates = false;
  bool resumes = false;
  bool loads = false;         // a checkpoint into the same engine
  bool norm_in_turns = false; // wanted in some steps
  bool warm_up = false;       // the learning rate rises, then falls
  bool llama = false;         // whose rotary positions depend on the length of a sequence
};

constexpr int kSteps = 12;
const int scalar_products = ::setenv("TRIREME_SIMD", "scalar", 1); // before anybody asks for kernels

// A third input is added to the gradients of one parameter: infinity makes the step overflow, in replays too.
class Spoiled : public Counting {
 public:
  explicit Spoiled(const GraphCase& one) : one_(one) {}
  data::Batch get(std::span<const int64_t> indices) const override {
    data::Batch batch = Counting::get(indices);
    const int64_t step = indices.front() / kZeroBatch;
    if (one_.two_lengths && step % 2 == 1) {
      batch.inputs[0] = batch.inputs[0].slice(1, 0, 6).contiguous();
      batch.targets[0] = batch.targets[0].slice(1, 0, 6).contiguous();
    }
    const bool overflows = std::find(one_.overflows.begin(), one_.overflows.end(), step) != one_.overflows.end();
    batch.inputs.push_back(
        torch::full({std::ssize(indices)}, overflows ? std::numeric_limits<float>::infinity() : 0.0F));
    return batch;
  }
  int64_t size() const override { return kSteps * kZeroBatch; }

 private:
  GraphCase one_;
};

// x + 0, with `extra` added to the gradient.
at::Tensor with_extra_gradient(const at::Tensor& loss, const at::Tensor& parameter, const at::Tensor& extra) {
  const at::Tensor x = parameter.to(at::kFloat).sum();
  const at::Tensor zero = x - x.detach();
  const at::Tensor finite = extra.max().isfinite().to(at::kFloat);
  return loss + zero * (torch::full_like(finite, 1) / finite - 1);
}

InitializeOptions graph_options(const GraphCase& one, CudaGraph graph) {
  InitializeOptions options;
  options.device = sim::device();
  options.cuda_graph = graph;
  options.config = zero_config(one.zero_stage, one.accumulation, one.clipping);
  options.config.precision.compute = one.type;
  options.config.precision.loss_scale.initial_scale_power = 10;
  if (one.autocast) {
    options.config.precision.autocast = true;
    options.config.precision.autocast_type = Type::bf16;
  }
  if (one.optimizer == "LAMB") {
    options.config.optimizer = optim::OptimizerOptions{.rule = optim::LambOptions{}};
  } else if (one.optimizer == "SGD") {
    options.config.optimizer = optim::OptimizerOptions{.rule = optim::SgdOptions{.lr = 0.05, .momentum = 0.9}};
  } else if (one.optimizer == "Lion") {
    options.config.optimizer = optim::OptimizerOptions{.rule = optim::LionOptions{}};
  } else if (one.optimizer == "Adagrad") {
    options.config.optimizer = optim::OptimizerOptions{.rule = optim::AdagradOptions{}};
  } else if (one.optimizer == "RMSprop") {
    options.config.optimizer = optim::OptimizerOptions{.rule = optim::RmspropOptions{.momentum = 0.5}};
  }
  options.lr = [one](int64_t step) {
    const auto n = static_cast<double>(step);
    return one.warm_up ? std::min(0.002 * n, 0.02 - 0.001 * n) : 0.01 / n;
  };
  options.shuffle = false;
  options.training_data = std::make_shared<Spoiled>(one);
  if (one.llama) {
    models::LlamaOptions shape;
    shape.layers = 2;
    shape.hidden = 16;
    shape.heads = 2;
    shape.intermediate = 32;
    shape.sequence_length = 8;
    shape.vocab_size = small_gpt().vocab_size;
    shape.rope_scaling.kind = models::RopeScaling::Kind::dynamic;
    shape.rope_scaling.factor = 2;
    shape.max_positions = 4;
    models::Llama model(shape);
    options.model = model.ptr();
    const at::Tensor norm = model->parameters().back();
    options.loss = [model, norm](const data::Batch& batch) mutable {
      return with_extra_gradient(model->loss(batch.input(), batch.target()), norm, batch.inputs[1]);
    };
    return options;
  }
  models::Gpt model(small_gpt(one.dropout));
  options.model = model.ptr();
  const at::Tensor bias = model->named_parameters()["transformer.ln_f.bias"];
  options.loss = [model, bias](const data::Batch& batch) mutable {
    return with_extra_gradient(model->loss(batch.input(), batch.target()), bias, batch.inputs[1]);
  };
  return options;
}

struct GraphRun {
  std::vector<double> numbers; // loss, norm, lr, loss scale, taken; evaluations
  std::vector<at::Tensor> weights;
};

GraphRun train_graph(comm::World& world, const GraphCase& one, CudaGraph graph) {
  torch::manual_seed(5);
  at::Generator(at::globalContext().defaultGenerator(sim::device())).set_current_seed(5); // of dropout
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / concat("trireme_step_graph_", ::getpid(), '_', static_cast<int>(graph));
  auto engine = initialize(world, graph_options(one, graph)).engine;
  GraphRun run;
  std::vector<std::shared_ptr<const StepOutcome>> outcomes;
  std::vector<at::Tensor> losses; // kept on the device while later steps run
  for (int step = 0; step < kSteps; ++step) {
    if (one.norm_in_turns) {
      engine->want_grad_norm(step % 3 != 0);
    }
    losses.push_back(engine->train_batch());
    outcomes.push_back(engine->outcome());
    if (one.evaluates && step % 3 == 2) {
      run.numbers.push_back(engine->eval_batch(test::batch_of_step(Spoiled(one), step, kZeroBatch)).item<double>());
    }
    if (one.resumes && step == 7) {
      engine->save_checkpoint(folder, "eighth");
      engine = initialize(world, graph_options(one, graph)).engine;
      engine->load_checkpoint(folder, "eighth");
    }
    if (one.loads && step == 5) {
      engine->save_checkpoint(folder, "sixth");
    }
    if (one.loads && step == 7) {
      engine->load_checkpoint(folder, "sixth");
    }
  }
  std::filesystem::remove_all(folder);
  for (const auto& outcome : outcomes) {
    for (const double number : {outcome->loss(), outcome->grad_norm().value_or(-1), outcome->lr(),
                                outcome->loss_scale(), outcome->taken() ? 1.0 : 0.0}) {
      run.numbers.push_back(std::isfinite(number) ? number : -7);
    }
  }
  for (const at::Tensor& loss : losses) {
    const double number = loss.item<double>();
    run.numbers.push_back(std::isfinite(number) ? number : -7);
  }
  EXPECT_EQ(engine->skipped_steps(), std::ssize(one.overflows));
  for (const at::Tensor& parameter : engine->module().parameters()) {
    run.weights.push_back(parameter.detach().cpu().clone());
  }
  return run;
}

void start_for_graphs() {
  at::set_num_threads(1); // with several, the last bits of fp16 differ between two runs without a graph, too
  at::globalContext().setSDPUseFlash(false);
  sim::start();
  sim::set_polls(20); // nothing of a step is known before the host waits
  sim::use_cpu_optimizer_kernels();
  sim::use_cpu_row_kernels();
  sim::use_graphs();
}

class SimDeviceStepGraph : public testing::TestWithParam<GraphCase> {};

TEST_P(SimDeviceStepGraph, HasTheNumbersOfARunWithout) {
  const GraphCase& one = GetParam();
  test::on_ranks(1, [&](comm::World& world) {
    start_for_graphs();
    const GraphRun without = train_graph(world, one, CudaGraph::off);
    const GraphRun with = train_graph(world, one, CudaGraph::on);
    EXPECT_EQ(with.numbers, without.numbers);
    for (size_t i = 0; i < without.weights.size(); ++i) {
      EXPECT_TRUE(with.weights[i].equal(without.weights[i])) << "parameter " << i;
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

std::vector<GraphCase> graph_cases() {
  return {
      {"ddp_fp32"},
      {"zero1_bf16", 1, Type::bf16},
      {"zero2_bf16", 2, Type::bf16},
      {"autocast", 0, Type::fp32, true},
      {.name = "accumulation", .accumulation = 3},
      {.name = "no_clipping", .clipping = 0},
      {.name = "dropout", .accumulation = 2, .dropout = 0.3},
      {.name = "sgd", .optimizer = "SGD"},
      {.name = "lion", .zero_stage = 1, .optimizer = "Lion"},
      {.name = "lamb", .optimizer = "LAMB"},
      {.name = "adagrad", .optimizer = "Adagrad"},
      {.name = "rmsprop", .optimizer = "RMSprop"},
      {.name = "warm_up", .type = Type::fp16, .overflows = {3, 4, 10}, .warm_up = true},
      {.name = "norm_in_turns", .type = Type::bf16, .clipping = 0, .norm_in_turns = true},
      {.name = "loads", .zero_stage = 2, .type = Type::fp16, .loads = true},
      {.name = "fp32_overflows", .overflows = {5, 6, 9}},
      {.name = "fp16_overflows", .zero_stage = 2, .type = Type::fp16, .accumulation = 2, .overflows = {5, 6, 9}},
      {.name = "fp16_watched", .type = Type::fp16, .overflows = {4, 5, 6, 7}},
      {.name = "two_lengths", .type = Type::bf16, .accumulation = 2, .two_lengths = true},
      {.name = "llama", .two_lengths = true, .evaluates = true, .llama = true},
      {.name = "evaluates", .dropout = 0.2, .evaluates = true},
      {.name = "resumes", .zero_stage = 1, .type = Type::fp16, .dropout = 0.2, .overflows = {7}, .resumes = true},
  };
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceStepGraph, testing::ValuesIn(graph_cases()),
                         [](const auto& info) { return info.param.name; });

struct StepCosts {
  int64_t waits = 0;
  int64_t fresh = 0; // blocks of memory that the allocator did not have
  int64_t copies = 0;
  int64_t launches = 0;
};

// The most of three steps, after those that are launched one by one and the recording.
StepCosts costs_of_replays(comm::World& world, Type type, int64_t accumulation, int64_t layers) {
  InitializeOptions options;
  options.device = sim::device();
  options.cuda_graph = CudaGraph::on;
  options.config = zero_config(0, accumulation);
  options.config.data_parallel.bucket_bytes = options.config.data_parallel.first_bucket_bytes = 1 << 20;
  options.config.precision.compute = type;
  options.config.precision.loss_scale.initial_scale_power = 10;
  options.training_data = std::make_shared<Counting>();
  models::GptOptions shape = small_gpt();
  shape.layers = layers;
  models::Gpt model(shape);
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  const auto engine = initialize(world, options).engine;
  for (int step = 0; step < 6; ++step) {
    engine->train_batch();
  }
  StepCosts most;
  for (int step = 0; step < 3; ++step) {
    sim::reset_host_synchronisations();
    const sim::Copied copied = sim::copied();
    const int64_t fresh = sim::memory().fresh, launches = sim::launches(0);
    engine->train_batch();
    most.waits = std::max(most.waits, sim::host_synchronisations());
    most.fresh = std::max(most.fresh, sim::memory().fresh - fresh);
    most.copies = std::max(most.copies, sim::copied().copies_to_device + sim::copied().copies_to_host -
                                            copied.copies_to_device - copied.copies_to_host);
    most.launches = std::max(most.launches, sim::launches(0) - launches);
  }
  return most;
}

TEST(SimDeviceStepGraph, LaunchesOfAStepDoNotDependOnItsLayers) {
  test::on_ranks(1, [&](comm::World& world) {
    start_for_graphs();
    sim::set_polls(1);
    for (const auto& [type, most] : {std::pair(Type::fp32, 14), std::pair(Type::bf16, 14), std::pair(Type::fp16, 14)}) {
      const StepCosts two = costs_of_replays(world, type, 1, 2), four = costs_of_replays(world, type, 1, 4);
      const StepCosts three_batches = costs_of_replays(world, type, 3, 2);
      std::printf("waits %ld, fresh blocks %ld, copies %ld, launches %ld; of 3 micro-batches %ld\n", two.waits,
                  two.fresh, two.copies, two.launches, three_batches.launches);
      EXPECT_EQ(two.waits, 0) << testing::PrintToString(sim::host_synchronisation_names());
      EXPECT_EQ(two.fresh, 0);
      EXPECT_LE(two.copies, 4) << "tokens, targets, numbers of the step; loss and norm";
      EXPECT_LE(two.launches, most);
      EXPECT_EQ(four.launches, two.launches);
      EXPECT_EQ(three_batches.launches, two.launches + 2 * 4) << "an upload and a copy of tokens and targets";
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

// ---- what cannot be recorded

InitializeOptions waiting_options(CudaGraph graph, const std::function<at::Tensor(const at::Tensor&)>& change) {
  InitializeOptions options = graph_options({}, graph);
  models::Gpt model(small_gpt());
  options.model = model.ptr();
  options.loss = [model, change](const data::Batch& batch) mutable {
    return change(model->loss(batch.input(), batch.target()));
  };
  return options;
}

// A loss function that reads a number of its own from the device.
at::Tensor halved_if_large(const at::Tensor& loss) {
  return loss.item<double>() > 1e6 ? loss / 2 : loss;
}
at::Tensor with_nonzero(const at::Tensor& loss) {
  return loss + torch::nonzero(loss.detach().reshape({1})).sum() * 0;
}
at::Tensor with_number_of_the_host(const at::Tensor& loss) {
  return loss * torch::full({}, 1.0F).to(loss.device());
}

TEST(SimDeviceStepGraph, ALossThatWaitsIsLaunchedOneByOne) {
  test::on_ranks(1, [&](comm::World& world) {
    start_for_graphs();
    for (const auto& change : {&halved_if_large, &with_nonzero, &with_number_of_the_host}) {
      std::vector<double> losses[2];
      for (const CudaGraph graph : {CudaGraph::off, CudaGraph::automatic}) {
        torch::manual_seed(5);
        const auto engine = initialize(world, waiting_options(graph, change)).engine;
        testing::internal::CaptureStderr();
        for (int step = 0; step < 6; ++step) {
          losses[graph == CudaGraph::off ? 0 : 1].push_back(engine->train_batch().item<double>());
        }
        const std::string said = testing::internal::GetCapturedStderr();
        if (graph == CudaGraph::automatic) {
          EXPECT_THAT(said, HasSubstr("a step cannot be recorded as a CUDA graph"));
          EXPECT_THAT(said, HasSubstr("Steps are launched one by one"));
          EXPECT_EQ(said.find("cannot be recorded"), said.rfind("cannot be recorded")) << "once";
        }
      }
      EXPECT_EQ(losses[1], losses[0]);
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

TEST(SimDeviceStepGraph, ALossThatWaitsIsAnErrorIfGraphsAreRequired) {
  test::on_ranks(1, [&](comm::World& world) {
    start_for_graphs();
    const auto engine = initialize(world, waiting_options(CudaGraph::on, &halved_if_large)).engine;
    for (int step = 0; step < 3; ++step) {
      engine->train_batch();
    }
    EXPECT_THAT([&] { engine->train_batch(); },
                testing::ThrowsMessage<InputError>(testing::AllOf(HasSubstr("item()"), HasSubstr("cuda_graph"))));
  });
}

TEST(SimDeviceStepGraph, RefusesWhatHasNoGraph) {
  test::on_ranks(1, [&](comm::World& world) {
    start_for_graphs();
    InitializeOptions options = graph_options({}, CudaGraph::on);
    options.config.step_in_backward = true;
    options.config.gradient_clipping = 0;
    EXPECT_THAT([&] { initialize(world, options); },
                testing::ThrowsMessage<InputError>(HasSubstr("\"step_in_backward\"")));
    options = graph_options({}, CudaGraph::on);
    options.device = at::kCPU;
    EXPECT_THAT([&] { initialize(world, options); },
                testing::ThrowsMessage<InputError>(HasSubstr("cpu has no CUDA graphs")));
  });
}

// Steps of forward(), backward() and step() are between replays.
TEST(SimDeviceStepGraph, OtherStepsAreBetweenReplays) {
  test::on_ranks(1, [&](comm::World& world) {
    start_for_graphs();
    std::vector<double> losses[2];
    for (const CudaGraph graph : {CudaGraph::off, CudaGraph::on}) {
      torch::manual_seed(5);
      const GraphCase one{.name = "", .zero_stage = 1};
      const auto engine = initialize(world, graph_options(one, graph)).engine;
      for (int step = 0; step < 9; ++step) {
        const data::Batch batch = test::batch_of_step(Spoiled(one), step, kZeroBatch);
        if (step % 3 == 1) {
          engine->backward(engine->forward(batch));
          engine->step();
        } else {
          engine->train_batch([&] { return batch; });
        }
        losses[graph == CudaGraph::off ? 0 : 1].push_back(engine->loss());
      }
    }
    EXPECT_EQ(losses[1], losses[0]);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

} // namespace
} // namespace trireme::engine
