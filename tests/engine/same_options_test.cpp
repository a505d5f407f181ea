// What initialize() refuses before any rank waits for another in vain.
#include "small_run.h"

#include <tests/support/run_ranks.h>
#include <trireme/engine/same_data.h>
#include <trireme/engine/same_options.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <thread>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

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

// Samples of a content.
class Known : public Counting {
 public:
  explicit Known(uint64_t checksum) : checksum_(checksum) {}
  uint64_t checksum() const override { return checksum_; }

 private:
  uint64_t checksum_;
};

TEST(SameOptionsTest, RanksReadTheSameData) {
  on_ranks(2, [](comm::World& world) {
    const auto refusal_of = [&](uint64_t first, uint64_t second) {
      return refusal(world, [&](InitializeOptions& options) {
        options.training_data = std::make_shared<Known>(world.rank() == 0 ? first : second);
      });
    };
    EXPECT_THAT(refusal_of(6, 7),
                testing::AllOf(HasSubstr("differ in the checksum of training_data: 7 and 6 (counting)"),
                               HasSubstr("Copy the same files of data to every host")));
    EXPECT_EQ(refusal_of(7, 7), "made");
    EXPECT_EQ(refusal_of(7, 0), "made") << "0: unknown";
  });
}

TEST(SameOptionsTest, RanksEvaluateOnTheSameData) {
  on_ranks(2, [](comm::World& world) {
    const auto refusal_of = [&](std::shared_ptr<data::Dataset> first, std::shared_ptr<data::Dataset> second) {
      try {
        check_same_data(world.group(), (world.rank() == 0 ? first : second).get(), "the validation data");
      } catch (const InputError& error) {
        return std::string(error.what());
      }
      return std::string("same");
    };
    const auto known = [](uint64_t checksum) { return std::make_shared<Known>(checksum); };
    EXPECT_THAT(refusal_of(known(6), known(7)),
                testing::AllOf(HasSubstr("differ in the checksum of the validation data: 7 and 6 (counting)"),
                               HasSubstr("Copy the same files of data to every host")));
    EXPECT_EQ(refusal_of(known(7), known(7)), "same");
    EXPECT_EQ(refusal_of(known(0), known(7)), "same") << "0: unknown";
    EXPECT_EQ(refusal_of(nullptr, nullptr), "same");
    EXPECT_THAT(refusal_of(known(7), nullptr), HasSubstr("of the validation data"));
  });
}

TEST(SameOptionsTest, RanksThatDifferAreToldWhatDiffers) {
  on_ranks(2, [](comm::World& world) {
    const bool second = world.rank() == 1;
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config.zero.stage = second ? 2 : 1; }),
                HasSubstr("rank 1 and rank 0 differ in the ZeRO stage"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config = small_config(second ? 96 : 48, second ? 2 : 1); }),
                HasSubstr("differ in gradient_accumulation_steps"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config.gradient_clipping = second ? 0.5 : 1; }),
                HasSubstr("differ in gradient_clipping"));
    EXPECT_THAT(
        refusal(world, [&](auto& options) { options.training_data = second ? options.training_data : nullptr; }),
        HasSubstr("differ in whether there is training_data"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config.data_parallel.prescale_gradients = second; }),
                HasSubstr("differ in prescale_gradients"));
    EXPECT_THAT(refusal(world,
                        [&](auto& options) {
                          options.config.offload.optimizer.place =
                              second ? offload::Place::host : offload::Place::device;
                        }),
                HasSubstr("differ in offload_optimizer.device"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config.offload.optimizer.ratio = second ? 0.5 : 1; }),
                HasSubstr("differ in offload_optimizer.ratio"));
    EXPECT_THAT(
        refusal(world, [&](auto& options) { options.config.offload.optimizer.nvme_path = second ? "/a" : "/b"; }),
        HasSubstr("made"))
        << "each has its own disk";
    EXPECT_THAT(refusal(world, [&](auto&) {}), HasSubstr("made"));
  });
}

