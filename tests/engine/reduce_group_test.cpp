// Experts spread over ranks: each rank has some of them, and gradients of an expert are added up by the ranks that have
// it.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/shards/zero/init.h>

#include <gmock/gmock.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kSteps = 6;
constexpr int kRows = 3; // of a rank
constexpr int64_t kWidth = 5;
constexpr double kClipping = 0.15; // below every norm

at::Tensor first_experts(int64_t experts) {
  return torch::cos(torch::arange(experts * kWidth * kWidth).to(torch::kFloat32))
      .reshape({experts, kWidth, kWidth})
      .div_(3);
}

/// A layer that all ranks have, and experts [begin, end) of `experts`, one or all.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl(int64_t experts, int64_t begin, int64_t end) : begin(begin) {
    torch::manual_seed(3);
    shared = register_module("shared", zero::Sharded<torch::nn::Linear>(kWidth, kWidth));
    weights = register_parameter("experts", first_experts(experts).slice(0, begin, end).clone());
    spare = register_parameter("spare", torch::ones({1, 2}).mul_(static_cast<double>(begin + 1)));
  }
  at::Tensor loss(const at::Tensor& x, int64_t expert, bool uses_spare) {
    const at::Tensor y = torch::matmul(torch::tanh(shared->forward(x)), weights[expert - begin]).square().mean();
    return uses_spare ? y + spare.sum() * 0.1 : y;
  }
  int64_t begin;
  zero::Sharded<torch::nn::Linear> shared{nullptr};
  at::Tensor weights;
  at::Tensor spare; // one for each expert that is used by no rank in some steps
};
TORCH_MODULE(Experts);

at::Tensor rows_of(int step, int rank) {
  return torch::sin(torch::arange(kRows * kWidth).reshape({kRows, kWidth}) * (1.0 + step) + 3.0 * rank);
}

// Expert 1's spare parameter rests in the odd steps.
bool uses_spare(int step, int64_t expert) {
  return expert == 0 || step % 2 == 0;
}

struct Reference {
  std::vector<double> losses;
  std::vector<double> norms;
  at::Tensor experts;
  at::Tensor shared;
  std::vector<at::Tensor> spare;
};

