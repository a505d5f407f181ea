// ZeRO where layers or the tokens of a sample are split among ranks: stage 3 in pipelines, hybrid sharding, frozen
// parameters, first values.
#include "split_run.h"

#include <trireme/device/absent_memory.h>
#include <trireme/parallel/tensor/split_module.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;
using Kind = pipeline::ScheduleKind;

// The last norm of a Gpt in one piece belongs to no unit.
void expect_that_shards_stay(SplitRun& run) {
  for (const auto& item : run.module().named_parameters()) {
    EXPECT_EQ(device::has_memory(item.value()), run.gpt() != nullptr && item.key().starts_with("transformer.ln_f."))
        << item.key();
  }
}

void at_stage_three(SplitLayout layout) {
  layout.zero_stage = 3;
  expect_losses_of_one_process(layout, {}, expect_that_shards_stay);
}

TEST(SplitZeroTest, StageThreeInPipelinesWithTensorRanks) {
  at_stage_three({.pipe = 2, .data = 2, .tensor = 2, .accumulation = 4});
  at_stage_three({.pipe = 2, .data = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 4});
  at_stage_three({.pipe = 2, .data = 2, .tensor = 2, .accumulation = 4, .schedule = Kind::interleaved, .chunks = 2});
  at_stage_three({.pipe = 2,
                  .data = 2,
                  .tensor = 2,
                  .sequence_parallel = true,
                  .accumulation = 4,
                  .schedule = Kind::interleaved,
                  .chunks = 2});
  at_stage_three({.pipe = 2, .data = 2, .tensor = 2, .accumulation = 4, .schedule = Kind::zero_bubble});
  at_stage_three(
      {.pipe = 2, .data = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2, .schedule = Kind::zero_bubble});
}

TEST(SplitZeroTest, StageThreeInPipelinesWithContextRanks) {
  at_stage_three({.pipe = 2, .context = 2, .accumulation = 4}); // shared by the context ranks alone
  at_stage_three({.pipe = 2, .data = 2, .context = 2, .accumulation = 4, .context_kind = kUlysses});
  at_stage_three({.pipe = 2, .data = 2, .context = 2, .accumulation = 2, .schedule = Kind::interleaved, .chunks = 2});
  at_stage_three({.pipe = 2, .data = 2, .context = 2, .accumulation = 4, .schedule = Kind::zero_bubble});
  at_stage_three({.pipe = 2,
                  .context = 2,
                  .tensor = 2,
                  .sequence_parallel = true,
                  .accumulation = 4,
                  .schedule = Kind::zero_bubble,
                  .context_kind = kUlysses});
  at_stage_three({.pipe = 2, .context = 2, .tensor = 2, .accumulation = 4, .schedule = Kind::interleaved, .chunks = 2});
}

TEST(SplitZeroTest, StageThreeWithRecomputationAndUnitsThatAreKept) {
  for (const Kind schedule : {Kind::one_f_one_b, Kind::zero_bubble}) {
    const SplitChanges changes{.options = [](InitializeOptions& options) {
      options.config.pipeline.activation_checkpoint_interval = 1;
      options.config.zero.max_live_elements = 2000;
    }};
    expect_losses_of_one_process({.pipe = 2,
                                  .data = 2,
                                  .tensor = 2,
                                  .sequence_parallel = true,
                                  .zero_stage = 3,
                                  .accumulation = 4,
                                  .schedule = schedule},
                                 changes);
  }
}

// What the tensor ranks have whole is sharded among all data ranks, as without hybrid sharding.
TEST(SplitZeroTest, HybridSharding) {
  const SplitChanges in_pairs{.options = [](InitializeOptions& options) { options.config.zero.shard_size = 2; }};
  for (const int stage : {1, 2, 3}) {
    for (const bool sequence_parallel : {false, true}) {
      expect_losses_of_one_process({.data = 4,
                                    .tensor = 2,
                                    .sequence_parallel = sequence_parallel,
                                    .zero_stage = stage,
                                    .accumulation = stage == 2 ? 2 : 1},
                                   in_pairs);
    }
  }
  expect_losses_of_one_process({.data = 2, .context = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3},
                               in_pairs);
  expect_losses_of_one_process(
      {.pipe = 2, .data = 2, .context = 2, .zero_stage = 3, .accumulation = 4, .schedule = Kind::zero_bubble},
      in_pairs);
}

