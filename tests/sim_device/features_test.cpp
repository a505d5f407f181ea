// What an engine can do besides whole steps of whole models, on the simulated device: the bits of the CPU, without a
// race.
#include "engine_case.h"

#include <tests/support/run_ranks.h>

#include <trireme/engine/preemption.h>
#include <trireme/fused/fused.h>
#include <trireme/shards/zero/sharded.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <numeric>

namespace trireme::engine {
namespace {

using precision::Type;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

std::shared_ptr<Engine> engine_of(comm::World& world, const InitializeOptions& options) {
  return initialize(world, options).engine;
}

// Micro-batches of one step, and ranks, have different numbers of samples.
TEST(SimDeviceFeatures, UnequalMicroBatches) {
  for (const int stage : {0, 2, 3}) {
    on_both(2, [stage](comm::World& world, at::Device device) {
      const auto engine = engine_of(world, options_of({.name = "", .zero_stage = stage, .accumulation = 3}, device));
      Seen seen;
      int64_t calls = 0;
      const auto next = [&] {
        std::vector<int64_t> indices(static_cast<size_t>(1 + (calls + world.rank()) % 4));
        std::iota(indices.begin(), indices.end(), 5 * calls++);
        return Counting().get(indices);
      };
      for (int i = 0; i < kSteps; ++i) {
        step(*engine, [&] { engine->train_batch(next); });
        add_step(seen, *engine);
      }
      add_weights(seen, *engine);
      return seen;
    });
  }
}

TEST(SimDeviceFeatures, EvaluationBetweenSteps) {
  const Case cases[] = {
      {.name = "", .zero_stage = 1, .type = Type::bf16}, {.name = "", .zero_stage = 3}, {.name = "", .stages = 2}};
  for (const Case& one : cases) {
    on_both(2, [&one](comm::World& world, at::Device device) {
      const auto engine = engine_of(world, options_of(one, device));
      const int replicas = world.size() / one.stages;
      data::DataLoader loader(std::make_shared<Counting>(),
                              data::DistributedSampler(192, {.rank = world.rank() / one.stages, .replicas = replicas}),
                              7);
      Seen seen;
      for (int i = 0; i < kSteps; ++i) {
        step(*engine, [&] { engine->train_batch(); });
        add_step(seen, *engine);
        step(*engine, [&] { seen.numbers.push_back(engine->evaluate(loader, 3 + i)); });
        seen.numbers.push_back(engine->eval_batch(Counting().get(std::vector<int64_t>{3, 1, 4, 1, 5})).item<double>());
      }
      add_weights(seen, *engine);
      return seen;
    });
  }
}

// The first scale is far too large.
TEST(SimDeviceFeatures, StepsOfFp16AreSkippedUntilTheScaleFits) {
  for (const int stage : {0, 2, 3}) {
    on_both(2, [stage](comm::World& world, at::Device device) {
      InitializeOptions options = options_of({.name = "", .zero_stage = stage, .type = Type::fp16}, device);
      options.config.precision.loss_scale.initial_scale_power = 20;
      options.config.precision.loss_scale.hysteresis = 1;
      const auto engine = engine_of(world, options);
      Seen seen;
      for (int i = 0; i < 10; ++i) {
        step(*engine, [&] { engine->train_batch(); });
        seen.numbers.push_back(engine->loss());
        seen.numbers.push_back(*engine->loss_scale());
      }
      EXPECT_GT(engine->skipped_steps(), 1);
      EXPECT_LT(engine->skipped_steps(), 8);
      add_weights(seen, *engine);
      return seen;
    });
  }
}

TEST(SimDeviceFeatures, GroupsOfParametersHaveTheirOwnRates) {
  for (const int stage : {0, 1, 3}) {
    for (const char* const optimizer : {"AdamW", "SGD", "LAMB"}) {
      on_both(2, [&](comm::World& world, at::Device device) {
        InitializeOptions options = options_of({.name = "", .zero_stage = stage, .optimizer = optimizer}, device);
        options.parameter_groups = {
            {.chooses = [](const std::string& name, const auto&) { return name.find("wte") != std::string::npos; },
             .lr_factor = 0.25},
            {.chooses = [](const std::string&, const auto& sizes) { return sizes.size() < 2; },
             .lr_factor = 2,
             .weight_decay = 0}};
        return train(*engine_of(world, options));
      });
    }
  }
}

// Of three layers one is used in some steps, by the last rank alone, and one never.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    torch::manual_seed(3);
    always = register_module("always", zero::Sharded<torch::nn::Linear>(6, 6));
    sometimes = register_module("sometimes", zero::Sharded<torch::nn::Linear>(6, 6));
    never = register_module("never", zero::Sharded<torch::nn::Linear>(6, 6));
  }
  zero::Sharded<torch::nn::Linear> always{nullptr}, sometimes{nullptr}, never{nullptr};
};
TORCH_MODULE(Branches);

