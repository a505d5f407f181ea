#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/device/absent_memory.h>

#include <trireme/models/gpt_layers.h>
#include <trireme/shards/zero/init.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/CPUGeneratorImpl.h>

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

struct ZeroCase {
  int stage;
  int ranks;
  int64_t accumulation;
  double clipping;
};

std::vector<ZeroCase> zero_cases() {
  std::vector<ZeroCase> all;
  for (const int stage : {1, 2, 3}) {
    for (const int ranks : {2, 3, 4}) {
      for (const int64_t accumulation : {1, 4}) {
        for (const double clipping : {0.0, 1.0}) {
          all.push_back({stage, ranks, accumulation, clipping});
        }
      }
    }
  }
  return all;
}

class ZeroEqualsOneProcess : public testing::TestWithParam<ZeroCase> {};

TEST_P(ZeroEqualsOneProcess, ForTwentySteps) {
  const ZeroCase c = GetParam();
  on_ranks(c.ranks, [c](comm::World& world) {
    SmallRun run(world, zero_config(c.stage, c.accumulation, c.clipping));
    run.engine().want_grad_norm(true);
    std::vector<double> norms;
    const std::vector<double> expected = plain_losses(kZeroBatch, 20, c.clipping, &norms);
    for (int step = 0; step < 20; ++step) {
      const double loss = run.engine().train_batch().item<double>();
      EXPECT_NEAR(loss, expected[step], 1e-6 * expected[step]) << "step " << step;
      EXPECT_NEAR(*run.engine().get_global_grad_norm(), norms[step], 2e-5 * norms[step]) << "step " << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, ZeroEqualsOneProcess, testing::ValuesIn(zero_cases()), [](const auto& info) {
  return concat("stage", info.param.stage, "_", info.param.ranks, "ranks_", info.param.accumulation, "accumulated_",
                info.param.clipping > 0 ? "clipped" : "free");
});

/// Parameters that are frozen, that nothing uses, that have an odd size, and one that two layers share.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl() {
    torch::manual_seed(3);
    first = register_module("first", zero::Sharded<torch::nn::Linear>(9, 13));
    frozen = register_module(
        "frozen", zero::Sharded<torch::nn::Linear>(
                      [](torch::nn::LinearImpl& linear) { linear.weight.set_requires_grad(false); }, 13, 13));
    unused = register_module("unused", zero::Sharded<torch::nn::Linear>(5, 7));
    last = register_module("last", zero::Sharded<torch::nn::Linear>(13, 9));
    scale = register_parameter("scale", torch::ones({1}));
    shared = register_parameter("shared", first->weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(torch::gelu(frozen->forward(torch::tanh(first->forward(x))))) * scale +
           first->use([&] { return x.matmul(shared.t()); }).sum();
  }
  zero::Sharded<torch::nn::Linear> first{nullptr}, frozen{nullptr}, unused{nullptr}, last{nullptr};
  at::Tensor scale, shared;
};
TORCH_MODULE(OddNet);

struct OddRun {
  OddNet model;
  Initialized made;

  OddRun(comm::World& world, const config::EngineConfig& config) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [net = model](const data::Batch& batch) mutable {
      return (net->forward(batch.input()) - batch.target()).square().mean();
    };
    options.config = config;
    made = initialize(world, options);
  }
  double step(int64_t number, int rank) {
    torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(number * 100 + rank));
    const int64_t rows = made.engine->train_micro_batch_size_per_gpu();
    const data::Batch batch{{torch::randn({rows, 9}, generator)}, {torch::randn({rows, 9}, generator)}, rows};
    return made.engine->train_batch([&] { return batch; }).item<double>();
  }
};

