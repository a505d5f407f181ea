// Every key of a run file that the table calls honoured does something: two values, and what a training does or leaves
// differs. The keys of "engine" have tests/engine/key_behaviour_test.cpp.
#include "run_observers.h"
#include "small_training.h"

#include <tests/support/run_ranks.h>

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/data/tokenizer.h>
#include <trireme/generate/load.h>

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

#include <sys/stat.h>

namespace trireme::tools {
namespace {

using observe::all_observers;
using observe::kTinyTokenizer;
using observe::sample;
using observe::training;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

class RunBehaviourTest : public SmallTrainingTest {};

TEST_F(RunBehaviourTest, EveryHonouredKeyIsObserved) {
  EXPECT_THAT(
      test::without_observer(all_observers(), [](std::string_view section) { return !section.starts_with("engine"); }),
      IsEmpty());
}

TEST_F(RunBehaviourTest, EveryHonouredKeyHasAnEffectOnOneRank) {
  EXPECT_THAT(test::without_effect(all_observers(), 1, common()), IsEmpty());
}

TEST_F(RunBehaviourTest, EveryHonouredKeyHasAnEffectOnTwoRanks) {
  EXPECT_THAT(test::without_effect(all_observers(), 2, common()), IsEmpty());
}

// The model takes its vocabulary from the tokenizer of the tokens.
TEST_F(RunBehaviourTest, TokensWithATokenizerNeedNoVocabSize) {
  json run = common();
  std::string few;
  for (int i = 0; i < 600; ++i) {
    few += static_cast<char>(i % 6);
    few += '\0';
  }
  run["data"]["train"] = file("few.bin", few);
  run["data"]["tokenizer"] = file("tokenizer.json", kTinyTokenizer);
  run["model"].erase("vocab_size");
  run["training"]["sample"] = {{"prompt", "ab"}, {"tokens", 5}};
  on_ranks(1, [&](comm::World& world) {
    sample(world, run);
    EXPECT_EQ(checkpoint::Checkpoint::open(out() / "checkpoints").entry("transformer.wte.weight").shape,
              (std::vector<int64_t>{6, 16}));
    const auto trained = generate::load(out());
    EXPECT_EQ(trained.model.shape().vocab_size, 6);
    ASSERT_NE(trained.tokenizer, nullptr);
    EXPECT_EQ(trained.tokenizer->decode(std::vector<int32_t>{5}), "abab");
  });
}

// A resumed run keeps the type that the first one measured, whatever a measurement would say now.
TEST_F(RunBehaviourTest, AutoKeepsTheTypeOfTheCheckpoint) {
  on_ranks(1, [&](comm::World& world) {
    for (const bool bf16 : {true, false}) {
      json run = common();
      run["engine"]["bf16"] = {{"enabled", bf16}};
      run_training(world, run);
      run["engine"]["bf16"]["enabled"] = "auto";
      run["training"]["steps"] = 3;
      run_training(world, run, /*resume=*/true);
      const auto saved = checkpoint::Checkpoint::open(out() / "checkpoints");
      EXPECT_THAT(saved.folder().filename(), "global_step3");
      EXPECT_EQ(saved.entry("transformer.wte.weight").dtype, bf16 ? "BF16" : "F32");
    }
  });
}

// Without the launcher, which makes the folder for its user only, the ranks do.
TEST_F(RunBehaviourTest, WhatARunWritesIsForItsUserOnly) {
  const json run = common();
  const mode_t before = ::umask(0);
  on_ranks(2, [&](comm::World& world) { run_training(world, run); });
  ::umask(before);
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(out())) {
    EXPECT_EQ(entry.status().permissions(),
              entry.is_directory() ? fs::perms::owner_all : fs::perms::owner_read | fs::perms::owner_write)
        << entry.path();
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(fs::status(out()).permissions(), fs::perms::owner_all);
  EXPECT_TRUE(fs::exists(out() / "metrics.jsonl"));
  EXPECT_GE(files, 6) << "metrics, report, events, run file, shards, manifest";
}

// With one stage a GPT becomes a list of layers where these are to be recomputed; what it computes stays the same.
TEST_F(RunBehaviourTest, OneStageRecomputesToo) {
  const json run = common();
  json recomputing = run;
  recomputing["engine"]["pipeline"]["activation_checkpoint_interval"] = 1;
  const auto losses = [](comm::World& world, const json& config) { return training(world, config)["steps"]; };
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](comm::World& world) {
      const config::RunConfig config = read(recomputing);
      const data::Datasets datasets = data::make_datasets(config.data);
      const Task task = train::Registry().make_task({config, datasets});
      ASSERT_NE(task.pipeline, nullptr);
      EXPECT_EQ(task.pipeline->options().activation_checkpoint_interval, 1);
      const json kept = losses(world, run);
      EXPECT_EQ(losses(world, recomputing), kept);
      json sharded = recomputing;
      sharded["engine"]["zero_optimization"] = {{"stage", 3}, {"stage3_param_persistence_threshold", 0}};
      EXPECT_EQ(losses(world, sharded), kept);
      json free = run;
      free["engine"]["gradient_clipping"] = 0;
      json stepping = recomputing;
      stepping["engine"].update({{"gradient_clipping", 0}, {"step_in_backward", true}});
      EXPECT_EQ(losses(world, stepping), losses(world, free));
    });
  }
}

} // namespace
} // namespace trireme::tools