/// All in one process: rank r of `ranks` uses expert r % experts; the loss is the mean over ranks.
Reference with_torch(int ranks, int64_t experts) {
  Reference found;
  Experts model(experts, 0, experts);
  std::vector<at::Tensor> weights, spare;
  for (int64_t e = 0; e < experts; ++e) {
    weights.push_back(first_experts(experts)[e].clone().set_requires_grad(true));
    spare.push_back(torch::ones({1, 2}).mul_(static_cast<double>(e + 1)).set_requires_grad(true));
  }
  std::vector<at::Tensor> all = {model->shared->weight, model->shared->bias};
  all.insert(all.end(), weights.begin(), weights.end());
  all.insert(all.end(), spare.begin(), spare.end());
  torch::optim::SGD optimizer(all, torch::optim::SGDOptions(0.3).momentum(0.9).weight_decay(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t expert = rank % experts;
      const at::Tensor y =
          torch::matmul(torch::tanh(model->shared->forward(rows_of(step, rank))), weights[expert]).square().mean();
      loss = loss + (uses_spare(step, expert) ? y + spare[expert].sum() * 0.1 : y) / ranks;
    }
    loss.backward();
    found.losses.push_back(loss.item<double>());
    found.norms.push_back(torch::nn::utils::clip_grad_norm_(all, kClipping));
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  found.experts = torch::stack(weights);
  found.shared = model->shared->weight.detach().clone();
  found.spare = spare;
  return found;
}

constexpr const char* kAdamW = R"({"type": "AdamW", "params": {"lr": 0.05, "weight_decay": 0.1}})";
constexpr const char* kSgd = R"({"type": "SGD", "params": {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.1}})";

struct ExpertRun {
  Experts model;
  int64_t expert;
  int rank;
  Initialized made;

  ExpertRun(comm::World& world, int64_t experts, int zero_stage, const char* optimizer = kAdamW,
            const std::function<void(InitializeOptions&)>& change = nullptr)
      : model(experts, world.rank() % experts, world.rank() % experts + 1),
        expert(world.rank() % experts),
        rank(world.rank()) {
    InitializeOptions options;
    const std::string text = concat(R"({"train_micro_batch_size_per_gpu": )", kRows, R"(, "gradient_clipping": )",
                                    kClipping, R"(, "optimizer": )", optimizer, "}");
    options.config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
    options.config.data_parallel.bucket_bytes = 128;
    options.config.zero.stage = zero_stage;
    options.config.zero.param_persistence_threshold = 0;
    options.model = model.ptr();
    options.loss = [this](const data::Batch& batch) {
      return model->loss(batch.input(), expert, uses_spare(static_cast<int>(made.engine->global_steps()), expert));
    };
    options.placement = [this, experts](const std::string& name, const at::Tensor&) {
      if (name == "experts") {
        return bucket::Placement{
            .global_shape = {experts, kWidth, kWidth}, .box_offset = {expert, 0, 0}, .reduce_group = 1};
      }
      return name == "spare"
                 ? bucket::Placement{.global_shape = {experts, 2}, .box_offset = {expert, 0}, .reduce_group = 1}
                 : bucket::Placement();
    };
    options.reduce_groups = [this, experts](const comm::Group& data) {
      std::vector<comm::Group> mine;
      for (int64_t e = 0; e < experts; ++e) {
        std::vector<int> ranks;
        for (int r = static_cast<int>(e); r < data.size(); r += static_cast<int>(experts)) {
          ranks.push_back(r);
        }
        const comm::Group group = data.subgroup(ranks, concat("expert ", e));
        if (e == expert) {
          mine.push_back(group);
        }
      }
      return mine;
    };
    if (change) {
      change(options);
    }
    made = initialize(world, options);
  }
  double step() {
    const at::Tensor x = rows_of(static_cast<int>(made.engine->global_steps()), rank);
    return made.engine->train_batch([&] { return data::Batch{{x}, {x}, kRows}; }).item<double>();
  }
};

TEST(ReduceGroupTest, ExpertsOverRanksTrainAsInOneProcess) {
  for (const auto& [ranks, experts] : {std::pair(2, 2), std::pair(4, 2), std::pair(3, 3)}) {
    const Reference expected = with_torch(ranks, experts);
    for (const int stage : {0, 1, 2, 3}) {
      EXPECT_THAT(run_ranks(ranks,
                            [&, experts = experts](comm::World& world) {
                              ExpertRun run(world, experts, stage, kSgd);
                              for (int step = 0; step < kSteps; ++step) {
                                EXPECT_NEAR(run.step(), expected.losses[step], 1e-5 * expected.losses[step])
                                    << "step " << step;
                                EXPECT_NEAR(run.made.engine->get_global_grad_norm().value(), expected.norms[step],
                                            1e-5 * expected.norms[step])
                                    << "step " << step;
                              }
                              const auto whole = run.made.engine->gather_parameters(run.model->parameters());
                              EXPECT_TRUE(run.model->weights[0].allclose(expected.experts[run.expert], 1e-4, 1e-6));
                              EXPECT_TRUE(run.model->shared->weight.allclose(expected.shared, 1e-4, 1e-6));
                              EXPECT_TRUE(run.model->spare.allclose(expected.spare[run.expert], 1e-4, 1e-6));
                            }),
                  IsEmpty())
          << ranks << " ranks, " << experts << " experts, ZeRO stage " << stage;
    }
  }
}

// With an expert of one rank, whose gradients nobody adds up.
TEST(ReduceGroupTest, ScalingBeforeTheSumHoldsForEveryGroup) {
  for (const auto& [ranks, experts] : {std::pair(2, 2), std::pair(4, 2)}) {
    const Reference expected = with_torch(ranks, experts);
    for (const bool prescale : {true, false}) {
      for (const int stage : {0, 1, 2}) {
        EXPECT_THAT(run_ranks(ranks,
                              [&, experts = experts](comm::World& world) {
                                ExpertRun run(world, experts, stage, kSgd, [&](InitializeOptions& options) {
                                  options.config.data_parallel.prescale_gradients = prescale;
                                  options.config.data_parallel.gradient_predivide_factor = prescale ? 1 : 4;
                                });
                                for (int step = 0; step < kSteps; ++step) {
                                  EXPECT_NEAR(run.step(), expected.losses[step], 1e-5 * expected.losses[step])
                                      << "step " << step;
                                  EXPECT_NEAR(run.made.engine->get_global_grad_norm().value(), expected.norms[step],
                                              1e-5 * expected.norms[step])
                                      << "step " << step;
                                }
                              }),
                    IsEmpty())
            << ranks << " ranks, stage " << stage
            << (prescale ? ", prescale_gradients" : ", gradient_predivide_factor");
      }
    }
  }
}

TEST(ReduceGroupTest, TheWholeModelIsCounted) {
  on_ranks(4, [](comm::World& world) {
    ExpertRun run(world, 2, 1);
    EXPECT_EQ(run.made.engine->num_parameters(), kWidth * kWidth + kWidth + 2 * (kWidth * kWidth + 2));
  });
}

// One rank has a parameter that nobody else has, and does not use it in every step.
TEST(ReduceGroupTest, RanksMayHaveDifferentNumbersOfGroups) {
  on_ranks(2, [](comm::World& world) {
    const bool has = world.rank() == 1;
    torch::nn::Linear shared(kWidth, 1);
    const auto model = std::make_shared<torch::nn::Module>();
    model->register_module("shared", shared);
    const at::Tensor extra = has ? model->register_parameter("extra", torch::ones({2})) : at::Tensor();
    int step = 0;
    InitializeOptions options;
    options.config = config::read_deepspeed(
        JsonNode::parse(concat(R"({"train_micro_batch_size_per_gpu": 3, "optimizer": )", kSgd, "}"), "test.json"));
    options.model = model;
    options.loss = [&](const data::Batch& batch) {
      const at::Tensor loss = shared->forward(batch.input()).square().mean();
      return has && step % 2 == 0 ? loss + extra.sum() : loss;
    };
    options.placement = [](const std::string& name, const at::Tensor&) {
      return bucket::Placement{.reduce_group = name == "extra" ? 1 : 0};
    };
    options.reduce_groups = [&](const comm::Group&) {
      return has ? std::vector<comm::Group>{comm::Group()} : std::vector<comm::Group>();
    };
    const auto engine = initialize(world, options).engine;
    EXPECT_EQ(engine->num_parameters(), kWidth + 1 + 2);
    for (; step < 4; ++step) {
      engine->train_batch([&] { return data::Batch{{rows_of(step, world.rank())}, {}, kRows}; });
    }
  });
}

TEST(ReduceGroupTest, ACheckpointHasTheWholeAndFitsOtherNumbersOfRanks) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_experts_", ::getpid());
  for (const int stage : {0, 1, 3}) {
    on_ranks(4, [&](comm::World& world) {
      ExpertRun whole(world, 2, stage);
      whole.step();
      whole.step();
      whole.made.engine->save_checkpoint(folder, "two");
      ExpertRun resumed(world, 2, stage == 0 ? 1 : stage);
      ASSERT_TRUE(resumed.made.engine->load_checkpoint(folder));
      for (int step = 0; step < 3; ++step) {
        const double loss = whole.step();
        EXPECT_NEAR(resumed.step(), loss, stage == 0 ? 1e-6 * loss : 0);
      }
      const checkpoint::Checkpoint saved = checkpoint::Checkpoint::open(folder);
      for (const char* name : {"experts", "exp_avg/experts", "exp_avg_sq/experts"}) {
        EXPECT_EQ(saved.entry(name).shape, (std::vector<int64_t>{2, kWidth, kWidth})) << name;
      }
    });
    on_ranks(2, [&](comm::World& world) {
      ExpertRun two(world, 2, stage);
      ASSERT_TRUE(two.made.engine->load_checkpoint(folder));
      const checkpoint::Checkpoint saved = checkpoint::Checkpoint::open(folder);
      const auto all = two.made.engine->gather_parameters(two.model->parameters());
      EXPECT_TRUE(two.model->weights[0].equal(saved.read("experts")[two.expert]));
    });
    fs::remove_all(folder);
  }
}

