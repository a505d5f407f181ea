// What initialize() refuses before any rank waits for another in vain.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

namespace trireme::engine {
namespace {

using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

InitializeOptions plain_options(models::Gpt model) {
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  options.config = small_config(48, 1);
  options.training_data = std::make_shared<Counting>();
  return options;
}

std::string refusal(comm::World& world, const std::function<void(InitializeOptions&)>& change) {
  InitializeOptions options = plain_options(models::Gpt(small_gpt()));
  change(options);
  try {
    initialize(world, options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "made";
}

TEST(SameOptionsTest, RanksThatDifferAreToldWhatDiffers) {
  EXPECT_THAT(run_ranks(2,
                        [](comm::World& world) {
                          const bool second = world.rank() == 1;
                          EXPECT_THAT(refusal(world, [&](auto& options) { options.config.zero.stage = second ? 2 : 1; }), HasSubstr("rank 1 and rank 0 differ in the ZeRO stage"));
                          EXPECT_THAT(refusal(world, [&](auto& options) { options.config = small_config(second ? 96 : 48, second ? 2 : 1); }),
                                      HasSubstr("differ in gradient_accumulation_steps"));
                          EXPECT_THAT(refusal(world, [&](auto& options) { options.config.gradient_clipping = second ? 0.5 : 1; }), HasSubstr("differ in gradient_clipping"));
                          EXPECT_THAT(refusal(world, [&](auto& options) { options.training_data = second ? options.training_data : nullptr; }),
                                      HasSubstr("differ in whether there is training_data"));
                          EXPECT_THAT(refusal(world, [&](auto& options) { options.config.data_parallel.prescale_gradients = second; }), HasSubstr("differ in prescale_gradients"));
                          EXPECT_THAT(refusal(world, [&](auto& options) { options.config.offload.optimizer.place = second ? offload::Place::host : offload::Place::device; }),
                                      HasSubstr("differ in offload_optimizer.device"));
                          EXPECT_THAT(refusal(world, [&](auto& options) { options.config.offload.optimizer.ratio = second ? 0.5 : 1; }), HasSubstr("differ in offload_optimizer.ratio"));
                          EXPECT_THAT(refusal(world, [&](auto& options) { options.config.offload.optimizer.nvme_path = second ? "/a" : "/b"; }), HasSubstr("made")) << "each has its own disk";
                          EXPECT_THAT(refusal(world, [&](auto&) {}), HasSubstr("made"));
                        }),
              IsEmpty());
}

class HalfOfTheRanks : public parallel::AllReduceSync {
 public:
  explicit HalfOfTheRanks(const parallel::ReduceGroups& groups) : AllReduceSync(groups, {}), half_(groups.data().subgroup({0, 1}, "half")) {}
  const comm::Group& step_group() const override {
    return half_;
  }

 private:
  comm::Group half_;
};

TEST(SameOptionsTest, ThoseWhoStepTogetherAreAllOrOne) {
  EXPECT_THAT(run_ranks(3,
                        [](comm::World& world) {
                          const std::string said = refusal(world, [](auto& options) {
                            options.gradient_sync = [](const parallel::ReduceGroups& groups) { return std::make_unique<HalfOfTheRanks>(groups); };
                          });
                          EXPECT_THAT(said, HasSubstr("step_group() has 2 of the 3 data ranks"));
                        }),
              IsEmpty());
}

TEST(SameOptionsTest, AModelBelongsToOneEngineAtATime) {
  EXPECT_THAT(run_ranks(1,
                        [](comm::World& world) {
                          const models::Gpt model(small_gpt());
                          {
                            const auto first = initialize(world, plain_options(model)).engine;
                            EXPECT_THAT(refusal(world, [&](auto& options) { options = plain_options(model); }), HasSubstr("belongs to another engine that still lives"));
                            first->train_batch();
                          }
                          EXPECT_THAT(refusal(world, [&](auto& options) { options = plain_options(model); }), HasSubstr("made"));
                        }),
              IsEmpty());
}

TEST(SameOptionsTest, ACheckpointThatIsNamedAndNotThereIsAnError) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / concat("trireme_named_", ::getpid());
  EXPECT_THAT(run_ranks(2,
                        [&](comm::World& world) {
                          const auto engine = initialize(world, plain_options(models::Gpt(small_gpt()))).engine;
                          EXPECT_FALSE(engine->load_checkpoint(folder));
                          EXPECT_FALSE(engine->load_checkpoint(folder / "run2"));
                          EXPECT_THROW(engine->load_checkpoint(folder / "global_step4"), InputError);
                          EXPECT_THROW(engine->load_checkpoint(folder / "global_step4/"), InputError);
                          EXPECT_THROW(engine->load_checkpoint(folder, "global_step4"), Error);
                        }),
              IsEmpty());
}

/// Cannot give its state on the second rank.
class Forgetful : public parallel::AllReduceSync {
 public:
  using AllReduceSync::AllReduceSync;
  nlohmann::json state() const override {
    if (fails && group().rank() == 1) {
      throw std::runtime_error("no state");
    }
    return nullptr;
  }
  inline static bool fails = true;
};

TEST(SameOptionsTest, ASaveThatFailsOnOneRankFailsOnAll) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / concat("trireme_forgetful_", ::getpid());
  EXPECT_THAT(run_ranks(2,
                        [&](comm::World& world) {
                          InitializeOptions options = plain_options(models::Gpt(small_gpt()));
                          options.gradient_sync = [](const parallel::ReduceGroups& groups) { return std::make_unique<Forgetful>(groups, parallel::DataParallelOptions{}); };
                          const auto engine = initialize(world, options).engine;
                          try {
                            engine->save_checkpoint(folder);
                            ADD_FAILURE() << "saved";
                          } catch (const Error& error) {
                            EXPECT_THAT(error.what(), HasSubstr("rank 1: no state"));
                          }
                          engine->train_batch();
                          Forgetful::fails = false;
                          engine->save_checkpoint(folder);
                        }),
              IsEmpty());
  std::filesystem::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