/// Over shared memory all-reduce and reduce-scatter add in the order of the ranks, so that the stages agree to the last
/// bit. Stage 2 adds micro-batches after the ranks, stages 0 and 1 before: with accumulation the bits may differ.
class ZeroEqualsStageZero : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ZeroEqualsStageZero, BitForBit) {
  const auto [stage, ranks] = GetParam();
  for (const double clipping : {0.0, 0.5}) {
    on_ranks(ranks, [stage = stage, clipping](comm::World& world) {
      ASSERT_STREQ(world.group().backend(), "shm");
      OddRun plain(world, zero_config(0, 1, clipping));
      OddRun sharded(world, zero_config(stage, 1, clipping));
      for (int step = 0; step < 12; ++step) {
        EXPECT_EQ(plain.step(step, world.rank()), sharded.step(step, world.rank())) << "step " << step;
        if (clipping > 0) {
          const double norm = *plain.made.engine->get_global_grad_norm();
          EXPECT_NEAR(*sharded.made.engine->get_global_grad_norm(), norm, 1e-12 * norm) << "step " << step;
        }
      }
      const auto a = plain.model->named_parameters();
      const auto whole = sharded.made.engine->gather_parameters(sharded.model->parameters());
      for (const auto& item : sharded.model->named_parameters()) {
        EXPECT_TRUE(item.value().equal(a[item.key()])) << item.key();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZeroEqualsStageZero, testing::Combine(testing::Values(1, 2, 3), testing::Values(2, 3, 4)),
                         [](const auto& info) {
                           return concat("stage", std::get<0>(info.param), "_", std::get<1>(info.param), "ranks");
                         });

/// Under zero::Init no rank has more than its shards and one module, and whatever follows is as without it.
TEST(ZeroTest, InitBuildsTheSameModel) {
  for (const int stage : {0, 2, 3}) {
    on_ranks(3, [stage](comm::World& world) {
      config::EngineConfig config = zero_config(stage);
      SmallRun plain(world, config);
      std::optional<zero::Init> init(std::in_place, world);
      models::Gpt model(small_gpt());
      EXPECT_FALSE(device::has_memory(model->transformer->h[0]->parameters()[0]));
      init.reset();
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
      options.config = config;
      options.training_data = std::make_shared<Counting>();
      options.shuffle = false;
      const auto early = initialize(world, options);
      for (int step = 0; step < 5; ++step) {
        EXPECT_EQ(plain.engine().train_batch().item<double>(), early.engine->train_batch().item<double>());
      }
    });
  }
}

TEST(ZeroTest, RanksWithAnotherSeedTakeRankZerosValues) {
  on_ranks(3, [](comm::World& world) {
    torch::manual_seed(world.rank());
    const zero::Init init(world);
    const zero::Sharded<torch::nn::Linear> linear(8, 8);
    torch::manual_seed(0);
    const torch::nn::Linear of_rank_0(8, 8);
    const torch::NoGradGuard no_grad;
    const at::Tensor x = torch::ones({2, 8});
    EXPECT_TRUE(zero::Sharded<torch::nn::Linear>(linear)->forward(x).equal(torch::nn::Linear(of_rank_0)->forward(x)));
    EXPECT_THROW(const zero::Init another(world), Error);
  });
}

TEST(ZeroTest, EvaluationAndAccumulationMixAtStageThree) {
  on_ranks(2, [](comm::World& world) {
    SmallRun plain(world, zero_config(0, 2));
    SmallRun sharded(world, zero_config(3, 2));
    for (int step = 0; step < 4; ++step) {
      EXPECT_NEAR(plain.engine().train_batch().item<double>(), sharded.engine().train_batch().item<double>(), 1e-6);
      const data::Batch batch = plain.made.loader->next();
      sharded.made.loader->next();
      EXPECT_NEAR(plain.engine().eval_batch(batch).item<double>(), sharded.engine().eval_batch(batch).item<double>(),
                  1e-6);
    }
  });
}

/// An embedding with rows of length one.
struct UnitRowsImpl : torch::nn::Module {
  UnitRowsImpl() : weight(register_parameter("weight", torch::randn({64, 8}))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    return torch::embedding(weight / weight.norm(2, {1}, /*keepdim=*/true), tokens);
  }
  at::Tensor weight;
};
TORCH_MODULE(UnitRows);

struct UnitRowsModelImpl : torch::nn::Module {
  at::Tensor loss(const data::Batch& batch) {
    return torch::cross_entropy_loss(head->forward(rows->forward(batch.input())).flatten(0, 1),
                                     batch.target().flatten());
  }
  zero::Sharded<UnitRows> rows = register_module("rows", zero::Sharded<UnitRows>());
  zero::Sharded<torch::nn::Linear> head = register_module("head", zero::Sharded<torch::nn::Linear>(8, 64));
};
TORCH_MODULE(UnitRowsModel);

TEST(ZeroTest, AnEmbeddingOfAComputedWeightIsThereForItsBackward) {
  on_ranks(2, [](comm::World& world) {
    const auto losses_at = [&](int stage) {
      torch::manual_seed(1);
      UnitRowsModel model;
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch); };
      options.config = zero_config(stage);
      options.config.zero.prefetch_elements = 0;
      options.training_data = std::make_shared<Counting>();
      options.shuffle = false;
      const auto made = initialize(world, options);
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        losses.push_back(made.engine->train_batch().item<double>());
      }
      return losses;
    };
    EXPECT_THAT(losses_at(3), testing::Pointwise(testing::DoubleNear(1e-6), losses_at(2)));
  });
}

/// A model that is a list of layers: each layer is a unit, also when it is recomputed.
TEST(ZeroTest, LayersOfAListAreUnits) {
  for (const int64_t interval : {0, 1, 2}) {
    on_ranks(2, [interval](comm::World& world) {
      config::EngineConfig config = zero_config(3, 2);
      pipeline::PipelineOptions layers;
      layers.activation_checkpoint_interval = interval;
      InitializeOptions options;
      options.pipeline =
          std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, layers);
      options.config = config;
      options.training_data = std::make_shared<Counting>();
      options.shuffle = false;
      const auto made = initialize(world, options);
      const std::vector<double> expected = plain_losses(kZeroBatch, 8, 1.0);
      for (int step = 0; step < 8; ++step) {
        EXPECT_NEAR(made.engine->train_batch().item<double>(), expected[step], 1e-6 * expected[step])
            << "step " << step;
        EXPECT_FALSE(device::has_memory(options.pipeline->named_parameters()["transformer.h.0.attn.c_attn.weight"]));
      }
      data::SamplerOptions split;
      split.rank = world.rank();
      split.replicas = 2;
      data::DataLoader loader(options.training_data, data::DistributedSampler(192, split), 6);
      EXPECT_GT(made.engine->evaluate(loader), 0);
    });
  }
}