TEST(ReduceGroupTest, WhatCannotBeIsRefusedByName) {
  on_ranks(2, [](comm::World& world) {
    const auto refusal = [&](const std::function<void(InitializeOptions&)>& change) -> std::string {
      try {
        ExpertRun run(world, 2, 0, kAdamW, change);
      } catch (const InputError& error) {
        return error.what();
      }
      return "made";
    };
    EXPECT_THAT(refusal([](auto& options) { options.reduce_groups = nullptr; }),
                HasSubstr("has reduce_group 1, but there are 1 groups"));
    EXPECT_THAT(refusal([](auto& options) {
                  options.placement = [](const std::string& name, const at::Tensor&) {
                    return name == "experts"
                               ? bucket::Placement{.global_shape = {2, kWidth, kWidth}, .box_offset = {2, 0, 0}}
                               : bucket::Placement();
                  };
                }),
                HasSubstr("\"experts\" has global_shape [2, 5, 5] and box_offset [2, 0, 0], which its shape "
                          "[1, 5, 5] does not fit"));
    EXPECT_THAT(refusal([&](auto& options) { // the data group would add up different elements
                  options.placement = [&](const std::string& name, const at::Tensor&) {
                    return name == "experts" ? bucket::Placement{.global_shape = {2, kWidth, kWidth},
                                                                 .box_offset = {world.rank(), 0, 0}}
                                             : bucket::Placement();
                  };
                }),
                HasSubstr("\"experts, Float [1, 5, 5] at [1, 0, 0] of [2, 5, 5]\" where rank 0 has"));
    EXPECT_THAT(refusal([](auto& options) { options.model->named_parameters()["spare"].set_requires_grad(false); }),
                HasSubstr("\"spare\" splits it or has a reduce group, but it is frozen"));
    EXPECT_THAT(refusal([](auto& options) {
                  options.config.optimizer = optim::OptimizerOptions{.rule = optim::LambOptions{}};
                }),
                HasSubstr("lamb needs the norm of the full parameter \"experts\""));
    {
      std::unique_ptr<Experts> early;
      {
        const zero::Init init(world);
        early = std::make_unique<Experts>(2, world.rank(), world.rank() + 1);
      }
      EXPECT_THAT(refusal([&](auto& options) {
                    options.model = early->ptr();
                    options.placement = [](const std::string& name, const at::Tensor&) {
                      return bucket::Placement{.reduce_group = name == "shared.weight" ? 1 : 0};
                    };
                  }),
                  HasSubstr("\"shared.weight\" has its own reduce_group, but zero::Init has sharded it"));
    }
    ExpertRun run(world, 2, 0);
    EXPECT_THROW(run.made.engine->gather_parameters({run.model->weights}, 0), InputError);
  });
}

} // namespace
} // namespace trireme::engine
