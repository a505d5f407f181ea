// Which parameters a step touches, and how: unused ones, those that do not decay, modules that stay in evaluation mode.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <map>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

/// A branch for each rank's choice, and one that nobody takes.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    torch::manual_seed(3);
    always = register_module("always", torch::nn::Linear(6, 6));
    sometimes = register_module("sometimes", torch::nn::Linear(6, 6));
    never = register_module("never", torch::nn::Linear(6, 6));
  }
  at::Tensor loss(const at::Tensor& x, bool branch) {
    at::Tensor y = always->forward(x);
    y = branch ? y + sometimes->forward(x) : y;
    return y.square().mean();
  }
  torch::nn::Linear always = nullptr, sometimes = nullptr, never = nullptr;
};
TORCH_MODULE(Branches);

using Values = std::map<std::string, at::Tensor>;

Values values_of(torch::nn::Module& model) {
  Values found;
  for (const auto& item : model.named_parameters()) {
    found[item.key()] = item.value().detach().clone();
  }
  return found;
}

at::Tensor sample(int64_t step, int64_t index) {
  return torch::linspace(-1, 1, 12).reshape({2, 6}) * (0.1 * static_cast<double>(1 + step + 2 * index));
}

struct DecayCase {
  const char* optimizer;
  int zero_stage = 0;
  int64_t accumulation = 1;
  double clipping = 1;
};

constexpr int kSteps = 6;

// The branch is taken by the last rank alone, in its last micro-batch, in steps 1, 3 and 5.
bool takes_branch(int step, int64_t micro_batch, const DecayCase& c, int rank, int ranks) {
  return step % 2 == 1 && rank == ranks - 1 && micro_batch == c.accumulation - 1;
}

Values trained(comm::World& world, const DecayCase& c) {
  Branches model;
  const std::string text =
      concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )", c.accumulation,
             R"(, "gradient_clipping": )", c.clipping, R"(, "optimizer": )", c.optimizer, "}");
  config::EngineConfig config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
  config.data_parallel.bucket_bytes = 200;
  config.data_parallel.first_bucket_bytes = 200;
  config.zero.stage = c.zero_stage;
  bool branch = false;
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [model, &branch](const data::Batch& batch) mutable { return model->loss(batch.input(), branch); };
  options.config = config;
  const auto made = initialize(world, options);
  for (int step = 0; step < kSteps; ++step) {
    int64_t micro_batch = 0;
    made.engine->train_batch([&] {
      branch = takes_branch(step, micro_batch, c, world.rank(), world.size());
      const at::Tensor x = sample(step, micro_batch * world.size() + world.rank());
      ++micro_batch;
      return data::Batch{{x}, {x}, 2};
    });
  }
  return values_of(*model);
}

// One process and torch's optimizer, which leaves out what has no gradient.
Values plain(const DecayCase& c, int ranks) {
  Branches model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int64_t micro_batch = 0; micro_batch < c.accumulation; ++micro_batch) {
      for (int rank = 0; rank < ranks; ++rank) {
        const bool branch = takes_branch(step, micro_batch, c, rank, ranks);
        (model->loss(sample(step, micro_batch * ranks + rank), branch) / static_cast<double>(ranks * c.accumulation))
            .backward();
      }
    }
    if (c.clipping > 0) {
      torch::nn::utils::clip_grad_norm_(model->parameters(), c.clipping);
    }
    optimizer.step();
  }
  return values_of(*model);
}

constexpr const char* kSgd = R"({"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}})";
constexpr const char* kAdam = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
constexpr const char* kNarrowAdam =
    R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "state_dtype": "bf16"}})";
constexpr const char* kLamb = R"({"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}})";

TEST(ParameterRulesTest, WhatNoRankUsedIsNotStepped) {
  for (const int ranks : {1, 2, 3}) {
    EXPECT_THAT(run_ranks(ranks,
                          [ranks](comm::World& world) {
                            for (const int64_t accumulation : {1, 2}) {
                              for (const double clipping : {0.0, 1.0}) {
                                for (const int stage : {0, 1, 2, 3}) {
                                  const DecayCase c{kSgd, stage, accumulation, clipping};
                                  const Values expected = plain(c, ranks);
                                  for (const auto& [name, tensor] : trained(world, c)) {
                                    EXPECT_LE((tensor - expected.at(name)).abs().max().item<double>(), 1e-6)
                                        << name << ", stage " << stage << ", clipping " << clipping << ", accumulation "
                                        << accumulation;
                                  }
                                }
                              }
                            }
                          }),
                IsEmpty())
        << ranks << " ranks";
  }
}