/// 2P(N-1)/N bytes a rank and step for P bytes of parameters: the gradients' reduce-scatter and the parameters'
/// all-gather.
TEST(ZeroTest, SendsWhatTheFormulaSays) {
  for (const int stage : {1, 2}) {
    on_ranks(4, [stage](comm::World& world) {
      SmallRun run(world, zero_config(stage, 1, 0));
      run.engine().train_batch();
      const int64_t before = run.engine().bytes_sent();
      run.engine().train_batch();
      const double sent = static_cast<double>(run.engine().bytes_sent() - before);
      const double formula = 2.0 * 4 * static_cast<double>(run.engine().num_parameters()) * 3 / 4;
      EXPECT_GE(sent, formula);
      // Padding to whole cache lines for each rank, and the loss.
      EXPECT_LE(sent, formula * 1.12) << "padding of small buckets";
    });
  }
}

/// 3P(N-1)/N at stage 3: parameters once for the forward, once for the backward, gradients once. The tied embedding is
/// gathered for itself and for the head, where it stays for the head's backward; its own backward does not read it.
TEST(ZeroTest, StageThreeSendsWhatTheFormulaSays) {
  on_ranks(4, [](comm::World& world) {
    config::EngineConfig config = zero_config(3, 1, 0);
    config.zero.prefetch_elements = 0;
    config.zero.param_persistence_threshold = 0;
    SmallRun run(world, config);
    run.engine().train_batch();
    const int64_t before = run.engine().bytes_sent();
    run.engine().train_batch();
    const double sent = static_cast<double>(run.engine().bytes_sent() - before);
    const double norm = 2 * 16; // ln_f belongs to no unit: its parameters are gathered once
    const double all = static_cast<double>(run.engine().num_parameters());
    const double formula = (3 * all - norm) * 4 * 3 / 4;
    EXPECT_GE(sent, formula);
    EXPECT_LE(sent, formula * 1.12) << "padding of small buckets";
    SmallRun ahead(world, zero_config(3, 1, 0));
    ahead.engine().train_batch();
    ahead.engine().train_batch();
    const int64_t start = ahead.engine().bytes_sent();
    ahead.engine().train_batch();
    EXPECT_LE(ahead.engine().bytes_sent() - start, static_cast<int64_t>(sent)) << "gathering ahead costs nothing";
  });
}