TEST(SameOptionsTest, WhatWouldMakeRanksDriftApartIsNamedWithItsValues) {
  on_ranks(3, [](comm::World& world) {
    const bool second = world.rank() == 1;
    const auto adam = [](InitializeOptions& options) -> optim::AdamOptions& {
      return std::get<optim::AdamOptions>(options.config.optimizer->rule);
    };
    EXPECT_THAT(refusal(world, [&](auto& options) { adam(options).weight_decay = second ? 0.5 : 0.25; }),
                HasSubstr("rank 1 and rank 0 differ in optimizer.params.weight_decay: 0.5 and 0.25"));
    EXPECT_THAT(refusal(world, [&](auto& options) { adam(options).beta2 = world.rank() > 0 ? 0.5 : 0.25; }),
                HasSubstr("ranks 1, 2 and rank 0 differ in optimizer.params.betas.1: 0.5 and 0.25"));
    EXPECT_THAT(refusal(world, [&](auto& options) { adam(options).eps = second ? 0.5 : 0.25; }),
                HasSubstr("differ in optimizer.params.eps: 0.5 and 0.25"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config.seed = world.rank() == 2 ? 5 : 4; }),
                HasSubstr("rank 2 and rank 0 differ in seed: 5 and 4"));
    EXPECT_THAT(refusal(world,
                        [&](auto& options) {
                          options.config.schedule.kind = optim::ScheduleOptions::Kind::warmup;
                          options.config.schedule.warmup_num_steps = second ? 5 : 4;
                        }),
                HasSubstr("differ in scheduler.params.warmup_num_steps: 5 and 4"));
    EXPECT_THAT(refusal(world,
                        [&](auto& options) {
                          options.config.schedule.kind =
                              second ? optim::ScheduleOptions::Kind::warmup : optim::ScheduleOptions::Kind::constant;
                        }),
                HasSubstr("differ in scheduler.type: \"WarmupLR\" and \"constant\"; and in 4 more"));
    EXPECT_THAT(
        refusal(world, [&](auto& options) { options.config.precision.loss_scale.loss_scale_window = second ? 5 : 4; }),
        HasSubstr("differ in fp16.loss_scale_window: 5 and 4"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config.gradient_clipping = second ? 0.5 : 0; }),
                HasSubstr("differ in gradient_clipping: 0.5 and 0.0"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.shuffle = second; }),
                HasSubstr("differ in shuffle: true and false"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config.tensor_parallel.size = second ? 3 : 1; }),
                HasSubstr("differ in tensor_parallel.autotp_size: 3 and 1"));
    EXPECT_THAT(refusal(world,
                        [&](auto& options) {
                          options.config.optimizer = second ? std::nullopt : std::optional(optim::OptimizerOptions());
                        }),
                HasSubstr("made"))
        << "AdamW is what is used without one";
  });
}

TEST(SameOptionsTest, GroupsOfParametersThatDiffer) {
  on_ranks(2, [](comm::World& world) {
    const bool second = world.rank() == 1;
    const auto groups = [](const char* chosen, double lr_factor, double weight_decay) {
      return std::vector<ParameterGroup>{
          {.chooses = [=](const std::string& name,
                          const std::vector<int64_t>&) { return name.find(chosen) != std::string::npos; },
           .lr_factor = lr_factor,
           .weight_decay = weight_decay}};
    };
    EXPECT_THAT(
        refusal(world, [&](auto& options) { options.parameter_groups = groups("ln_f", second ? 0.5 : 0.25, 0); }),
        HasSubstr("rank 1 and rank 0 differ in parameter_groups.0.lr_factor: 0.5 and 0.25"));
    EXPECT_THAT(
        refusal(world, [&](auto& options) { options.parameter_groups = groups("ln_f", 1, second ? 0.5 : 0.25); }),
        HasSubstr("differ in parameter_groups.0.weight_decay: 0.5 and 0.25"));
    EXPECT_THAT(
        refusal(world, [&](auto& options) { options.parameter_groups = groups(second ? "wte" : "ln_f", 0.5, 0); }),
        testing::AllOf(HasSubstr("rank 1 and rank 0 choose other parameter groups for "
                                 "\"transformer.ln_f.bias\": lr_factor 1.0 and 0.5"),
                       HasSubstr("the same answer")));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.parameter_groups = groups("ln_f", 0.5, 0); }),
                HasSubstr("made"));
  });
}

