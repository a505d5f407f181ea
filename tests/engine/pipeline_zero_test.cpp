// ZeRO stage 3 in pipelines of several stages.
#include "layered_run.h"

#include <trireme/base/error.h>
#include <trireme/device/absent_memory.h>
#include <trireme/shards/zero/init.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using pipeline::LayerList;
using pipeline::LayerSpec;
using pipeline::PipelineModule;
using pipeline::PipelineOptions;
using pipeline::ScheduleKind;
using pipeline::TiedLayerSpec;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kBatch = 48;
constexpr int64_t kMicroBatches = 6;

PipelineOptions in_stages(int count, ScheduleKind schedule = ScheduleKind::one_f_one_b) {
  PipelineOptions options;
  options.stages = count;
  options.schedule = schedule;
  options.chunks = schedule == ScheduleKind::interleaved && count > 1 ? 2 : 1;
  return options;
}

config::EngineConfig config_of(int zero_stage, const char* more = "") {
  const std::string text =
      concat(R"({"train_batch_size": )", kBatch, R"(, "gradient_accumulation_steps": )", kMicroBatches,
             R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}},
                                  "zero_optimization": {"stage": )",
             zero_stage, R"(, "stage3_param_persistence_threshold": 40})", more, "}");
  config::EngineConfig config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
  config.data_parallel.bucket_bytes = 4000; // several buckets
  config.data_parallel.first_bucket_bytes = 1000;
  return config;
}

struct Case {
  int stages;
  ScheduleKind schedule;
  const char* type = "";
  int64_t recompute = 0;
};

class PipelinesAtStageThree : public testing::TestWithParam<Case> {};

