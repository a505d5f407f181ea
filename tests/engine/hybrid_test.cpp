// Hybrid sharding: neighbours hold one copy of what ZeRO shards, and copies are kept equal (mics_shard_size).
#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/models/gpt_layers.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

config::EngineConfig hybrid(int stage, std::optional<int64_t> size, int64_t accumulation = 1, double clipping = 1.0) {
  config::EngineConfig config = zero_config(stage, accumulation, clipping);
  config.zero.shard_size = size;
  return config;
}

class HybridSharding : public testing::TestWithParam<std::tuple<int, int64_t, double>> {};

TEST_P(HybridSharding, TrainsAsWithoutZero) {
  const auto [stage, accumulation, clipping] = GetParam();
  on_ranks(4, [stage = stage, accumulation = accumulation, clipping = clipping](comm::World& world) {
    SmallRun plain(world, hybrid(0, std::nullopt, accumulation, clipping));
    SmallRun run(world, hybrid(stage, 2, accumulation, clipping));
    plain.engine().want_grad_norm(clipping > 0);
    run.engine().want_grad_norm(clipping > 0); // otherwise buckets are stepped while later ones travel
    for (int step = 0; step < 20; ++step) {
      const double loss = plain.engine().train_batch().item<double>();
      EXPECT_NEAR(run.engine().train_batch().item<double>(), loss, 1e-6 * loss) << "step " << step;
      if (clipping > 0) {
        const double norm = *plain.engine().get_global_grad_norm();
        EXPECT_NEAR(*run.engine().get_global_grad_norm(), norm, 2e-5 * norm) << "step " << step;
      }
    }
    // All ranks have the same bits.
    const auto whole = run.engine().gather_parameters(run.model->parameters());
    for (const at::Tensor& parameter : run.model->parameters()) {
      at::Tensor first = parameter.detach().clone();
      world.group().broadcast(first, 0).wait();
      EXPECT_TRUE(first.equal(parameter));
    }
    // and each pair has one copy of the states.
    int64_t mine = 0;
    run.made.optimizer->for_each_state(
        [&](const std::string& state, const bucket::TensorInfo&, int64_t, const at::Tensor& values) {
          mine += state == "exp_avg" ? values.numel() : 0;
        });
    at::Tensor all = torch::tensor({mine});
    world.group().all_reduce(all).wait();
    EXPECT_EQ(all.item<int64_t>(), 2 * run.engine().num_parameters());
  });
}

INSTANTIATE_TEST_SUITE_P(All, HybridSharding,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values<int64_t>(1, 3),
                                          testing::Values(0.0, 1.0)),
                         [](const auto& info) {
                           return concat("stage", std::get<0>(info.param), "_", std::get<1>(info.param), "accumulated_",
                                         std::get<2>(info.param) > 0 ? "clipped" : "free");
                         });

// Two stages of four ranks with two copies each; half precision; LAMB, which sums norms of parameters over the shards
// of one copy.
TEST(HybridShardingTest, WorksInPipelinesInBf16AndWithLamb) {
  on_ranks(8, [](comm::World& world) {
    std::vector<std::vector<double>> losses;
    for (const auto& [stage, size] : {std::pair<int, std::optional<int64_t>>(0, std::nullopt), {3, 2}, {1, 2}}) {
      config::EngineConfig config = hybrid(stage, size, 2);
      torch::manual_seed(7);
      pipeline::PipelineOptions two;
      two.stages = 2;
      InitializeOptions options;
      options.pipeline =
          std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, two);
      options.config = config;
      options.training_data = std::make_shared<Counting>();
      options.shuffle = false;
      const auto made = initialize(world, options);
      std::vector<double>& own = losses.emplace_back();
      for (int step = 0; step < 6; ++step) {
        own.push_back(made.engine->train_batch().item<double>());
      }
    }
    for (size_t step = 0; step < losses[0].size(); ++step) {
      EXPECT_NEAR(losses[1][step], losses[0][step], 1e-6 * losses[0][step]);
      EXPECT_NEAR(losses[2][step], losses[0][step], 1e-6 * losses[0][step]);
    }
  });
  on_ranks(4, [](comm::World& world) {
    for (const char* more : {R"("bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}})",
                             R"("optimizer": {"type": "Lamb", "params": {"lr": 0.01}})"}) {
      const auto config = [&](int stage, int size) {
        const std::string text =
            concat(R"({"train_batch_size": 48, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": )",
                   stage, R"(, "stage3_param_persistence_threshold": 40, "mics_shard_size": )", size, "}, ", more, "}");
        return config::read_deepspeed(JsonNode::parse(text, "test.json"));
      };
      const bool bf16 = std::string_view(more).starts_with("\"bf16");
      for (const int stage : {1, 2, 3}) {
        SmallRun reference(world, config(0, -1));
        SmallRun run(world, config(stage, 2));
        for (int step = 0; step < 6; ++step) {
          const double loss = reference.engine().train_batch().item<double>();
          EXPECT_NEAR(run.engine().train_batch().item<double>(), loss, (bf16 ? 3e-3 : 2e-6) * loss)
              << "stage " << stage << ", step " << step << more;
        }
      }
    }
  });
}