class StepsLocally : public parallel::AllReduceSync, public parallel::LocalSteps {
 public:
  explicit StepsLocally(const comm::Group& group) : AllReduceSync(group, {}) {}
  const LocalSteps* local_steps() const override { return this; }
  bool is_local() const override { return local; }
  bool ends_round() const override { return ends; }
  int64_t steps_until_equal() const override { return local && !ends ? 1 : 0; }
  bool local = false;
  bool ends = true;
};

// There is no way to name some of the ranks.
TEST(SameOptionsTest, ThoseWhoStepTogetherAreAllOrOne) {
  on_ranks(3, [](comm::World& world) {
    const parallel::AllReduceSync plain(world.group(), {});
    EXPECT_EQ(plain.step_group().size(), 3);
    EXPECT_FALSE(plain.steps_locally_after(100));
    StepsLocally sync(world.group());
    EXPECT_EQ(sync.step_group().size(), 3);
    EXPECT_EQ(sync.loss_group().size(), 3);
    sync.local = true;
    EXPECT_EQ(sync.step_group().size(), 1);
    EXPECT_EQ(sync.loss_group().size(), 3);
    EXPECT_TRUE(sync.steps_locally_after(100));
    sync.ends = false;
    EXPECT_EQ(sync.loss_group().size(), 1);
    EXPECT_FALSE(sync.may_stop());
    EXPECT_FALSE(sync.replicas_are_equal());
  });
}

TEST(SameOptionsTest, AModelBelongsToOneEngineAtATime) {
  on_ranks(1, [](comm::World& world) {
    const models::Gpt model(small_gpt());
    {
      const auto first = initialize(world, plain_options(model)).engine;
      EXPECT_THAT(refusal(world, [&](auto& options) { options = plain_options(model); }),
                  HasSubstr("belongs to another engine"));
      first->train_batch();
    }
    EXPECT_THAT(refusal(world, [&](auto& options) { options = plain_options(model); }), HasSubstr("made"));
  });
}

TEST(SameOptionsTest, ACheckpointThatIsNamedAndNotThereIsAnError) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / concat("trireme_named_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    const auto engine = initialize(world, plain_options(models::Gpt(small_gpt()))).engine;
    EXPECT_FALSE(engine->load_checkpoint(folder));
    EXPECT_FALSE(engine->load_checkpoint(folder / "run2"));
    EXPECT_THROW(engine->load_checkpoint(folder / "global_step4"), InputError);
    EXPECT_THROW(engine->load_checkpoint(folder / "global_step4/"), InputError);
    EXPECT_THROW(engine->load_checkpoint(folder, "global_step4"), Error);
  });
}

/// Cannot give its state on the second rank.
class Forgetful : public parallel::AllReduceSync, public parallel::SyncState {
 public:
  using AllReduceSync::AllReduceSync;
  SyncState& sync_state() override { return *this; }
  nlohmann::json state() const override {
    if (fails && group().rank() == 1) {
      throw std::runtime_error("no state");
    }
    return nullptr;
  }
  inline static bool fails = true;
};

TEST(SameOptionsTest, ASaveThatFailsOnOneRankFailsOnAll) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("trireme_forgetful_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    InitializeOptions options = plain_options(models::Gpt(small_gpt()));
    options.sync = {.make = [](const parallel::ReduceGroups& groups) {
      return std::make_unique<Forgetful>(groups, parallel::DataParallelOptions{});
    }};
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
  });
  std::filesystem::remove_all(folder);
}

TEST(SameOptionsTest, NoTimeOutEndsTheWaitForWhatRankZeroDoesAlone) {
  using std::chrono_literals::operator""s;
  on_ranks(2,
           [](comm::World& world) {
             bool called = false;
             call_on_first(world.group(), [&] {
               std::this_thread::sleep_for(6s);
               called = true;
             });
             EXPECT_EQ(called, world.rank() == 0);
             try {
               call_on_first(world.group(), [] { throw Error("export", "no room"); });
               ADD_FAILURE() << "no error";
             } catch (const Error& error) {
               EXPECT_THAT(error.what(), HasSubstr("rank 0: no room"));
             }
           },
           {.timeout = 4s});
}

} // namespace
} // namespace trireme::engine