bool is_frozen(const std::string& name) {
  const auto one_of = [&](std::initializer_list<const char*> ends) {
    return std::any_of(ends.begin(), ends.end(), [&](const char* end) { return name.ends_with(end); });
  };
  return name.starts_with("transformer.h.1.") || one_of({"mlp.c_fc.weight", "mlp.c_fc.bias", "attn.c_proj.weight",
                                                         "attn.c_proj.bias", "ln_2.weight", "wpe.weight"});
}

void freeze(torch::nn::Module& module, const std::string& prefix) {
  for (const auto& item : module.named_parameters()) {
    item.value().set_requires_grad(!is_frozen(prefix + item.key()));
  }
}

void freeze_the_vocabulary_too(torch::nn::Module& module, const std::string& prefix) {
  freeze(module, prefix);
  for (const auto& item : module.named_parameters()) {
    if ((prefix + item.key()).find("wte.weight") != std::string::npos) {
      item.value().set_requires_grad(false);
    }
  }
}

TEST(SplitZeroTest, FrozenParameters) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool sequence_parallel : {false, true}) {
      expect_losses_of_one_process(
          {.data = 2, .tensor = 2, .sequence_parallel = sequence_parallel, .zero_stage = stage}, {.model = freeze},
          stage == 3 ? expect_that_shards_stay : std::function<void(SplitRun&)>());
    }
  }
  expect_losses_of_one_process({.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3},
                               {.model = freeze_the_vocabulary_too});
  expect_losses_of_one_process({.pipe = 2, .data = 2, .tensor = 2, .zero_stage = 3, .accumulation = 4},
                               {.model = freeze});
  expect_losses_of_one_process({.pipe = 2,
                                .data = 2,
                                .tensor = 2,
                                .sequence_parallel = true,
                                .zero_stage = 3,
                                .accumulation = 4,
                                .schedule = Kind::zero_bubble},
                               {.model = freeze});
  expect_losses_of_one_process({.pipe = 2,
                                .data = 2,
                                .tensor = 2,
                                .zero_stage = 3,
                                .accumulation = 4,
                                .schedule = Kind::interleaved,
                                .chunks = 2},
                               {.model = freeze_the_vocabulary_too});
}

TEST(SplitZeroTest, CheckpointsHoldFrozenParametersAndCopiesOnce) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_zero_", ::getpid());
  const SplitChanges before{.model = freeze};
  SplitChanges in_pairs = before;
  in_pairs.options = [](InitializeOptions& options) { options.config.zero.shard_size = 2; };
  SplitChanges emptied = before; // what is not loaded is missed
  emptied.split = [](torch::nn::Module& module, const std::string&) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : module.parameters()) {
      parameter.zero_();
    }
  };
  const std::vector<std::pair<SplitLayout, const SplitChanges*>> saved = {
      {{.data = 2, .tensor = 2, .zero_stage = 3}, &before},
      {{.pipe = 2, .data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3, .accumulation = 2}, &before},
      {{.data = 4, .tensor = 2, .sequence_parallel = true, .zero_stage = 3}, &in_pairs}};
  const std::vector<SplitLayout> resumed = {{},
                                            {.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3},
                                            {.pipe = 2, .data = 2, .context = 2, .zero_stage = 3, .accumulation = 2}};
  for (const auto& [from, changes] : saved) {
    EXPECT_THAT(run_ranks(from.ranks(),
                          [&, &from = from, &changes = changes](comm::World& world) {
                            SplitRun run(world, from, *changes);
                            for (int step = 0; step < 4; ++step) {
                              run.step();
                            }
                            run.engine().save_checkpoint(folder);
                          }),
                IsEmpty())
        << from.describe();
    for (const SplitLayout& to : resumed) {
      EXPECT_THAT(run_ranks(to.ranks(),
                            [&](comm::World& world) {
                              const std::vector<double> losses =
                                  plain_losses(kSplitBatch, 8, 1.0, nullptr, split_gpt(),
                                               [](torch::nn::Module& module) { freeze(module, ""); });
                              SplitRun run(world, to, emptied);
                              ASSERT_TRUE(run.engine().load_checkpoint(folder));
                              for (int step = 4; step < 8; ++step) {
                                EXPECT_NEAR(run.step(), losses[step], 1e-5 * losses[step]) << "step " << step;
                              }
                            }),
                  IsEmpty())
          << from.describe() << ", then " << to.describe();
    }
    fs::remove_all(folder);
  }
}

