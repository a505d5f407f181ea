// Pipelines of layers that wait instead of compute, so that the cores of the machine do not matter:
//   trireme launch -n 4 -- benchmark_waiting_pipeline [MICRO_BATCHES] [FORWARD_MS]
// Rank 0 prints one JSON object for each schedule: measured bubble beside the formula, micro-batches
// in flight on each stage, and time; then the memory of each rank with LayerSpec and with everything built.
#include <trireme/base/error.h>
#include <trireme/comm/world.h>
#include <trireme/monitor/resources.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/timeline.h>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <iostream>
#include <thread>

namespace {

using namespace trireme;
using pipeline::Tensors;
using Clock = std::chrono::steady_clock;

void wait_ms(double ms) {
  std::this_thread::sleep_until(
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms)));
}

// Takes its time in backward only.
class SlowBackward : public torch::autograd::Function<SlowBackward> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double ms) {
    context->saved_data["ms"] = ms;
    return x.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& grads) {
    wait_ms(context->saved_data["ms"].toDouble());
    return {grads[0], at::Tensor()};
  }
};

// Forward 1 unit, gradient of the input 1, of the weight 1.
struct WaitingLayer : torch::nn::Module {
  explicit WaitingLayer(double ms) : ms(ms), weight(register_parameter("weight", torch::zeros({8}))) {}
  at::Tensor forward(const at::Tensor& x) {
    wait_ms(ms);
    return SlowBackward::apply(x, ms) + SlowBackward::apply(weight, ms);
  }
  double ms;
  at::Tensor weight;
};

double formula(pipeline::ScheduleKind kind, double p, double m, double v) {
  switch (kind) {
    case pipeline::ScheduleKind::naive:
      return 1 - 1 / p;
    case pipeline::ScheduleKind::interleaved:
      return (p - 1) / (v * m + p - 1);
    case pipeline::ScheduleKind::zero_bubble:
      return (p - 1) / (3 * m + p - 1);
    default:
      return (p - 1) / (m + p - 1);
  }
}

struct Measured {
  double seconds = 0; ///< of a step, on the slowest rank
  double busy = 0;    ///< of all ranks together
  std::vector<int64_t> in_flight;
};

Measured measure(comm::World& world, pipeline::ScheduleKind kind, int chunks, int micro_batches, double ms) {
  pipeline::PipelineOptions options;
  options.stages = world.size();
  options.schedule = kind;
  options.chunks = chunks;
  std::vector<pipeline::Layer> layers;
  for (int i = 0; i < world.size() * chunks; ++i) {
    layers.push_back(pipeline::LayerSpec<WaitingLayer>(ms / chunks));
  }
  pipeline::PipelineModule model(
      layers, [](const Tensors& outputs, const Tensors&) { return outputs.at(0).mean(); }, options);
  model.build(world.group());
  pipeline::Executor executor(model, world.group());
  const auto next = [] { return data::Batch{{torch::ones({8}).requires_grad_()}, {torch::ones({8})}, 1}; };
  const pipeline::Executor::Callbacks callbacks{[](int, bool) {}, [] {}, [] {}};
  std::vector<Measured> runs;
  for (int repeat = 0; repeat < 4; ++repeat) { // the first opens connections
    world.group().barrier("start").wait();
    const auto begin = Clock::now();
    executor.train(micro_batches, 0, [](at::ScalarType) { return 1.0; }, next, callbacks);
    at::Tensor times = torch::tensor({std::chrono::duration<double>(Clock::now() - begin).count(),
                                      executor.seconds().forward + executor.seconds().backward},
                                     torch::kFloat64);
    at::Tensor all = torch::empty({world.size() * 2}, torch::kFloat64);
    world.group().all_gather(all, times).wait();
    all = all.view({-1, 2});
    runs.push_back({all.select(1, 0).max().item<double>(), all.select(1, 1).sum().item<double>(), {}});
  }
  runs.erase(runs.begin());
  std::sort(runs.begin(), runs.end(), [](const Measured& a, const Measured& b) { return a.seconds < b.seconds; });
  Measured median = runs[runs.size() / 2];
  at::Tensor flights = torch::empty({world.size()}, torch::kInt64);
  world.group().all_gather(flights, torch::tensor({executor.peak_in_flight()}, torch::kInt64)).wait();
  median.in_flight.assign(flights.data_ptr<int64_t>(), flights.data_ptr<int64_t>() + flights.numel());
  return median;
}

// Peak memory above the start after building eight layers of 32 MiB each: only this stage's, or all of them.
int64_t build_memory(comm::World& world, bool only_own) {
  constexpr int64_t side = 2896;
  const int64_t before = monitor::current_rss_bytes();
  std::vector<pipeline::Layer> layers;
  for (int i = 0; i < 8; ++i) {
    layers.push_back(only_own ? pipeline::Layer(pipeline::LayerSpec<torch::nn::Linear>(side, side))
                              : pipeline::Layer(torch::nn::Linear(side, side)));
  }
  pipeline::PipelineModule model{pipeline::LayerList(layers)};
  model.build(world.group());
  return monitor::current_rss_bytes() - before;
}

std::vector<int64_t> gathered(comm::World& world, int64_t value) {
  at::Tensor all = torch::empty({world.size()}, torch::kInt64);
  world.group().all_gather(all, torch::tensor({value}, torch::kInt64)).wait();
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

void run(int argc, char** argv) {
  comm::World world = comm::World::connect();
  const int micro_batches = argc > 1 ? std::stoi(argv[1]) : 8;
  const double ms = argc > 2 ? std::stod(argv[2]) : 20;
  double naive_seconds = 0;
  using pipeline::ScheduleKind;
  for (const ScheduleKind kind : {ScheduleKind::naive, ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                  ScheduleKind::interleaved, ScheduleKind::zero_bubble}) {
    const int chunks = kind == ScheduleKind::interleaved ? 2 : 1;
    const Measured measured = measure(world, kind, chunks, micro_batches, ms);
    naive_seconds = kind == ScheduleKind::naive ? measured.seconds : naive_seconds;
    const pipeline::ScheduleShape shape{world.size(), micro_batches, chunks};
    const pipeline::Timeline plan = simulate(make_programs(kind, shape), shape, {});
    if (world.rank() == 0) {
      std::cout << nlohmann::ordered_json{{"schedule", schedule_name(kind)},
                                          {"stages", world.size()},
                                          {"micro_batches", micro_batches},
                                          {"chunks", chunks},
                                          {"bubble", 1 - measured.busy / (measured.seconds * world.size())},
                                          {"formula", formula(kind, world.size(), micro_batches, chunks)},
                                          {"planned", plan.bubble},
                                          {"step_ms", measured.seconds * 1e3},
                                          {"speedup_over_naive", naive_seconds / measured.seconds},
                                          {"in_flight", measured.in_flight}}
                << std::endl;
    }
  }
  for (const bool only_own : {true, false}) {
    const std::vector<int64_t> bytes = gathered(world, build_memory(world, only_own));
    if (world.rank() == 0) {
      std::cout << nlohmann::ordered_json{{"built", only_own ? "LayerSpec" : "everything"}, {"rss_bytes", bytes}}
                << std::endl;
    }
  }
}

} // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "waiting_pipeline: " << error.what() << '\n';
    return 1;
  }
}