TEST(ParameterRulesTest, WhatIsNotSteppedIsTheSameAtEveryStage) {
  on_ranks(2, [](comm::World& world) {
    const Values begin = values_of(*Branches());
    for (const char* const optimizer : {kAdam, kNarrowAdam, kLamb}) {
      for (const double clipping : {0.0, 1.0}) {
        const Values zero = trained(world, {optimizer, 0, 1, clipping});
        EXPECT_TRUE(torch::equal(zero.at("never.weight"), begin.at("never.weight"))) << optimizer;
        EXPECT_TRUE(torch::equal(zero.at("never.bias"), begin.at("never.bias"))) << optimizer;
        EXPECT_FALSE(torch::equal(zero.at("sometimes.weight"), begin.at("sometimes.weight"))) << optimizer;
        for (const int stage : {1, 2, 3}) {
          for (const auto& [name, tensor] : trained(world, {optimizer, stage, 1, clipping})) {
            // LAMB's norms are added up in another order.
            const double allowed = optimizer == kLamb ? 1e-6 : 0;
            EXPECT_LE((tensor - zero.at(name)).abs().max().item<double>(), allowed)
                << name << ", stage " << stage << ' ' << optimizer;
          }
        }
      }
    }
  });
}

TEST(ParameterRulesTest, BiasesAndNormsNeedNotDecay) {
  on_ranks(2, [](comm::World& world) {
    const auto trained_with = [&](const std::string& rule, const std::vector<ParameterGroup>& groups = {}) {
      models::Gpt model(small_gpt());
      const std::string text = concat(
          R"({"train_batch_size": 48, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1)", rule,
          "}}}");
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
      options.config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
      options.config.zero.stage = 1;
      options.training_data = std::make_shared<Counting>();
      options.shuffle = false;
      options.parameter_groups = groups;
      const auto made = initialize(world, options);
      made.engine->train_batch();
      return values_of(*model);
    };
    const Values all = trained_with("");
    const Values none = trained_with(
        "", {{.chooses = [](const std::string&, const std::vector<int64_t>&) { return true; }, .weight_decay = 0}});
    const Values matrices = trained_with(R"(, "weight_decay_rule": "matrices")");
    const Values chosen =
        trained_with("", {{.chooses = [](const std::string& name,
                                         const std::vector<int64_t>&) { return name != "transformer.h.0.ln_1.weight"; },
                           .weight_decay = 0}});
    for (const auto& [name, tensor] : matrices) {
      EXPECT_TRUE(torch::equal(tensor, (tensor.dim() < 2 ? none : all).at(name))) << name;
      EXPECT_TRUE(torch::equal(chosen.at(name), (name == "transformer.h.0.ln_1.weight" ? all : none).at(name))) << name;
    }
    EXPECT_FALSE(torch::equal(all.at("transformer.h.0.ln_1.weight"), none.at("transformer.h.0.ln_1.weight")))
        << "PyTorch decays them";
  });
}

TEST(ParameterRulesTest, EvaluationLeavesFrozenModulesFrozen) {
  for (const bool as_list : {false, true}) {
    EXPECT_THAT(run_ranks(2,
                          [as_list](comm::World& world) {
                            torch::manual_seed(1);
                            torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4),
                                                        torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
                            const auto frozen = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(model->ptr(1));
                            const auto trained = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(model->ptr(3));
                            InitializeOptions options;
                            if (as_list) {
                              options.pipeline = std::make_shared<pipeline::PipelineModule>(
                                  pipeline::LayerList(model),
                                  [](const pipeline::Tensors& outputs, const pipeline::Tensors&) {
                                    return outputs.at(0).square().mean();
                                  });
                            } else {
                              options.model = model.ptr();
                              options.loss = [model](const data::Batch& batch) mutable {
                                return model->forward(batch.input()).square().mean();
                              };
                            }
                            options.config = small_config(16, 1);
                            const auto made = initialize(world, options);
                            const auto next = [] {
                              const at::Tensor x = torch::randn({8, 4}) + 3;
                              return data::Batch{{x}, {x}, 8};
                            };
                            frozen->eval();
                            const at::Tensor before = frozen->running_mean.clone();
                            made.engine->train_batch(next);
                            made.engine->eval_batch(next());
                            EXPECT_TRUE(trained->is_training());
                            EXPECT_TRUE(as_list || model->is_training());
                            const at::Tensor between = trained->running_mean.clone();
                            made.engine->train_batch(next);
                            EXPECT_FALSE(frozen->is_training());
                            EXPECT_TRUE(torch::equal(frozen->running_mean, before)) << "its statistics stay";
                            EXPECT_FALSE(torch::equal(trained->running_mean, between));
                          }),
                IsEmpty())
        << (as_list ? "a list of layers" : "one module");
  }
}

/// Frozen parameters are in no buffer at the lower ZeRO stages.
TEST(ParameterRulesTest, WhatIsChangedInFrozenParametersIsSentToo) {
  for (const int stage : {0, 2, 3}) {
    on_ranks(3, [stage](comm::World& world) {
      models::Gpt model(small_gpt());
      at::Tensor frozen = model->transformer->embedding->wpe->weight;
      frozen.set_requires_grad(false);
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
      options.config = small_config(48, 1);
      options.config.zero.stage = stage;
      options.training_data = std::make_shared<Counting>();
      const auto made = initialize(world, options);
      {
        const auto whole = made.engine->gather_parameters({frozen}, /*modifier_rank=*/1);
        frozen.fill_(world.rank());
      }
      const auto whole = made.engine->gather_parameters({frozen});
      EXPECT_TRUE(frozen.equal(torch::ones_like(frozen)));
    });
  }
}

} // namespace
} // namespace trireme::engine
