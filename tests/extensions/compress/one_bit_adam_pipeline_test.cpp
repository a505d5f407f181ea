// 1-bit Adam of pipelines, of which each stage's replicas exchange momenta.
#include "one_bit_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <unistd.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;

struct OneBitPipeline {
  std::shared_ptr<pipeline::PipelineModule> model;
  Initialized made;

  OneBitPipeline(comm::World& world, int stages, const config::EngineConfig& config) {
    pipeline::PipelineOptions pipeline;
    pipeline.stages = stages;
    model = std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, pipeline);
    InitializeOptions options;
    options.pipeline = model;
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    made = initialize(world, options);
  }
  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      losses.push_back(made.engine->train_batch().item<double>());
    }
    return losses;
  }
};

// The copies of a tied weight on the first and the last stage stay the same to the bit, and so do replicas.
TEST(OneBitAdamPipelineTest, TwoStagesWithTwoReplicasLearnAsOneStageDoes) {
  on_ranks(4, [](comm::World& world) {
    torch::manual_seed(7);
    OneBitPipeline run(world, 2, one_bit_config(10, 4, 1.0));
    const std::vector<double> losses = run.train(40);
    expect_equal_on(run.made.engine->group(), run.made.engine->module(), "of one stage");
    at::Tensor tied = torch::zeros({1}, torch::kInt64);
    int64_t copies = 0;
    for (const auto& item : run.made.engine->module().named_parameters()) {
      if (item.value().sizes().equals({31, 16})) {
        ++copies;
        tied[0] = item.value().detach().contiguous().view(torch::kInt32).to(torch::kInt64).sum();
      }
    }
    ASSERT_EQ(copies, 1);
    const at::Tensor all = torch::empty({world.size()}, torch::kInt64);
    world.group().all_gather(all, tied).wait();
    EXPECT_TRUE(all.eq(tied).all().item<bool>()) << all;
    // The same with all layers on each of the four ranks.
    torch::manual_seed(7);
    OneBitPipeline flat(world, 1, one_bit_config(10, 4, 1.0));
    const std::vector<double> whole = flat.train(40);
    for (int step = 0; step < 40; ++step) {
      EXPECT_NEAR(losses[static_cast<size_t>(step)], whole[static_cast<size_t>(step)], step < 10 ? 1e-4 : 0.35)
          << "step " << step;
    }
    EXPECT_LT(losses.back(), losses[10]);
  });
}

TEST(OneBitAdamPipelineTest, ResumedIsUninterruptedBitForBit) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_one_bit_pipeline_", ::getpid());
  on_ranks(4, [folder](comm::World& world) {
    for (const int stage : {0, 1}) {
      const config::EngineConfig config = one_bit_config(3, 4, 1.0, 48, stage);
      OneBitPipeline whole(world, 2, config);
      whole.train(6);
      whole.made.engine->save_checkpoint(folder);
      const std::vector<double> losses = whole.train(4);
      torch::manual_seed(8);
      OneBitPipeline second(world, 2, config);
      second.made.engine->load_checkpoint(folder);
      EXPECT_EQ(second.train(4), losses) << "ZeRO stage " << stage;
      EXPECT_TRUE(fingerprint(second.made.engine->module()).equal(fingerprint(whole.made.engine->module())))
          << "ZeRO stage " << stage;
    }
  });
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