TEST(ZeroTest, EachRankHoldsItsShareOfTheStates) {
  on_ranks(4, [](comm::World& world) {
    SmallRun run(world, zero_config(1));
    run.engine().train_batch();
    int64_t mine = 0;
    run.made.optimizer->for_each_state(
        [&](const std::string& state, const bucket::TensorInfo&, int64_t, const at::Tensor& values) {
          mine += state == "exp_avg" ? values.numel() : 0;
        });
    at::Tensor all = torch::tensor({mine});
    world.group().all_reduce(all).wait();
    EXPECT_EQ(all.item<int64_t>(), run.engine().num_parameters());
    EXPECT_LT(mine, run.engine().num_parameters() * 3 / 10);
  });
}

TEST(ZeroTest, AnAlgorithmForWholeBucketsIsRefused) {
  on_ranks(2, [](comm::World& world) {
    config::EngineConfig config = zero_config(1);
    config.data_parallel.algorithm = parallel::DataParallelOptions::Algorithm::halving_doubling;
    EXPECT_THAT(test::error_of([&] { SmallRun run(world, config); }),
                testing::HasSubstr("gradient_allreduce_algorithm \"halving-doubling\" with ZeRO stage 1"));
    config.zero.stage = 0;
    config.averaging.every = 2;
    EXPECT_THAT(test::error_of([&] { SmallRun run(world, config); }), testing::HasSubstr("with parameter_averaging"));
  });
}

TEST(ZeroTest, AStepWithoutAFiniteGradientIsSkippedOnAllRanks) {
  for (const int stage : {1, 2, 3}) {
    on_ranks(3, [stage](comm::World& world) {
      SmallRun run(world, zero_config(stage));
      run.engine().train_batch();
      const auto first = [&] {
        const auto whole = run.engine().gather_parameters(run.model->parameters());
        return run.model->parameters()[0].detach().clone();
      };
      const at::Tensor before = first();
      const at::Tensor loss = run.engine().forward(run.made.loader->next());
      run.engine().backward(world.rank() == 1 ? loss * NAN : loss);
      run.engine().step();
      EXPECT_EQ(run.engine().skipped_steps(), 1);
      EXPECT_TRUE(first().equal(before));
      EXPECT_TRUE(std::isfinite(run.engine().train_batch().item<double>()));
    });
  }
}

/// A checkpoint of any stage and number of ranks goes on at any other.
TEST(ZeroTest, CheckpointsFitEveryStage) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_zero_", ::getpid());
  constexpr int kSaved = 4;
  for (const auto& [stage, ranks] : {std::pair{1, 3}, std::pair{2, 4}, std::pair{0, 2}, std::pair{3, 3}}) {
    on_ranks(ranks, [&, stage = stage](comm::World& world) {
      SmallRun run(world, zero_config(stage));
      for (int step = 0; step < kSaved; ++step) {
        run.engine().train_batch();
      }
      run.engine().save_checkpoint(folder / "run");
    });
    for (const auto& [other, others] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{2, 3}, std::pair{3, 2}}) {
      EXPECT_THAT(
          run_ranks(others,
                    [&, other = other](comm::World& world) {
                      SmallRun run(world, zero_config(other));
                      ASSERT_TRUE(run.engine().load_checkpoint(folder / "run"));
                      const std::vector<double> expected = plain_losses(kZeroBatch, kSaved + 5, 1.0);
                      for (int step = kSaved; step < kSaved + 5; ++step) {
                        EXPECT_NEAR(run.engine().train_batch().item<double>(), expected[step], 1e-6 * expected[step])
                            << "step " << step;
                      }
                    }),
          IsEmpty())
          << "saved by stage " << stage << " on " << ranks << ", continued by stage " << other << " on " << others;
    }
    fs::remove_all(folder);
  }
}

TEST(ZeroTest, ResumedIsUninterruptedBitForBit) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_zero_bits_", ::getpid());
  for (const int stage : {1, 2, 3}) {
    on_ranks(3, [&, stage](comm::World& world) {
      SmallRun whole(world, zero_config(stage, 2));
      for (int step = 0; step < 4; ++step) {
        whole.engine().train_batch();
      }
      whole.engine().save_checkpoint(folder / concat(stage));
      SmallRun second(world, zero_config(stage, 2));
      ASSERT_TRUE(second.engine().load_checkpoint(folder / concat(stage)));
      for (int step = 4; step < 9; ++step) {
        EXPECT_EQ(whole.engine().train_batch().item<double>(), second.engine().train_batch().item<double>())
            << "step " << step;
      }
    });
  }
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
