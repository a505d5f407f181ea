// What the reader makes of configurations as public projects write them; tests/engine/public_configs_test.cpp trains
// with them.
#include <tests/config/public_configs.h>
#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/config/deepspeed_json.h>

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

#include <set>

namespace trireme::config {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

const AutoValues kRun = {.steps = 100, .hidden = 64};

EngineConfig public_config(const std::string& name) {
  return read_deepspeed(
      JsonNode::parse_file(concat(test::source_dir() + "/tests/config/public_configs/", name, ".json")), kRun);
}

TEST(PublicConfigsTest, AllButTwoAreRead) {
  int read_well = 0;
  std::set<std::string> refused;
  for (const auto& file : test::public_configs()) {
    SCOPED_TRACE(file.stem());
    try {
      const EngineConfig config = read_deepspeed(JsonNode::parse_file(file), kRun);
      config.batch_for(1);
      config.batch_for(2);
      ++read_well;
    } catch (const InputError& error) {
      refused.insert(file.stem());
      ASSERT_EQ(test::refused_public_configs().count(file.stem()), 1u) << error.what();
      EXPECT_THAT(error.what(), AllOf(HasSubstr(file.filename().string() + ":"),
                                      HasSubstr(test::refused_public_configs().at(file.stem()))));
    }
  }
  EXPECT_EQ(refused.size(), test::refused_public_configs().size());
  EXPECT_GE(read_well, 26);
}

TEST(PublicConfigsTest, TheirPageListsEachOfThem) {
  const std::string page = read_file(test::source_dir() + "/tests/config/public_configs/README.md");
  for (const auto& file : test::public_configs()) {
    EXPECT_THAT(page, HasSubstr(file.stem().string()));
  }
}

TEST(PublicConfigsTest, EveryKindOfAutoIsFilledIn) {
  const EngineConfig config = public_config("embeddings_zero1");
  EXPECT_EQ(config.batch_for(2), (BatchTriple{16, 8, 1}));
  EXPECT_EQ(config.clipping(), 1.0);
  EXPECT_EQ(config.optimizer->lr(), 5e-5);
  EXPECT_EQ(std::get<optim::AdamOptions>(config.optimizer->rule).beta2, 0.999);
  EXPECT_EQ(config.schedule.total_num_steps, 100);
  EXPECT_EQ(config.schedule.warmup_max_lr, 5e-5);
  EXPECT_EQ(config.schedule.warmup_num_steps, 0);
  EXPECT_EQ(config.precision.compute, precision::Type::fp32);
  const EngineConfig wide = public_config("vision_language_zero3");
  EXPECT_EQ(wide.data_parallel.bucket_bytes, 64 * 64 * 4);
  EXPECT_EQ(wide.zero.prefetch_elements, 3686);
  EXPECT_EQ(wide.zero.param_persistence_threshold, 640);
}

TEST(PublicConfigsTest, WhatHasNoMeaningHereIsSaid) {
  EXPECT_TRUE(public_config("gpt_pretraining_checkpointing").activations.shares_inputs);
  EXPECT_THAT(public_config("sft_zero2_all_auto").notes, AllOf(Contains(HasSubstr("comms_config has no effect")),
                                                               Contains(HasSubstr("monitor_config has no effect"))));
}

} // namespace
} // namespace trireme::config