TEST(HybridShardingTest, CheckpointsAreSavedOnceAndFitOtherLayouts) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_hybrid_", ::getpid());
  constexpr int kSaved = 3;
  const auto bytes_of = [](const fs::path& path) {
    uintmax_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      bytes += entry.is_regular_file() && entry.path().extension() == ".safetensors" ? entry.file_size() : 0;
    }
    return bytes;
  };
  uintmax_t whole = 0;
  for (const auto& [stage, size] : {std::pair<int, std::optional<int64_t>>(3, std::nullopt), {3, 2}, {1, 2}}) {
    on_ranks(4, [&, stage = stage, size = size](comm::World& world) {
      SmallRun run(world, hybrid(stage, size));
      for (int step = 0; step < kSaved; ++step) {
        run.engine().train_batch();
      }
      run.engine().save_checkpoint(folder / "run");
      const double uninterrupted = run.engine().train_batch().item<double>();
      SmallRun second(world, hybrid(stage, size));
      ASSERT_TRUE(second.engine().load_checkpoint(folder / "run"));
      EXPECT_EQ(second.engine().train_batch().item<double>(), uninterrupted);
    });
    const uintmax_t bytes = bytes_of(folder);
    whole = whole == 0 ? bytes : whole;
    EXPECT_LT(static_cast<double>(bytes), 1.2 * static_cast<double>(whole)) << "nothing is saved twice";
    for (const auto& [ranks, to, within] : {std::tuple<int, int, std::optional<int64_t>>(1, 0, std::nullopt),
                                            {3, 3, std::nullopt},
                                            {4, 2, 2},
                                            {2, 1, 2}}) {
      EXPECT_THAT(
          run_ranks(ranks,
                    [&, to = to, within = within](comm::World& world) {
                      SmallRun run(world, hybrid(to, within));
                      ASSERT_TRUE(run.engine().load_checkpoint(folder / "run"));
                      const std::vector<double> expected = plain_losses(kZeroBatch, kSaved + 4, 1.0);
                      for (int step = kSaved; step < kSaved + 4; ++step) {
                        EXPECT_NEAR(run.engine().train_batch().item<double>(), expected[step], 1e-6 * expected[step])
                            << "step " << step;
                      }
                    }),
          IsEmpty())
          << "from stage " << stage << " to " << ranks << " ranks, stage " << to;
    }
    fs::remove_all(folder);
  }
}

TEST(HybridShardingTest, AStepWithoutAFiniteGradientIsSkippedOnAllRanks) {
  for (const int stage : {1, 3}) {
    on_ranks(4, [stage](comm::World& world) {
      SmallRun run(world, hybrid(stage, 2));
      run.engine().train_batch();
      const at::Tensor loss = run.engine().forward(run.made.loader->next());
      run.engine().backward(world.rank() == 3 ? loss * NAN : loss);
      run.engine().step();
      EXPECT_EQ(run.engine().skipped_steps(), 1);
      EXPECT_TRUE(std::isfinite(run.engine().train_batch().item<double>()));
    });
  }
}

TEST(HybridShardingTest, ASizeThatDoesNotDivideIsRefusedByName) {
  on_ranks(4, [](comm::World& world) {
    for (const int64_t size : {3, 8}) {
      try {
        SmallRun(world, hybrid(1, size));
        ADD_FAILURE() << "accepted";
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr(concat("mics_shard_size ", size, " does not divide")), HasSubstr("4 data ranks")));
      }
    }
  });
}

} // namespace
} // namespace trireme::engine
