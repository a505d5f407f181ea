#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/models/gpt_layers.h>

#include <tests/support/run_ranks.h>

#include <torch/serialize.h>

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>

namespace trireme::engine {
namespace {

using pipeline::PipelineModule;
using pipeline::PipelineOptions;
using pipeline::ScheduleKind;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

constexpr int kPipelineBatch = 48;
constexpr int kMicroBatches = 12;

// Eight layers, so that four stages have two parts each.
models::GptOptions deep_gpt(double dropout = 0) {
  models::GptOptions options = small_gpt(dropout);
  options.layers = 4;
  return options;
}

struct PipelineRun {
  std::shared_ptr<PipelineModule> model;
  Initialized made;

  PipelineRun(comm::World& world, const PipelineOptions& pipeline, const models::GptOptions& gpt = deep_gpt(),
              const config::EngineConfig& config = small_config(kPipelineBatch, kMicroBatches))
      : model(std::make_shared<PipelineModule>(models::gpt_layers(gpt), models::token_loss, pipeline)) {
    InitializeOptions options;
    options.pipeline = model;
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    made = initialize(world, options);
  }
  Engine& engine() { return *made.engine; }
};

PipelineOptions stages(int count, ScheduleKind schedule = ScheduleKind::one_f_one_b) {
  PipelineOptions options;
  options.stages = count;
  options.schedule = schedule;
  options.chunks = schedule == ScheduleKind::interleaved && count > 1 ? 2 : 1;
  return options;
}

struct PipelineCase {
  int stages;
  int replicas;
  ScheduleKind schedule;
  int zero_stage = 0;
};

class PipelineEqualsOneProcess : public testing::TestWithParam<PipelineCase> {};

TEST_P(PipelineEqualsOneProcess, ForTwentySteps) {
  const PipelineCase c = GetParam();
  on_ranks(c.stages * c.replicas, [c](comm::World& world) {
    config::EngineConfig config = small_config(kPipelineBatch, kMicroBatches);
    config.zero.stage = c.zero_stage;
    PipelineRun run(world, stages(c.stages, c.schedule), deep_gpt(), config);
    std::vector<double> losses;
    std::vector<double> norms;
    for (int step = 0; step < 20; ++step) {
      losses.push_back(run.engine().train_batch().item<double>());
      norms.push_back(*run.engine().get_global_grad_norm());
    }
    at::Tensor mine = torch::tensor(losses, torch::kFloat64);
    at::Tensor first = mine.clone();
    world.group().broadcast(first, 0).wait();
    EXPECT_TRUE(first.equal(mine)) << "all ranks return the same loss";
    if (world.rank() != 0) {
      return;
    }
    std::vector<double> expected_norms;
    const std::vector<double> expected = plain_losses(kPipelineBatch, 20, 1.0, &expected_norms, deep_gpt());
    for (int step = 0; step < 20; ++step) {
      EXPECT_NEAR(losses[step], expected[step], 1e-6 * expected[step]) << "step " << step;
      EXPECT_NEAR(norms[step], expected_norms[step], 5e-5 * expected_norms[step]) << "step " << step;
    }
    EXPECT_LT(expected.back(), 0.9 * expected.front()) << "the test must train";
  });
}

std::vector<PipelineCase> cases() {
  std::vector<PipelineCase> all;
  for (const auto schedule : {ScheduleKind::naive, ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                              ScheduleKind::interleaved, ScheduleKind::zero_bubble}) {
    for (const int stages : {2, 3, 4}) {
      for (const int replicas : {1, 2}) {
        all.push_back({stages, replicas, schedule});
      }
    }
  }
  all.push_back({1, 1, ScheduleKind::one_f_one_b});
  all.push_back({1, 2, ScheduleKind::one_f_one_b});
  for (const auto schedule : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zero_bubble}) {
    for (const int zero_stage : {1, 2}) {
      all.push_back({2, 2, schedule, zero_stage});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, PipelineEqualsOneProcess, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name =
      concat(info.param.stages, "stages_", info.param.replicas, "replicas_", schedule_name(info.param.schedule),
             info.param.zero_stage > 0 ? concat("_zero", info.param.zero_stage) : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Losses of some steps, on every rank.
std::vector<double> losses_of(PipelineRun& run, int steps) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(run.engine().train_batch().item<double>());
  }
  return losses;
}

TEST(PipelineTest, RecomputationChangesNothing) {
  on_ranks(2, [](comm::World& world) {
    for (const auto schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
      PipelineOptions options = stages(2, schedule);
      PipelineRun kept(world, options);
      options.activation_checkpoint_interval = 3;
      PipelineRun recomputed(world, options);
      EXPECT_EQ(losses_of(kept, 6), losses_of(recomputed, 6));
      const auto a = kept.model->named_parameters();
      for (const auto& item : recomputed.model->named_parameters()) {
        EXPECT_TRUE(item.value().equal(a[item.key()])) << item.key();
      }
    }
  });
}

TEST(PipelineTest, DropoutDoesNotDependOnThePartitionWithSeedLayers) {
  const auto losses_with = [](int count, int interval) {
    const std::filesystem::path file = std::filesystem::temp_directory_path() / concat("trireme_dropout_", ::getpid());
    on_ranks(count, [&](comm::World& world) {
      PipelineOptions options = stages(count);
      options.seed_layers = true;
      options.activation_checkpoint_interval = interval;
      PipelineRun run(world, options, deep_gpt(0.2));
      const auto losses = losses_of(run, 5);
      if (world.rank() == 0) {
        torch::save(torch::tensor(losses, torch::kFloat64), file.string());
      }
    });
    at::Tensor losses;
    torch::load(losses, file.string());
    std::filesystem::remove(file);
    return losses;
  };
  const at::Tensor one = losses_with(1, 0);
  EXPECT_TRUE(torch::allclose(losses_with(2, 0), one, 1e-6, 0));
  EXPECT_TRUE(torch::allclose(losses_with(4, 0), one, 1e-6, 0));
  EXPECT_TRUE(torch::allclose(losses_with(3, 2), one, 1e-6, 0));
}

TEST(PipelineTest, TrainBatchEqualsTheExplicitLoopBitForBit) {
  on_ranks(2, [](comm::World& world) {
    PipelineRun whole(world, stages(1));
    PipelineRun parts(world, stages(1));
    for (int step = 0; step < 5; ++step) {
      whole.engine().train_batch();
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        parts.engine().backward(parts.engine().forward(parts.made.loader->next()));
        parts.engine().step();
      }
      EXPECT_EQ(whole.engine().loss(), parts.engine().loss());
    }
    const auto a = whole.model->parameters();
    const auto b = parts.model->parameters();
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].equal(b[i]));
    }
  });
}