// Micro-batches are added before ranks, as without ZeRO, and over shared memory in the order of the ranks: equal to the
// last bit.
TEST_P(PipelinesAtStageThree, TrainAsWithoutZeroAndAsOneProcess) {
  const Case c = GetParam();
  const std::string scale = std::string_view(c.type) == "fp16" ? R"(, "initial_scale_power": 4)" : "";
  const std::string type = c.type[0] == 0 ? "" : concat(R"(, ")", c.type, R"(": {"enabled": true)", scale, "}");
  on_ranks(c.stages * 2, [&](comm::World& world) {
    ASSERT_STREQ(world.group().backend(), "shm");
    PipelineOptions pipeline = in_stages(c.stages, c.schedule);
    LayeredRun plain(world, config_of(0, type.c_str()), pipeline);
    pipeline.activation_checkpoint_interval = c.recompute;
    LayeredRun sharded(world, config_of(3, type.c_str()), pipeline);
    std::vector<double> expected_norms;
    const std::vector<double> expected = plain_losses(kBatch, 20, 1.0, &expected_norms, four_layers());
    for (int step = 0; step < 20; ++step) {
      const double loss = plain.step();
      EXPECT_EQ(sharded.step(), loss) << "step " << step;
      const double norm = *plain.engine().get_global_grad_norm();
      EXPECT_NEAR(*sharded.engine().get_global_grad_norm(), norm, 1e-12 * norm) << "step " << step;
      if (type.empty()) {
        EXPECT_NEAR(loss, expected[step], 1e-6 * expected[step]) << "step " << step;
        EXPECT_NEAR(norm, expected_norms[step], 5e-5 * expected_norms[step]) << "step " << step;
      }
    }
    const auto a = plain.model->named_parameters();
    for (const auto& item : sharded.model->named_parameters()) {
      EXPECT_EQ(device::has_memory(item.value()), item.value().numel() < 40) << item.key() << " after a step";
    }
    const auto whole = sharded.engine().gather_parameters(sharded.model->parameters());
    for (const auto& item : sharded.model->named_parameters()) {
      EXPECT_TRUE(item.value().equal(a[item.key()])) << item.key();
    }
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto schedule : {ScheduleKind::naive, ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                              ScheduleKind::interleaved, ScheduleKind::zero_bubble}) {
    all.push_back({2, schedule});
  }
  all.push_back({3, ScheduleKind::one_f_one_b});
  for (const auto schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
    all.push_back({2, schedule, "bf16"});
    all.push_back({2, schedule, "", 1});
    all.push_back({2, schedule, "", 2});
  }
  all.push_back({2, ScheduleKind::interleaved, "fp16"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, PipelinesAtStageThree, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name =
      concat(info.param.stages, "stages_", schedule_name(info.param.schedule), info.param.type[0] == 0 ? "" : "_",
             info.param.type, info.param.recompute > 0 ? concat("_recomputed", info.param.recompute) : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Counts what is whole of a stage's sharded parameters whenever forward or backward comes by.
struct Counter {
  std::weak_ptr<PipelineModule> model;
  int64_t most = 0;

  void look() {
    int64_t whole = 0;
    for (const at::Tensor& parameter : model.lock()->parameters()) {
      whole += device::has_memory(parameter) ? parameter.numel() : 0;
    }
    most = std::max(most, whole);
  }
};

// Six Linear(16, 16) without bias on each of two stages, with a look behind each.
LayerList twelve_squares(const std::shared_ptr<Counter>& counter) {
  LayerList layers{[](const at::Tensor& tokens) {
    return torch::nn::functional::one_hot(tokens.slice(1, 0, 2) % 8, 8).flatten(1).to(torch::kFloat32);
  }};
  for (int i = 0; i < 12; ++i) {
    layers.push_back(LayerSpec<torch::nn::Linear>(torch::nn::LinearOptions(16, 16).bias(false)));
    layers.push_back([counter](const at::Tensor& x) {
      counter->look();
      if (x.requires_grad()) {
        x.register_hook([counter](const at::Tensor&) { counter->look(); });
      }
      return torch::tanh(x);
    });
  }
  return layers;
}

at::Tensor squares(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  return (outputs[0] - targets[0].slice(1, 0, 1).to(torch::kFloat32) / 31).square().mean();
}

// 1F1B with as many micro-batches as fit goes to and fro over a stage's L = 6 units of U elements: of those that are
// kept, K, all but K are gathered again in each direction. The first stage of two begins with two forwards.
TEST(PipelineZeroTest, UnitsAreKeptForTheNextMicroBatchAsFarAsTheyMay) {
  on_ranks(4, [](comm::World& world) {
    constexpr int64_t kUnit = 256;
    for (const std::optional<int64_t> live : {std::optional<int64_t>(0), std::optional<int64_t>(),
                                              std::optional<int64_t>(4 * kUnit), std::optional<int64_t>(100 * kUnit)}) {
      config::EngineConfig config = config_of(3, R"(, "gradient_clipping": 0)");
      config.zero.max_live_elements = live;
      const auto counter = std::make_shared<Counter>();
      PipelineOptions options = in_stages(2);
      options.bounds = {0, 13, 25};
      LayeredRun run(world, config, options, twelve_squares(counter), squares);
      counter->model = run.model;
      run.step();
      run.step();
      counter->most = 0;
      const int64_t before = run.engine().group().bytes_sent();
      run.step();
      const int64_t sent = run.engine().group().bytes_sent() - before;
      const int64_t kept = std::clamp<int64_t>(live.value_or(3 * kUnit) / kUnit, 0, 6);
      EXPECT_EQ(counter->most, std::max<int64_t>(kept, 2) * kUnit) << "one in use and one ahead are there in any case";
      if (run.engine().pipe_group().rank() == 1) {       // F B F B ...
        const int64_t turn = std::max<int64_t>(kept, 2); // the last and the one before stay where the direction turns
        const int64_t units = 2 * kMicroBatches * (6 - turn) + turn;
        const int64_t gradients = 6 * kUnit * 4 / 2;
        const int64_t sums = 24 + 24; // loss and norm
        EXPECT_EQ(sent, units * kUnit * 4 / 2 + gradients + sums) << "kept " << kept;
      }
    }
  });
}

TEST(PipelineZeroTest, CheckpointsFitEveryLayout) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_pipeline_zero_", ::getpid());
  constexpr int kSaved = 3;
  struct Layout {
    int stages;
    int ranks;
    int zero_stage;
    ScheduleKind schedule = ScheduleKind::one_f_one_b;
  };
  const auto go_on = [&](const Layout& to) {
    EXPECT_THAT(run_ranks(to.ranks,
                          [&](comm::World& world) {
                            LayeredRun run(world, config_of(to.zero_stage), in_stages(to.stages, to.schedule));
                            ASSERT_TRUE(run.engine().load_checkpoint(folder / "run"));
                            const std::vector<double> expected =
                                plain_losses(kBatch, kSaved + 4, 1.0, nullptr, four_layers());
                            for (int step = kSaved; step < kSaved + 4; ++step) {
                              EXPECT_NEAR(run.step(), expected[step], 1e-6 * expected[step]) << "step " << step;
                            }
                          }),
                IsEmpty())
        << to.stages << " stages, " << to.ranks << " ranks, ZeRO " << to.zero_stage;
  };
  for (const Layout& from : {Layout{2, 4, 3, ScheduleKind::interleaved}, Layout{4, 4, 0}, Layout{1, 4, 3}}) {
    on_ranks(from.ranks, [&](comm::World& world) {
      LayeredRun run(world, config_of(from.zero_stage), in_stages(from.stages, from.schedule));
      for (int step = 0; step < kSaved; ++step) {
        run.step();
      }
      run.engine().save_checkpoint(folder / "run");
    });
    for (const Layout& to : {Layout{1, 1, 0}, Layout{2, 4, 2}, Layout{1, 2, 3}, Layout{2, 4, 3}, Layout{3, 6, 3}}) {
      go_on(to);
    }
    fs::remove_all(folder);
  }
}

TEST(PipelineZeroTest, ResumedIsUninterruptedBitForBit) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_pipeline_zero_bits_", ::getpid());
  for (const char* type : {"", R"(, "bf16": {"enabled": true})"}) {
    on_ranks(4, [&](comm::World& world) {
      LayeredRun whole(world, config_of(3, type), in_stages(2));
      for (int step = 0; step < 3; ++step) {
        whole.step();
      }
      whole.engine().save_checkpoint(folder / (type[0] == 0 ? "fp32" : "bf16"));
      LayeredRun second(world, config_of(3, type), in_stages(2));
      ASSERT_TRUE(second.engine().load_checkpoint(folder / (type[0] == 0 ? "fp32" : "bf16")));
      for (int step = 3; step < 8; ++step) {
        EXPECT_EQ(whole.step(), second.step()) << "step " << step;
      }
    });
  }
  fs::remove_all(folder);
}

// The replicas have different numbers of batches, the last one is padded, and training goes on between.
TEST(PipelineZeroTest, EvaluationGivesTheLossOfOneProcess) {
  on_ranks(4, [](comm::World& world) {
    for (const auto schedule : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved}) {
      LayeredRun plain(world, config_of(0), in_stages(2, schedule));
      LayeredRun run(world, config_of(3), in_stages(2, schedule));
      const auto data = std::make_shared<Counting>();
      const auto evaluated = [&](Engine& engine) {
        data::SamplerOptions sampler;
        sampler.shuffle = false;
        sampler.drop_last = false;
        sampler.rank = engine.group().rank();
        sampler.replicas = engine.group().size();
        data::DataLoader loader(data, data::DistributedSampler(data->size(), sampler),
                                engine.group().rank() == 0 ? 7 : 9);
        return engine.evaluate(loader);
      };
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(plain.step(), run.step());
        EXPECT_EQ(evaluated(plain.engine()), evaluated(run.engine()));
        const data::Batch three = data->get(std::vector<int64_t>{0, 1, 2});
        EXPECT_EQ(plain.engine().eval_batch(three).item<double>(), run.engine().eval_batch(three).item<double>());
      }
    }
  });
}

// A changed parameter of each stage is everybody's afterwards.
TEST(PipelineZeroTest, EachStageGathersAndChangesItsOwnParameters) {
  on_ranks(4, [](comm::World& world) {
    std::vector<std::vector<double>> losses;
    for (const int zero_stage : {0, 3}) {
      LayeredRun run(world, config_of(zero_stage), in_stages(2));
      run.step();
      {
        const std::string name =
            concat("transformer.h.", run.engine().pipe_group().rank() == 0 ? 0 : 3, ".mlp.c_fc.weight");
        at::Tensor parameter = run.model->named_parameters()[name];
        const auto whole = run.engine().gather_parameters({parameter}, 0);
        if (run.engine().group().rank() == 0) {
          const torch::NoGradGuard no_grad;
          parameter.mul_(0.5);
        }
      }
      losses.push_back({run.step(), run.step()});
    }
    EXPECT_EQ(losses[0], losses[1]);
  });
}

// Two stages share the weights of their Linear layers, which have biases of their own; the stage between has no
// parameters.
TEST(PipelineZeroTest, StagesShareSomeParametersAndOneHasNone) {
  on_ranks(6, [](comm::World& world) {
    const auto layers = [] {
      return LayerList{[](const at::Tensor& tokens) { return tokens.to(torch::kFloat32) / 31; },
                       TiedLayerSpec<torch::nn::Linear>("w", 8, 8).attributes({"weight"}),
                       [](const at::Tensor& x) { return torch::tanh(x); },
                       TiedLayerSpec<torch::nn::Linear>("w", 8, 8).attributes({"weight"}),
                       LayerSpec<torch::nn::Linear>(8, 8)};
    };
    PipelineOptions options = in_stages(3);
    options.bounds = {0, 2, 3, 5};
    LayeredRun plain(world, config_of(0), options, layers(), squares);
    LayeredRun run(world, config_of(3), options, layers(), squares);
    for (int step = 0; step < 8; ++step) {
      EXPECT_EQ(plain.step(), run.step()) << "step " << step;
    }
  });
}

struct InnerShardedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return linear->forward(x); }
  zero::Sharded<torch::nn::Linear> linear = register_module("linear", zero::Sharded<torch::nn::Linear>(8, 8));
};
TORCH_MODULE(InnerSharded);

TEST(PipelineZeroTest, LayersMadeUnderInitAreRefused) {
  on_ranks(2, [](comm::World& world) {
    LayerList layers;
    {
      const zero::Init init(world);
      layers = LayerList{[](const at::Tensor& tokens) { return tokens.to(torch::kFloat32) / 31; }, InnerSharded(),
                         InnerSharded()};
    }
    try {
      LayeredRun(world, config_of(3), in_stages(2), layers, squares);
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("layer 1 was made under zero::Init"), HasSubstr("2 stages"), HasSubstr("LayerSpec")));
    }
  });
}

} // namespace
} // namespace trireme::engine
