// When moves between a device and its host happen, on the simulated device's clock, and what a delayed update computes.
#include "offload_case.h"

#include <trireme/base/error.h>
#include <trireme/memory/offload/host_store.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using precision::Type;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

constexpr double kStepTime = 5; // of the host, for each bucket

/// Counts the buckets that are stepped, each of which takes the host some time, and knows which thread does it.
class SlowStore final : public bucket::StateStore {
 public:
  struct Seen {
    int acquired = 0;
    std::set<std::thread::id> threads;
  };
  explicit SlowStore(Seen& seen) : seen_(seen), inner_(offload::make_host_store(true)) {}

  std::vector<bool> on_host(const std::vector<int64_t>& numel, at::Device device) override {
    return inner_->on_host(numel, device);
  }
  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device device) override {
    return inner_->add(arrays, device);
  }
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
    ++seen_.acquired;
    seen_.threads.insert(std::this_thread::get_id());
    sim::host_works(kStepTime);
    return inner_->acquire(buffer, bucket);
  }
  void release(int64_t buffer, int64_t bucket, bool modified) override { inner_->release(buffer, bucket, modified); }
  void prefetch(int64_t buffer, int64_t bucket) override { inner_->prefetch(buffer, bucket); }

 private:
  Seen& seen_;
  std::unique_ptr<bucket::StateStore> inner_;
};

using Spans = std::vector<sim::Span>;

Spans only(const Spans& all, const std::function<bool(const sim::Span&)>& wanted) {
  Spans found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), wanted);
  return found;
}

bool computes(const sim::Span& span) {
  return span.stream == 0;
}

// Launched before the last copy of a gradient to the host.
struct Backward {
  Spans compute;
  Spans gradients; // copies to the host beside the computation
};

bool leaves(const sim::Span& span) {
  return span.kernel == "copy to the host" && !computes(span);
}

Backward backward_of(const Spans& all) {
  const auto last = std::find_if(all.rbegin(), all.rend(), leaves);
  const Spans before(all.begin(), last.base());
  return {only(before, computes), only(before, leaves)};
}

double busy(const Spans& spans) {
  return static_cast<double>(spans.size());
}

// Of a step after the first ones.
Spans spans_of_step(Engine& engine) {
  sim::keep_spans(true);
  engine.train_batch();
  return sim::spans();
}

TEST(SimDeviceMoves, GradientsLeaveWhileBackwardComputes) {
  for (const int stage : {0, 2}) {
    EXPECT_THAT(run_ranks(1,
                          [&](comm::World& world) {
                            start_single_threaded();
                            const auto engine = engine_of(
                                world,
                                {.run = {.name = "moves", .zero_stage = stage, .type = Type::bf16, .accumulation = 1}},
                                sim::device());
                            engine->train_batch();
                            const Backward backward = backward_of(spans_of_step(*engine));
                            ASSERT_GT(backward.gradients.size(), 3U);
                            const Spans& compute = backward.compute;
                            EXPECT_EQ(compute.back().end - compute.front().begin, busy(compute))
                                << "no copy holds the computation up";
                            // What the last bucket needs: at stage 2 its norm is taken before it leaves.
                            const double of_one = stage == 2 ? 3 : 1;
                            EXPECT_EQ(backward.gradients.back().end, compute.back().end + of_one)
                                << "of all buckets only the last is not hidden";
                          }),
                IsEmpty())
        << stage;
  }
}