TEST(SimDeviceFeatures, ParametersThatAreNotUsed) {
  for (const int stage : {0, 1, 2, 3}) {
    on_both(3, [stage](comm::World& world, at::Device device) {
      Branches model;
      bool branch = false;
      InitializeOptions options;
      options.device = device;
      options.config = zero_config(stage, 2);
      options.config.data_parallel.bucket_bytes = 200;
      options.config.data_parallel.first_bucket_bytes = 200;
      options.model = model.ptr();
      options.loss = [model, &branch](const data::Batch& batch) mutable {
        const at::Tensor y = model->always->forward(batch.input());
        return (branch ? y + model->sometimes->forward(batch.input()) : y).square().mean();
      };
      const auto engine = engine_of(world, options);
      Seen seen;
      for (int i = 0; i < 6; ++i) {
        int micro_batch = 0;
        step(*engine, [&] {
          engine->train_batch([&] {
            branch = i % 2 == 1 && world.rank() == 2 && micro_batch++ == 1;
            const at::Tensor x = torch::linspace(-1, 1, 48).reshape({8, 6}) * (1 + 0.1 * i + 0.2 * world.rank());
            return data::Batch{{x}, {x}, 8};
          });
        });
        add_step(seen, *engine);
      }
      add_weights(seen, *engine);
      return seen;
    });
  }
}

// All layers are used in the first steps, then one rank lacks a layer, then each rank lacks another one, then all lack
// the same.
TEST(SimDeviceFeatures, ParametersThatCeaseToBeUsed) {
  for (const int stage : {0, 1, 2}) {
    on_both(2, [stage](comm::World& world, at::Device device) {
      Branches model;
      bool sometimes = true, never = true;
      InitializeOptions options;
      options.device = device;
      options.config = zero_config(stage, 1);
      options.config.data_parallel.bucket_bytes = 200;
      options.config.data_parallel.first_bucket_bytes = 200;
      options.model = model.ptr();
      options.loss = [&, model](const data::Batch& batch) mutable {
        at::Tensor y = model->always->forward(batch.input());
        y = sometimes ? y + model->sometimes->forward(batch.input()) : y;
        return (never ? y + model->never->forward(batch.input()) : y).square().mean();
      };
      const auto engine = engine_of(world, options);
      Seen seen;
      for (int i = 0; i < 10; ++i) {
        const int phase = i < 3 ? 0 : i < 5 ? 1 : i < 7 ? 2 : 3;
        sometimes = phase == 0 || (phase < 3 && world.rank() == 0);
        never = phase < 2 || phase == 3 || world.rank() == 1;
        step(*engine, [&] {
          engine->train_batch([&] {
            const at::Tensor x = torch::linspace(-1, 1, 48).reshape({8, 6}) * (1 + 0.1 * i + 0.2 * world.rank());
            return data::Batch{{x}, {x}, 8};
          });
        });
        add_step(seen, *engine);
      }
      add_weights(seen, *engine);
      return seen;
    });
  }
}

TEST(SimDeviceFeatures, ParametersThatOneRankChanges) {
  for (const int stage : {0, 2, 3}) {
    on_both(3, [stage](comm::World& world, at::Device device) {
      const auto engine = engine_of(world, options_of({.name = "", .zero_stage = stage, .type = Type::bf16}, device));
      Seen seen = train(*engine, 2);
      {
        const torch::NoGradGuard no_grad;
        std::vector<at::Tensor> some = engine->module().parameters();
        some.resize(5);
        const auto whole = engine->gather_parameters(some, /*modifier_rank=*/1);
        for (at::Tensor& parameter : some) {
          parameter.mul_(0.5 + world.rank());
        }
      }
      const Seen rest = train(*engine, 2);
      seen.numbers.insert(seen.numbers.end(), rest.numbers.begin(), rest.numbers.end());
      seen.weights = rest.weights;
      return seen;
    });
  }
}