// Each rank but the first gives other values to what it should have like the first, split or whole, trained or frozen.
TEST(SplitZeroTest, FirstValuesAreThoseOfTheFirstRank) {
  for (const SplitLayout& layout :
       {SplitLayout{.tensor = 2}, SplitLayout{.data = 2, .tensor = 2},
        SplitLayout{.pipe = 2, .data = 2, .tensor = 2, .accumulation = 2}, SplitLayout{.context = 2, .tensor = 2}}) {
    for (const int stage : {0, 1, 3}) {
      for (const bool sequence_parallel : {false, true}) {
        SplitLayout here = layout;
        here.zero_stage = stage;
        here.sequence_parallel = sequence_parallel;
        EXPECT_THAT(
            run_ranks(here.ranks(),
                      [&](comm::World& world) {
                        SplitChanges changes{.model = freeze};
                        changes.split = [&](torch::nn::Module& module, const std::string&) {
                          const torch::NoGradGuard no_grad;
                          const int tensor = world.rank() % here.tensor;
                          const int replica = world.rank() / here.tensor % (here.data * here.context);
                          const tensor::Placements split = tensor::placements_of(module);
                          for (at::Tensor& parameter : module.parameters()) {
                            if (replica > 0 || (tensor > 0 && split.count(parameter.unsafeGetTensorImpl()) == 0)) {
                              parameter.mul_(1.5).add_(0.1);
                            }
                          }
                        };
                        const std::vector<double> losses =
                            plain_losses(kSplitBatch, 3, 1.0, nullptr, split_gpt(),
                                         [](torch::nn::Module& module) { freeze(module, ""); });
                        SplitRun run(world, here, changes);
                        for (const double loss : losses) {
                          EXPECT_NEAR(run.step(), loss, 1e-5 * loss);
                        }
                      }),
            IsEmpty())
            << here.describe();
      }
    }
  }
}

// The first rank's part of the vocabulary has 256 numbers, the second's 240, and there is room to keep one of the
// positions' 256 beside the latter only.
TEST(SplitZeroTest, TensorRanksKeepTheSameSmallParameters) {
  SplitChanges changes;
  changes.shape.sequence_length = 16;
  changes.options = [](InitializeOptions& options) {
    options.config.zero.param_persistence_threshold = 300;
    options.config.zero.model_persistence_threshold =
        4 * (24 + 128 + 16 + 32 + 16 + 4 * 16) + 240 + 256; // the last norm is no unit
  };
  for (const bool sequence_parallel : {false, true}) {
    expect_losses_of_one_process({.data = 2, .tensor = 2, .sequence_parallel = sequence_parallel, .zero_stage = 3},
                                 changes);
  }
}

// The vocabulary's parts differ by 64 numbers: there is room for so many units beside the smaller one, or time to
// gather them ahead, but not beside the larger. What is gathered when changes no bit of a loss.
TEST(SplitZeroTest, TensorRanksGatherAndKeepTheSameUnits) {
  const SplitLayout layout{.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3, .accumulation = 2};
  on_ranks(layout.ranks(), [&](comm::World& world) {
    const auto losses_of = [&](std::optional<int64_t> ahead, std::optional<int64_t> live) {
      SplitChanges changes;
      changes.shape.hidden = 64;
      changes.options = [&](InitializeOptions& options) {
        options.config.zero.prefetch_elements = ahead;
        options.config.zero.max_live_elements = live;
      };
      SplitRun run(world, layout, changes);
      std::vector<double> losses;
      for (int step = 0; step < 3; ++step) {
        losses.push_back(run.step());
      }
      return losses;
    };
    const std::vector<double> expected = losses_of(0, 0);
    for (const int64_t elements : {26'176, 26'688, 51'360, 51'872}) {
      EXPECT_EQ(losses_of(elements, std::nullopt), expected) << "ahead " << elements;
    }
    for (const int64_t elements : {51'360, 76'544, 101'728}) {
      EXPECT_EQ(losses_of(std::nullopt, elements), expected) << "live " << elements;
    }
  });
}

} // namespace
} // namespace trireme::engine