// The host waits for a bucket only when two later ones have left: the device has work.
TEST(SimDeviceMoves, GradientsLeaveForFilesWhileBackwardComputes) {
  const fs::path files = scratch("gradients_leave");
  on_ranks(1, [&](comm::World& world) {
    start_single_threaded();
    const auto engine = engine_of(world,
                                  {.run = {.name = "leave", .zero_stage = 3, .accumulation = 1},
                                   .parameters = offload::Place::nvme,
                                   .states = offload::Place::nvme,
                                   .files = files},
                                  sim::device());
    engine->train_batch();
    const Backward backward = backward_of(spans_of_step(*engine));
    ASSERT_GT(backward.gradients.size(), 4U);
    const auto beside = [&](const sim::Span& copy) {
      return std::any_of(backward.compute.begin(), backward.compute.end(),
                         [&](const sim::Span& span) { return span.begin < copy.end && copy.begin < span.end; });
    };
    EXPECT_GE(std::count_if(backward.gradients.begin(), backward.gradients.end(), beside),
              std::ssize(backward.gradients) - 2);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
  fs::remove_all(files);
}

TEST(SimDeviceMoves, ParametersReturnWhileTheNextBucketIsStepped) {
  on_ranks(1, [&](comm::World& world) {
    start_single_threaded();
    SlowStore::Seen seen;
    InitializeOptions options = options_of({.name = "returns", .accumulation = 1}, sim::device());
    options.state_store = [&] { return std::make_unique<SlowStore>(seen); };
    const auto engine = initialize(world, options).engine;
    engine->train_batch();
    seen.acquired = 0;
    Spans all = spans_of_step(*engine);
    const int buckets = seen.acquired;
    ASSERT_GT(buckets, 3);
    const auto last_gradient =
        std::find_if(all.rbegin(), all.rend(), [](const sim::Span& span) { return span.kernel == "copy to the host"; });
    const Spans returns = only(Spans(last_gradient.base(), all.end()),
                               [](const sim::Span& span) { return span.kernel == "copy to the device"; });
    ASSERT_EQ(std::ssize(returns), buckets);
    EXPECT_EQ(returns.back().end - returns.front().begin, kStepTime * (buckets - 1) + 1)
        << "copies take no time of the host";
    for (size_t i = 1; i < returns.size(); ++i) {
      EXPECT_LE(returns[i - 1].end, returns[i].begin);
    }
    const Spans next = only(spans_of_step(*engine), computes);
    EXPECT_GE(next.front().begin, returns.back().end) << "forward uses what has returned";
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

// With parameters on the host, or in files, the next unit's come while this one's forward computes.
TEST(SimDeviceMoves, ParametersComeAheadOfUse) {
  for (const offload::Place place : {offload::Place::host, offload::Place::nvme}) {
    const fs::path files = scratch("ahead");
    on_ranks(1, [&](comm::World& world) {
      start_single_threaded();
      const auto engine = engine_of(
          world, {.run = {.name = "ahead", .zero_stage = 3, .accumulation = 1}, .parameters = place, .files = files},
          sim::device());
      engine->train_batch();
      engine->train_batch();
      Spans all = spans_of_step(*engine);
      all.erase(std::find_if(all.rbegin(), all.rend(), leaves).base(), all.end()); // the step
      const auto loads = [](const sim::Span& span) { return span.kernel == "copy to the device" && !computes(span); };
      const Spans compute = only(all, computes);
      int ahead = 0; // loads that begin when the first unit computes
      for (const sim::Span& load : only(all, loads)) {
        if (load.begin >= compute.front().begin) {
          ++ahead;
          EXPECT_TRUE(std::any_of(compute.begin(), compute.end(), [&](const sim::Span& span) {
            return span.begin < load.end && load.begin < span.end;
          })) << load.begin;
        }
      }
      EXPECT_GT(ahead, 4);
      EXPECT_THAT(sim::problems(), IsEmpty());
    });
    fs::remove_all(files);
  }
}

// With states on the device and parameters on the host a step is launched without the host, and a bucket's way to the
// device and back hides behind the next one's.
TEST(SimDeviceMoves, ShardsAreSteppedOnTheDeviceWithoutTheHost) {
  for (const Type type : {Type::fp32, Type::bf16, Type::fp16}) {
    on_ranks(2, [&](comm::World& world) {
      start_single_threaded();
      const auto engine = engine_of(world,
                                    {.run = {.name = "stepped", .zero_stage = 3, .type = type},
                                     .parameters = offload::Place::host,
                                     .states = offload::Place::device},
                                    sim::device());
      engine->train_batch();
      for (int i = 0; i < 3; ++i) {
        step(*engine, [&] { engine->train_batch(); });
      }
      EXPECT_THAT(sim::problems(), IsEmpty());
    });
  }
}

TEST(SimDeviceMoves, ADelayedUpdateIsAnotherThreadsWork) {
  on_ranks(1, [&](comm::World& world) {
    start_single_threaded();
    SlowStore::Seen seen;
    const Offloaded one{.run = {.name = "later", .zero_stage = 2, .accumulation = 1}, .delayed = true};
    InitializeOptions options = options_of(one, sim::device(), mesh_of(world, one.run));
    options.state_store = [&] { return std::make_unique<SlowStore>(seen); };
    const auto engine = initialize(world, options).engine;
    for (int step = 0; step < 3; ++step) {
      engine->train_batch();
    }
    engine->finish_delayed_update();
    seen = {};
    for (int step = 0; step < 3; ++step) {
      const Backward backward = backward_of(spans_of_step(*engine));
      EXPECT_EQ(backward.compute.back().end - backward.compute.front().begin, busy(backward.compute))
          << "the device never waits for the host's step";
    }
    engine->finish_delayed_update();
    EXPECT_GT(seen.acquired, 9);
    EXPECT_EQ(seen.threads.count(std::this_thread::get_id()), 0U);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

/// Points near a plane.
class Points : public data::Dataset {
 public:
  int64_t size() const override { return 192; }
  data::Batch get(std::span<const int64_t> indices) const override {
    std::vector<float> x;
    std::vector<float> y;
    for (const int64_t i : indices) {
      const float a = static_cast<float>(i * 37 % 64) / 64;
      const float b = static_cast<float>(i * 11 % 48) / 48;
      x.insert(x.end(), {a, b, a * b});
      y.push_back(1.5F * a - b + 0.25F);
    }
    const auto n = static_cast<int64_t>(indices.size());
    return {{torch::tensor(x).view({n, 3})}, {torch::tensor(y).view({n, 1})}, n};
  }
  std::string describe() const override { return "points"; }
};

constexpr double kLr = 0.0625; // a power of two: its product with a gradient is exact

torch::nn::Linear plane() {
  torch::manual_seed(3);
  return torch::nn::Linear(3, 1);
}

// w(t + 1) = w(t) - lr g(w(t - 1)), where the first two gradients are of w(0), in plain libtorch.
Seen delayed_sgd(int steps) {
  torch::nn::Linear model = plane();
  Seen seen;
  std::vector<at::Tensor> late;
  const auto apply = [&] {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < late.size(); ++i) {
      model->parameters()[i].sub_(late[i] * kLr);
    }
  };
  for (int step = 0; step < steps; ++step) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < kZeroBatch; ++i) {
      indices.push_back((step * kZeroBatch + i) % Points().size());
    }
    const data::Batch batch = Points().get(indices);
    model->zero_grad();
    const at::Tensor loss = torch::mse_loss(model->forward(batch.input()), batch.target());
    loss.backward();
    seen.numbers.push_back(loss.item<float>());
    apply();
    late.clear();
    for (const at::Tensor& parameter : model->parameters()) {
      late.push_back(parameter.grad().clone());
    }
  }
  apply();
  for (const at::Tensor& parameter : model->parameters()) {
    seen.weights.push_back(parameter.detach().clone());
  }
  return seen;
}

TEST(SimDeviceDelayed, IsTheFormulaOfDelayedDescent) {
  on_ranks(1, [&](comm::World& world) {
    start_single_threaded();
    const Seen expected = delayed_sgd(30);
    EXPECT_LT(expected.numbers.back(), 0.5 * expected.numbers.front()) << "it descends";
    torch::nn::Linear model = plane();
    InitializeOptions options;
    options.device = sim::device();
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable {
      return torch::mse_loss(model->forward(batch.input()), batch.target());
    };
    options.config = zero_config(0, /*accumulation=*/1, /*clipping=*/0);
    options.config.optimizer = optim::OptimizerOptions{.rule = optim::SgdOptions{.lr = kLr}};
    options.config.offload.optimizer.place = offload::Place::host;
    options.config.offload.optimizer.delayed_update = true;
    options.training_data = std::make_shared<Points>();
    options.shuffle = false;
    const auto engine = initialize(world, options).engine;
    Seen seen;
    for (int step = 0; step < 30; ++step) {
      engine->train_batch();
      seen.numbers.push_back(engine->loss());
    }
    add_weights(seen, *engine); // which brings the last update
    expect_same(seen, expected);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

// A network of two layers, with AdamW.
std::vector<double> losses_of_network(comm::World& world, bool delayed, int steps) {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(3, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  InitializeOptions options;
  options.device = sim::device();
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable {
    return torch::mse_loss(model->forward(batch.input()), batch.target());
  };
  options.config = zero_config(0, /*accumulation=*/1, /*clipping=*/1);
  options.config.offload.optimizer.place = offload::Place::host;
  options.config.offload.optimizer.delayed_update = delayed;
  options.config.optimizer = optim::OptimizerOptions{.rule = optim::AdamOptions{.lr = 0.004}};
  options.training_data = std::make_shared<Points>();
  options.shuffle = false;
  const auto engine = initialize(world, options).engine;
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    engine->train_batch();
    losses.push_back(engine->loss());
  }
  return losses;
}

TEST(SimDeviceDelayed, LearnsAsWell) {
  on_ranks(1, [&](comm::World& world) {
    start_single_threaded();
    constexpr int kEnough = 130;
    const std::vector<double> plain = losses_of_network(world, false, kEnough);
    const std::vector<double> delayed = losses_of_network(world, true, kEnough);
    EXPECT_EQ(delayed.front(), plain.front());
    EXPECT_GT(delayed[1], plain[1]) << "the second step computes with the first one's parameters";
    const auto mean_of_last = [](const std::vector<double>& all) {
      return std::accumulate(all.end() - 10, all.end(), 0.0) / 10;
    };
    EXPECT_LT(mean_of_last(plain), 0.001 * plain.front());
    EXPECT_LT(mean_of_last(delayed), 0.0015 * plain.front()) << "of the loss at the start";
  });
}

class SimDeviceDelayedTest : public testing::TestWithParam<Offloaded> {};

// A save brings the update that is under way, so a run that goes on and one that resumes are the same; and ZeRO changes
// nothing.
TEST_P(SimDeviceDelayedTest, IsResumedAndTheSameAtEveryStage) {
  const Offloaded& one = GetParam();
  const fs::path folder = scratch(concat("delayed_", one.run.name).c_str());
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(run_ranks(ranks * one.run.stages,
                          [&](comm::World& world) {
                            start_single_threaded();
                            Offloaded plain = one;
                            if (one.run.accumulation == 1 &&
                                one.run.zero_stage < 3) { // others add up gradients or norms in another order
                              plain.run.zero_stage = 0;
                            }
                            const auto run = [&](const Offloaded& run, bool saves) {
                              const auto engine = engine_of(world, run, sim::device());
                              Seen seen;
                              train_steps(*engine, 5, seen);
                              if (saves) {
                                engine->save_checkpoint(folder, "five");
                              } else {
                                engine->finish_delayed_update();
                              }
                              train_steps(*engine, 5, seen);
                              add_weights(seen, *engine);
                              return seen;
                            };
                            const Seen expected = run(plain, false);
                            expect_same(run(one, true), expected);
                            const auto again = engine_of(world, one, sim::device());
                            ASSERT_TRUE(again->load_checkpoint(folder, "five"));
                            Seen resumed;
                            resumed.numbers.assign(expected.numbers.begin(), expected.numbers.begin() + 10);
                            train_steps(*again, 5, resumed);
                            add_weights(resumed, *again);
                            expect_same(resumed, expected);
                            EXPECT_THAT(sim::problems(), IsEmpty());
                          }),
                IsEmpty())
        << ranks;
    fs::remove_all(folder);
  }
}

std::vector<Offloaded> delayed() {
  std::vector<Offloaded> all;
  for (const int stage : {0, 1, 2, 3}) {
    all.push_back({.run = {.name = concat("zero", stage), .zero_stage = stage, .accumulation = 1}, .delayed = true});
    all.push_back(
        {.run = {.name = concat("zero", stage, "_fp16"), .zero_stage = stage, .type = Type::fp16, .accumulation = 1},
         .delayed = true});
  }
  all.push_back({.run = {.name = "micro_batches", .zero_stage = 2}, .delayed = true});
  all.push_back({.run = {.name = "pipe_zero1", .zero_stage = 1, .type = Type::bf16, .accumulation = 4, .stages = 2},
                 .delayed = true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceDelayedTest, testing::ValuesIn(delayed()),
                         [](const auto& info) { return info.param.run.name; });

} // namespace
} // namespace trireme::engine