TEST(SimDeviceFeatures, FrozenParameters) {
  for (const int stage : {0, 1, 3}) {
    on_both(2, [stage](comm::World& world, at::Device device) {
      const InitializeOptions options = options_of({.name = "", .zero_stage = stage, .type = Type::bf16}, device);
      int frozen = 0;
      for (const auto& item : options.model->named_parameters()) {
        const bool freeze =
            item.key().find("wpe") != std::string::npos || item.key().find("h.0.attn") != std::string::npos;
        item.value().set_requires_grad(!freeze);
        frozen += freeze ? 1 : 0;
      }
      EXPECT_GT(frozen, 2);
      return train(*engine_of(world, options));
    });
  }
}

TEST(SimDeviceFeatures, RanksStopTogether) {
  for (const int stages : {1, 2}) {
    on_both(2, [stages](comm::World& world, at::Device device) {
      const Preemption preemption;
      const auto engine = engine_of(world, options_of({.name = "", .stages = stages}, device));
      Seen seen;
      while (engine->global_steps() < 5 && !engine->stop_agreed()) {
        if (world.rank() == 1 && engine->global_steps() == 2 && !device.is_cpu()) {
          Preemption::ask();
        }
        step(*engine, [&] { engine->train_batch(); });
        if (engine->global_steps() <= 3) {
          add_step(seen, *engine);
        }
      }
      EXPECT_EQ(engine->global_steps(), device.is_cpu() ? 5 : 4)
          << "the hosts read the third step's sums in the fourth";
      return seen;
    });
  }
}

// A save between two steps settles the last one, on all ranks.
TEST(SimDeviceFeatures, RanksThatWaitForAStepStopAfterIt) {
  on_both(2, [](comm::World& world, at::Device device) {
    const Preemption preemption;
    const auto engine = engine_of(world, options_of({.name = ""}, device));
    Seen seen = train(*engine, 2);
    if (world.rank() == 1 && !device.is_cpu()) {
      Preemption::ask();
    }
    engine->train_batch();
    EXPECT_FALSE(engine->stop_agreed());
    engine->finish_delayed_update();
    EXPECT_EQ(engine->stop_agreed(), !device.is_cpu());
    return seen;
  });
}

// Each rank has one of two experts, of which only the ranks that have it add up the gradients.
TEST(SimDeviceFeatures, ExpertsOverRanks) {
  for (const int stage : {0, 1, 2, 3}) {
    on_both(4, [stage](comm::World& world, at::Device device) {
      constexpr int64_t kWidth = 5;
      const int expert = world.rank() % 2;
      struct Experts : torch::nn::Module {
        zero::Sharded<torch::nn::Linear> shared{nullptr};
        at::Tensor weights;
      };
      torch::manual_seed(3);
      const auto model = std::make_shared<Experts>();
      model->shared = model->register_module("shared", zero::Sharded<torch::nn::Linear>(kWidth, kWidth));
      model->weights = model->register_parameter("experts", torch::cos(torch::arange(2 * kWidth * kWidth))
                                                                .reshape({2, kWidth, kWidth})
                                                                .slice(0, expert, expert + 1)
                                                                .clone());
      InitializeOptions options;
      options.device = device;
      options.config = zero_config(stage, 1, 0.15);
      options.config.data_parallel.bucket_bytes = 128;
      options.config.zero.param_persistence_threshold = 0;
      options.model = model;
      options.loss = [model](const data::Batch& batch) {
        return torch::matmul(torch::tanh(model->shared->forward(batch.input())), model->weights[0]).square().mean();
      };
      options.placement = [expert](const std::string& name, const at::Tensor&) {
        return name == "experts" ? bucket::Placement{.global_shape = {2, kWidth, kWidth},
                                                     .box_offset = {expert, 0, 0},
                                                     .reduce_group = 1}
                                 : bucket::Placement();
      };
      options.reduce_groups = [expert](const comm::Group& data) {
        std::vector<comm::Group> mine;
        for (const int e : {0, 1}) {
          const comm::Group group = data.subgroup({e, e + 2}, concat("expert ", e));
          if (e == expert) {
            mine.push_back(group);
          }
        }
        return mine;
      };
      const auto engine = engine_of(world, options);
      Seen seen;
      for (int i = 0; i < 6; ++i) {
        const at::Tensor x =
            torch::sin(torch::arange(12 * kWidth).reshape({12, kWidth}) * (1.0 + i) + 3.0 * world.rank());
        step(*engine, [&] { engine->train_batch([&] { return data::Batch{{x}, {x}, 12}; }); });
        add_step(seen, *engine);
      }
      add_weights(seen, *engine);
      return seen;
    });
  }
}