TEST(PipelineTest, ACheckpointFitsAnyNumberOfStagesAndTheModelInOnePiece) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / concat("trireme_pipeline_", ::getpid());
  on_ranks(4, [&](comm::World& world) {
    PipelineRun run(world, stages(2));
    losses_of(run, 3);
    run.engine().save_checkpoint(folder);
    const auto rest = losses_of(run, 3);
    PipelineRun same(world, stages(2));
    same.engine().load_checkpoint(folder);
    EXPECT_EQ(losses_of(same, 3), rest);
    PipelineRun other(world, stages(4));
    other.engine().load_checkpoint(folder);
    EXPECT_THAT(losses_of(other, 3), testing::Pointwise(testing::DoubleNear(1e-5), rest));
    SmallRun piece(world, small_config(kPipelineBatch, 3), false, 0);
    if (world.rank() == 0) {
      torch::save(torch::tensor(rest, torch::kFloat64), folder.string() + ".losses");
    }
  });
  on_ranks(1, [&](comm::World& world) {
    models::Gpt model(deep_gpt());
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [&](const data::Batch& batch) { return model->loss(batch.input(), batch.target()); };
    options.config = small_config(kPipelineBatch, 1);
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    const auto made = initialize(world, options);
    made.engine->load_checkpoint(folder);
    at::Tensor rest;
    torch::load(rest, folder.string() + ".losses");
    for (int step = 0; step < 3; ++step) {
      EXPECT_NEAR(made.engine->train_batch().item<double>(), rest[step].item<double>(), 1e-5);
    }
  });
  std::filesystem::remove_all(folder);
  std::filesystem::remove(folder.string() + ".losses");
}

TEST(PipelineTest, EvaluationGivesEveryRankTheLossOfOneProcess) {
  on_ranks(4, [](comm::World& world) {
    for (const auto schedule : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved}) {
      PipelineRun run(world, stages(2, schedule));
      const auto data = std::make_shared<Counting>();
      data::SamplerOptions sampler;
      sampler.shuffle = false;
      sampler.drop_last = false;
      sampler.rank = run.engine().group().rank();
      sampler.replicas = run.engine().group().size();
      data::DataLoader loader(data, data::DistributedSampler(data->size(), sampler),
                              7); // the last one is padded
      models::Gpt whole(deep_gpt());
      std::vector<int64_t> indices(data->size());
      std::iota(indices.begin(), indices.end(), 0);
      const data::Batch batch = data->get(indices);
      const torch::NoGradGuard no_grad;
      const double expected = whole->loss(batch.input(), batch.target()).item<double>();
      EXPECT_NEAR(run.engine().evaluate(loader), expected, 1e-6 * expected);
      EXPECT_NEAR(run.engine().eval_batch(data->get(std::vector<int64_t>{0, 1, 2})).item<double>(), expected, 1.0);
    }
  });
}

} // namespace
} // namespace trireme::engine
