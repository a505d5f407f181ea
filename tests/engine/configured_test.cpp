// What initialize() makes of a configuration, be it read or made in code.
#include "small_run.h"

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/models/gpt_layers.h>
#include <trireme/shards/zero/init.h>
#include <trireme/shards/zero/sharded.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

class ConfiguredTest : public testing::Test {
 protected:
  ConfiguredTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_configured_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~ConfiguredTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// Two parameters over one memory would be stepped as two: in a model of one piece, in a layer that a LayerSpec builds,
// and in a unit under zero::Init.
TEST_F(ConfiguredTest, ATieBySharedMemoryIsRefusedByName) {
  struct TiedImpl : torch::nn::Module {
    torch::nn::Embedding embedding{8, 4};
    torch::nn::Linear head{4, 8};
    TiedImpl() {
      register_module("embedding", embedding);
      register_module("head", head);
      head->weight.set_data(embedding->weight.detach());
    }
    at::Tensor forward(const at::Tensor& input) { return head->forward(embedding->forward(input)); }
  };
  TORCH_MODULE(Tied);
  on_ranks(1, [](comm::World& world) {
    const auto names_both = AllOf(HasSubstr("embedding.weight"), HasSubstr("head.weight"), HasSubstr("share memory"));
    Tied model;
    InitializeOptions options;
    options.config = small_config(6, 1);
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->forward(batch.input()).sum(); };
    EXPECT_THAT(refusal([&] { initialize(world, options); }), names_both);
    InitializeOptions listed;
    listed.config = options.config;
    listed.pipeline = std::make_shared<pipeline::PipelineModule>(pipeline::LayerList{pipeline::LayerSpec<Tied>()},
                                                                 nullptr, pipeline::PipelineOptions{});
    EXPECT_THAT(refusal([&] { initialize(world, listed); }), names_both);
    const zero::Init init(world);
    EXPECT_THAT(refusal([&] { const zero::Sharded<Tied> unit; }), names_both);
  });
}

TEST_F(ConfiguredTest, ACheckpointStoresAConfigurationMadeInCode) {
  on_ranks(1, [&](comm::World& world) {
    config::EngineConfig made;
    made.batch.train = 12;
    made.gradient_clipping = 0.5;
    made.optimizer = {.rule = optim::LionOptions{.lr = 0.002}};
    made.zero.stage = 1;
    SmallRun run(world, made);
    run.engine().train_batch();
    run.engine().save_checkpoint(folder_);
    const nlohmann::json stored = checkpoint::Checkpoint::open(folder_).config();
    EXPECT_EQ(stored.at("gradient_clipping"), 0.5) << stored;
    EXPECT_EQ(stored.at("optimizer").at("type"), "Lion");
    const config::EngineConfig again = config::read_deepspeed(JsonNode::parse(stored.dump(), "stored"));
    EXPECT_EQ(config::to_json(again), config::to_json(made)) << "it can be read again";
    EXPECT_THAT(again.notes, IsEmpty());
  });
}

TEST_F(ConfiguredTest, ACheckpointStoresWhatWasChangedAfterReading) {
  on_ranks(1, [&](comm::World& world) {
    config::EngineConfig config = small_config(12, 1);
    config.gradient_clipping = 0.25;
    InitializeOptions options;
    pipeline::PipelineOptions how;
    how.partition = "uniform";
    options.pipeline =
        std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, how);
    config.pipeline.activation_checkpoint_interval = 2;
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    const Initialized made = initialize(world, options);
    EXPECT_EQ(options.pipeline->options().activation_checkpoint_interval, 2);
    EXPECT_EQ(options.pipeline->options().partition, "uniform") << "the configuration does not say it";
    made.engine->save_checkpoint(folder_);
    const nlohmann::json stored = checkpoint::Checkpoint::open(folder_).config();
    EXPECT_EQ(stored.at("gradient_clipping"), 0.25);
    EXPECT_EQ(stored.at("pipeline").at("activation_checkpoint_interval"), 2);
    EXPECT_EQ(stored.at("pipeline").at("partition"), "uniform");
  });
}

// A model in one piece cannot do what needs layers.
TEST_F(ConfiguredTest, AModelInOnePieceRefusesWhatNeedsLayers) {
  on_ranks(1, [](comm::World& world) {
    const auto refused = [&](const auto& change) {
      config::EngineConfig config = small_config(12, 1);
      change(config.pipeline);
      return refusal([&] { SmallRun(world, config); });
    };
    EXPECT_THAT(refused([](auto& keys) { keys.stages = 2; }),
                AllOf(HasSubstr("\"stages\""), HasSubstr("one piece"), HasSubstr("PipelineModule")));
    EXPECT_THAT(refused([](auto& keys) { keys.activation_checkpoint_interval = 1; }),
                HasSubstr("\"activation_checkpoint_interval\""));
    EXPECT_THAT(refused([](auto& keys) { keys.seed_layers = true; }), HasSubstr("\"seed_layers\""));
    EXPECT_EQ(refused([](auto& keys) {
                keys.stages = 1;
                keys.partition = "uniform";
                keys.activation_checkpoint_interval = 0;
                keys.seed_layers = false;
              }),
              "")
        << "that asks for nothing";
  });
}

TEST_F(ConfiguredTest, AMonitorWithoutAFolderWritesIntoTheRunFolder) {
  on_ranks(2, [&](comm::World& world) {
    const fs::path here = folder_ / concat("cwd", world.rank());
    fs::create_directories(here);
    fs::current_path(here);
    config::EngineConfig config = small_config(12, 1);
    config.csv_monitor.enabled = config.tensorboard.enabled = true;
    config.csv_monitor.job_name = config.tensorboard.job_name = "job";
    ::unsetenv("TRIREME_RUN_DIR");
    EXPECT_THAT(refusal([&] { SmallRun(world, config); }),
                AllOf(HasSubstr("csv_monitor"), HasSubstr("output_path"), HasSubstr("TRIREME_RUN_DIR")));
    ::setenv("TRIREME_RUN_DIR", (folder_ / "run").c_str(), 1);
    SmallRun run(world, config);
    run.engine().train_batch();
    EXPECT_TRUE(fs::is_empty(here));
    if (world.rank() == 0) {
      EXPECT_TRUE(fs::exists(folder_ / "run/csv_monitor/job/train_loss.csv"));
      EXPECT_FALSE(fs::is_empty(folder_ / "run/tensorboard/job"));
    }
  });
}

// Remembers which threads asked.
class Asked : public Counting {
 public:
  data::Batch get(std::span<const int64_t> indices) const override {
    threads.insert(std::this_thread::get_id());
    return Counting::get(indices);
  }
  mutable std::set<std::thread::id> threads;
};

TEST_F(ConfiguredTest, WithoutPrefetchTheCallerMakesTheBatches) {
  on_ranks(1, [](comm::World& world) {
    for (const int64_t prefetch : {0, 2}) {
      models::Gpt model(small_gpt());
      const auto data = std::make_shared<Asked>();
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
      options.config = small_config(12, 1);
      options.training_data = data;
      options.prefetch = prefetch;
      Initialized made = initialize(world, options);
      made.engine->train_batch();
      made = {}; // the loader's thread has ended
      EXPECT_EQ(data->threads.count(std::this_thread::get_id()), prefetch == 0 ? 1u : 0u);
    }
  });
}

} // namespace
} // namespace trireme::engine