// Statistics are taken over the ranks without a wait of the host.
TEST(SimDeviceFeatures, BatchNormOverRanks) {
  for (const auto type : {Type::fp32, Type::bf16}) {
    on_both(3, [type](comm::World& world, at::Device device) {
      torch::manual_seed(1);
      torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 1));
      InitializeOptions options;
      options.device = device;
      options.config = zero_config(1, 2);
      options.config.precision.compute = type;
      options.config.data_parallel.sync_batch_norm = true;
      options.model = net.ptr();
      options.loss = [net](const data::Batch& batch) mutable {
        return net->forward(batch.input()).to(at::kFloat).square().mean();
      };
      const auto engine = engine_of(world, options);
      Seen seen;
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor x =
            torch::sin(torch::arange(32, torch::kFloat32).reshape({8, 4}) * (1.0 + i) + 3.0 * world.rank());
        step(*engine, [&] {
          engine->train_batch(
              [&] { return data::Batch{{x.to(type == Type::bf16 ? at::kBFloat16 : at::kFloat)}, {}, 8}; });
        });
        add_step(seen, *engine);
      }
      add_weights(seen, *engine);
      for (const at::Tensor& buffer : net->buffers()) {
        seen.weights.push_back(buffer.cpu().clone());
      }
      return seen;
    });
  }
}

// ATen's own loss of bf16 logits is bf16, and its gradient's rows do not add up to 0.
TEST(SimDeviceFeatures, TheLossOfHalfLogitsIsExactWithoutAWait) {
  on_ranks(1, [](comm::World&) {
    start();
    torch::manual_seed(6);
    const at::Tensor values = (torch::randn({64, 500}) + 10).to(at::kBFloat16), target = torch::arange(64) * 7;
    const double expected = at::cross_entropy_loss(values.to(at::kDouble), target).item<double>();
    const at::Tensor x = values.to(sim::device()).requires_grad_(), there = target.to(sim::device());
    sim::reset_host_synchronisations();
    const at::Tensor loss = fused::cross_entropy(x * 1, there, at::Reduction::Mean, -100, fused::Logits::overwrite);
    (loss * 64).backward();
    EXPECT_THAT(sim::host_synchronisation_names(), IsEmpty());
    EXPECT_NEAR(loss.item<double>(), expected, 1e-5 * expected);
    EXPECT_LT(x.grad().cpu().to(at::kDouble).sum(1).abs().max().item<double>(), 3e-3);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

// After three skipped steps each gradient is read, on every rank.
TEST(SimDeviceFeatures, TheSourceOfNanIsFound) {
  on_ranks(2, [](comm::World& world) {
    start();
    const InitializeOptions options = options_of({.name = "", .zero_stage = 1, .type = Type::bf16}, sim::device());
    const auto engine = engine_of(world, options);
    const at::Tensor bad = options.model->named_parameters()["transformer.h.1.ln_2.bias"];
    bad.register_hook([&world](const at::Tensor& grad) { return world.rank() == 1 ? grad * NAN : grad; });
    try {
      for (int i = 0; i < 30; ++i) {
        engine->train_batch();
      }
      ADD_FAILURE() << "went on for ever";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("20 steps in a row"), testing::HasSubstr("rank 1"),
                                               testing::HasSubstr("transformer.h.1.ln_2.bias")));
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

} // namespace
} // namespace trireme::engine
