#include "plain_bf16.h"

#include <trireme/base/error.h>
#include <trireme/precision/loss_scaler.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <cmath>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using precision::Type;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kBatch = 48;

config::EngineConfig low_config(Type type, int stage = 0, int64_t accumulation = 1, double clipping = 1.0) {
  config::EngineConfig config = small_config(kBatch, accumulation, clipping);
  config.zero.stage = stage;
  config.zero.param_persistence_threshold = 40;
  config.precision.compute = type;
  return config;
}

TEST(MixedPrecisionTest, BfloatOnOneRankEqualsPlainLibtorch) {
  on_ranks(1, [](comm::World& world) {
    SmallRun run(world, low_config(Type::bf16));
    const std::vector<double> expected = plain_bf16_losses(models::Gpt(small_gpt()), 20, kBatch);
    for (int step = 0; step < 20; ++step) {
      EXPECT_NEAR(run.engine().train_batch().item<double>(), expected[step], 2e-3 * expected[step]) << "step " << step;
    }
    EXPECT_EQ(run.model->parameters()[0].scalar_type(), torch::kBFloat16);
  });
}

TEST(MixedPrecisionTest, EveryStageHasTheBitsOfStageZero) {
  for (const int stage : {1, 2, 3}) {
    for (const int ranks : {2, 3}) {
      EXPECT_THAT(
          run_ranks(
              ranks,
              [stage](comm::World& world) {
                SmallRun plain(world, low_config(Type::bf16, 0, 1, 0));
                SmallRun sharded(world, low_config(Type::bf16, stage, 1, 0));
                for (int step = 0; step < 10; ++step) {
                  EXPECT_EQ(plain.engine().train_batch().item<double>(), sharded.engine().train_batch().item<double>())
                      << "step " << step;
                }
                const auto whole = sharded.engine().gather_parameters(sharded.model->parameters());
                for (const auto& item : sharded.model->named_parameters()) {
                  EXPECT_TRUE(item.value().equal(plain.model->named_parameters()[item.key()])) << item.key();
                }
              }),
          IsEmpty())
          << "stage " << stage << " on " << ranks;
    }
  }
}

TEST(MixedPrecisionTest, MicroBatchesAddUpInFp32) {
  on_ranks(2, [](comm::World& world) {
    for (const int stage : {0, 1, 2, 3}) {
      SmallRun run(world, low_config(Type::bf16, stage, 4));
      EXPECT_EQ(run.engine().gradient_accumulation_steps(), 4);
      std::vector<double> losses;
      for (int step = 0; step < 12; ++step) {
        losses.push_back(run.engine().train_batch().item<double>());
      }
      const std::vector<double> fp32 = plain_losses(kBatch, 12, 1.0);
      EXPECT_NEAR(losses.front(), fp32.front(), 0.01);
      EXPECT_NEAR(losses.back(), fp32.back(), 0.15) << "stage " << stage;
    }
  });
}

TEST(MixedPrecisionTest, GradientsTravelInTheTypeThatWasAskedFor) {
  on_ranks(2, [](comm::World& world) {
    const auto bytes_of_step = [&](const config::EngineConfig& config) {
      SmallRun run(world, config);
      run.engine().train_batch();
      const int64_t before = run.engine().bytes_sent();
      const double loss = run.engine().train_batch().item<double>();
      EXPECT_TRUE(std::isfinite(loss));
      return static_cast<double>(run.engine().bytes_sent() - before);
    };
    const double fp32 = bytes_of_step(small_config(kBatch, 1, 0));
    config::EngineConfig sent_low = small_config(kBatch, 1, 0);
    sent_low.precision.communication = Type::bf16;
    EXPECT_NEAR(bytes_of_step(sent_low) / fp32, 0.5, 0.05);
    EXPECT_NEAR(bytes_of_step(low_config(Type::bf16, 0, 1, 0)) / fp32, 0.5, 0.05);
    config::EngineConfig sent_high = low_config(Type::bf16, 0, 1, 0);
    sent_high.precision.communication = Type::fp32;
    EXPECT_NEAR(bytes_of_step(sent_high) / fp32, 1, 0.05);
  });
}

/// A scale that overflows: all ranks skip the same steps, by the documented rule, and the learning rate waits.
TEST(MixedPrecisionTest, HalfPrecisionFindsItsScale) {
  for (const int stage : {0, 2, 3}) {
    on_ranks(2, [stage](comm::World& world) {
      config::EngineConfig config = low_config(Type::fp16, stage);
      config.precision.loss_scale.initial_scale_power = 24;
      config.precision.loss_scale.hysteresis = 2;
      SmallRun run(world, config);
      precision::LossScaler rule(config.precision.loss_scale);
      double first = 0;
      double last = 0;
      for (int step = 0; step < 40; ++step) {
        const int64_t skipped = run.engine().skipped_steps();
        last = run.engine().train_batch().item<double>();
        first = step == 0 ? last : first;
        EXPECT_EQ(*run.engine().loss_scale(), rule.scale()) << "step " << step;
        rule.update(run.engine().skipped_steps() > skipped);
      }
      EXPECT_GT(run.engine().skipped_steps(), 3);
      EXPECT_LT(run.engine().skipped_steps(), 30);
      EXPECT_LT(last, 0.8 * first);
    });
  }
}

class OneBatch : public Counting {
 public:
  int64_t size() const override { return kBatch; }
};

/// A step whose gradients are scaled by different factors is skipped; from the next on there is one scale.
TEST(MixedPrecisionTest, AnFp16LossOfOneRankLowersTheScaleOfAll) {
  for (const int64_t accumulation : {1, 2}) {
    on_ranks(2, [accumulation](comm::World& world) {
      models::Gpt model(small_gpt());
      int losses = 0;
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [&](const data::Batch& batch) mutable {
        const at::Tensor logits = model->forward(batch.input()).to(torch::kFloat);
        const at::Tensor loss =
            at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), batch.target().reshape({-1}));
        return world.rank() == 1 && ++losses == accumulation ? loss.to(torch::kHalf)
                                                             : loss; // with accumulation the second of the step
      };
      options.config = low_config(Type::fp16, 1, accumulation, 0);
      options.config.precision.loss_scale.loss_scale = 0x1p16 * static_cast<double>(accumulation);
      options.training_data = std::make_shared<OneBatch>();
      options.shuffle = false;
      const auto made = initialize(world, options);
      const at::Tensor before = model->transformer->embedding->wte->weight.clone();
      made.engine->train_batch();
      EXPECT_EQ(*made.engine->loss_scale(), 32768 * accumulation);
      EXPECT_EQ(made.engine->skipped_steps(), 1) << "gradients of two scales";
      EXPECT_TRUE(model->transformer->embedding->wte->weight.equal(before));
      made.engine->train_batch();
      EXPECT_EQ(made.engine->skipped_steps(), 1);
      const at::Tensor mine = model->transformer->embedding->wte->weight.detach().to(torch::kFloat).contiguous();
      at::Tensor all = torch::empty({2, mine.size(0), mine.size(1)});
      world.group().all_gather(all, mine).wait();
      EXPECT_TRUE(all[0].equal(all[1]));
    });
  }
}

/// Rank 1's loss is in fp16, so the fixed scale goes down to 2^15.
struct HalfLossRun {
  models::Gpt model{small_gpt()};
  Initialized made;

  explicit HalfLossRun(comm::World& world, bool shuffle = false) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [model = model, rank = world.rank()](const data::Batch& batch) mutable {
      const at::Tensor logits = model->forward(batch.input()).to(torch::kFloat);
      const at::Tensor loss = at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), batch.target().reshape({-1}));
      return rank == 1 ? loss.to(torch::kHalf) : loss;
    };
    options.config = low_config(Type::fp16, 1, 1, 0);
    options.config.precision.loss_scale.loss_scale = 0x1p16;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = shuffle;
    made = initialize(world, options);
  }
  Engine& engine() const { return *made.engine; }
};

TEST(MixedPrecisionTest, ALoadInTheMiddleOfAStepLeavesOneScale) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_one_scale_", ::getpid());
  enum class Load { works, finds_nothing, fails_late };
  for (const Load load : {Load::works, Load::finds_nothing, Load::fails_late}) {
    const bool refused = load != Load::works;
    on_ranks(2, [&](comm::World& world) {
      const HalfLossRun run(world);
      HalfLossRun(world, /*shuffle=*/load == Load::fails_late).engine().save_checkpoint(folder);
      run.engine().backward(run.engine().forward(run.made.loader->next())); // rank 1 has another scale now
      if (refused) {
        EXPECT_THROW(run.engine().load_checkpoint(folder, load == Load::fails_late ? "" : "absent"), InputError);
      } else {
        EXPECT_TRUE(run.engine().load_checkpoint(folder));
      }
      for (int step = 0; step < 3; ++step) {
        if (refused && step == 0) {
          run.engine().step();
        } else {
          run.engine().train_batch();
        }
        const at::Tensor mine = run.model->transformer->embedding->wte->weight.detach().to(torch::kFloat).contiguous();
        at::Tensor all = torch::empty({2, mine.size(0), mine.size(1)});
        world.group().all_gather(all, mine).wait();
        EXPECT_TRUE(all[0].equal(all[1])) << "step " << step;
      }
      EXPECT_EQ(*run.engine().loss_scale(), 0x1p15);
      EXPECT_EQ(run.engine().skipped_steps(), 1);
    });
    fs::remove_all(folder);
  }
}

TEST(MixedPrecisionTest, ALoweredScaleIsResumed) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_lowered_scale_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    const HalfLossRun run(world);
    for (int step = 0; step < 3; ++step) {
      run.engine().train_batch();
    }
    run.engine().save_checkpoint(folder);
    const HalfLossRun resumed(world);
    EXPECT_TRUE(resumed.engine().load_checkpoint(folder));
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(resumed.engine().train_batch().item<double>(), run.engine().train_batch().item<double>());
      EXPECT_EQ(resumed.engine().skipped_steps(), 1);
    }
  });
  fs::remove_all(folder);
}

/// A loss in fp16 cannot carry a scale of 2^16. A fixed one is lowered to what fits, a dynamic one comes down by its
/// rule, on all ranks; the gradients of the steps that are made are right.
TEST(MixedPrecisionTest, AnFp16LossIsScaledByWhatFits) {
  on_ranks(2, [](comm::World& world) {
    const auto norms = [&](bool fp16_loss, double fixed, int64_t skipped) {
      models::Gpt model(small_gpt());
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model, fp16_loss](const data::Batch& batch) mutable {
        const at::Tensor loss = model->loss(batch.input(), batch.target());
        return fp16_loss ? loss.to(torch::kHalf) : loss;
      };
      options.config = low_config(Type::fp16, 1, 1, 0);
      options.config.precision.loss_scale.loss_scale = fixed;
      options.config.precision.loss_scale.initial_scale_power = 16;
      options.config.precision.loss_scale.hysteresis = 1;
      options.training_data = std::make_shared<OneBatch>();
      options.shuffle = false;
      const auto made = initialize(world, options);
      std::vector<double> found;
      for (int64_t step = 0; step < 3 + skipped; ++step) {
        made.engine->train_batch();
        if (step >= skipped) {
          found.push_back(*made.engine->get_global_grad_norm());
        }
      }
      EXPECT_EQ(made.engine->skipped_steps(), skipped);
      EXPECT_EQ(*made.engine->loss_scale(), 32768);
      return found;
    };
    const std::vector<double> expected = norms(false, 32768, 0);
    EXPECT_EQ(norms(true, 65536, 0), expected) << "fixed";
    EXPECT_EQ(norms(true, 0, 1), expected) << "dynamic";
  });
}

TEST(MixedPrecisionTest, AutocastKeepsParametersInFp32) {
  on_ranks(2, [](comm::World& world) {
    config::EngineConfig config = small_config(kBatch, 1);
    config.precision.autocast = true;
    SmallRun run(world, config);
    const std::vector<double> fp32 = plain_losses(kBatch, 10, 1.0);
    bool differs = false;
    for (int step = 0; step < 10; ++step) {
      const double loss = run.engine().train_batch().item<double>();
      EXPECT_NEAR(loss, fp32[step], 0.1) << "step " << step;
      differs = differs || loss != fp32[step];
    }
    EXPECT_TRUE(differs) << "nothing was in bf16";
    EXPECT_EQ(run.model->parameters()[0].scalar_type(), torch::kFloat32);
  });
}

/// Saved by one stage and type, continued by another: bf16 to bf16 bit for bit, others from the masters.
TEST(MixedPrecisionTest, CheckpointsFitEveryTypeAndStage) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_mixed_", ::getpid());
  for (const int stage : {0, 3}) {
    EXPECT_THAT(run_ranks(2,
                          [&, stage](comm::World& world) {
                            SmallRun run(world, low_config(Type::bf16, stage, 1, 0));
                            for (int step = 0; step < 4; ++step) {
                              run.engine().train_batch();
                            }
                            run.engine().save_checkpoint(folder / "run");
                            SmallRun again(world, low_config(Type::bf16, stage, 1, 0));
                            ASSERT_TRUE(again.engine().load_checkpoint(folder / "run"));
                            SmallRun other(world, low_config(Type::bf16, stage == 0 ? 3 : 0, 1, 0));
                            ASSERT_TRUE(other.engine().load_checkpoint(folder / "run"));
                            SmallRun wide(world, low_config(Type::fp32, 1, 1, 0));
                            ASSERT_TRUE(wide.engine().load_checkpoint(folder / "run"));
                            for (int step = 0; step < 4; ++step) {
                              const double expected = run.engine().train_batch().item<double>();
                              EXPECT_EQ(again.engine().train_batch().item<double>(), expected);
                              EXPECT_EQ(other.engine().train_batch().item<double>(), expected);
                              EXPECT_NEAR(wide.engine().train_batch().item<double>(), expected, 0.03);
                            }
                            wide.engine().save_checkpoint(folder / "wide");
                            SmallRun narrow(world, low_config(Type::bf16, stage, 1, 0));
                            ASSERT_TRUE(narrow.engine().load_checkpoint(folder / "wide"));
                            EXPECT_NEAR(narrow.engine().train_batch().item<double>(),
                                        wide.engine().train_batch().item<double>(), 0.03);
                          }),
                IsEmpty())
        << "stage " << stage;
    fs::remove_all(folder);
  }
}

/// Steps during backward, bucket by bucket, are the steps after it, bit for bit; what needs all gradients first
/// refuses.
TEST(MixedPrecisionTest, StepsInBackwardAreTheSameSteps) {
  for (const int ranks : {1, 2, 3}) {
    EXPECT_THAT(
        run_ranks(
            ranks,
            [](comm::World& world) {
              for (const int stage : {0, 1, 2, 3}) {
                for (const int64_t accumulation : {1, 2}) {
                  config::EngineConfig config = low_config(Type::fp32, stage, accumulation, 0);
                  SmallRun after(world, config);
                  config.step_in_backward = true;
                  SmallRun during(world, config);
                  for (int step = 0; step < 6; ++step) {
                    EXPECT_EQ(after.engine().train_batch().item<double>(), during.engine().train_batch().item<double>())
                        << stage << ' ' << step;
                  }
                  const data::Batch batch = during.made.loader->next();
                  for (int64_t i = 0; i < accumulation; ++i) {
                    during.engine().backward(during.engine().forward(batch) * (world.rank() == 0 ? NAN : 1));
                    during.engine().step();
                  }
                  EXPECT_EQ(during.engine().skipped_steps(), 1);
                  EXPECT_TRUE(std::isfinite(during.engine().train_batch().item<double>()))
                      << "a step with a bad loss changes nothing";
                }
              }
              config::EngineConfig clipped = low_config(Type::fp32, 0, 1, 1.0);
              clipped.step_in_backward = true;
              EXPECT_THROW(SmallRun(world, clipped), InputError);
            }),
        IsEmpty())
        << ranks << " ranks";
  }
}

/// What goes wrong again and again is named: the rank, and the tensor nearest to where it began.
TEST(MixedPrecisionTest, RepeatedOverflowNamesTheLayer) {
  const auto problems = run_ranks(2, [](comm::World& world) {
    SmallRun run(world, low_config(Type::bf16, 1));
    const at::Tensor bad = run.model->named_parameters()["transformer.h.1.ln_2.bias"];
    bad.register_hook([&world](const at::Tensor& grad) { return world.rank() == 1 ? grad * NAN : grad; });
    try {
      for (int step = 0; step < 30; ++step) {
        run.engine().train_batch();
      }
      ADD_FAILURE() << "went on for ever";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("20 steps in a row"), HasSubstr("rank 1"), HasSubstr("transformer.h.1.ln_2.bias")));
    }
  });
  EXPECT_THAT(problems, IsEmpty());
}

/// Every optimizer through the engine: LAMB's norms cross ranks, states are cut into shards.
TEST(MixedPrecisionTest, OptimizersStepTheSameAtEveryStage) {
  for (const char* const optimizer :
       {R"({"type": "Lamb", "params": {"lr": 0.01}})", R"({"type": "Lion", "params": {"lr": 0.001}})",
        R"({"type": "Adagrad", "params": {"lr": 0.01}})", R"({"type": "RMSprop", "params": {"lr": 0.001}})",
        R"({"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}})"}) {
    EXPECT_THAT(
        run_ranks(3,
                  [optimizer](comm::World& world) {
                    const std::string text = concat(
                        R"({"train_batch_size": 48, "gradient_accumulation_steps": 1, "optimizer": )", optimizer, "}");
                    config::EngineConfig config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
                    config.data_parallel.bucket_bytes = 4000;
                    config.data_parallel.first_bucket_bytes = 1000;
                    config.zero.param_persistence_threshold = 40;
                    SmallRun plain(world, config);
                    config.zero.stage = 2;
                    SmallRun two(world, config);
                    config.zero.stage = 3;
                    SmallRun three(world, config);
                    double first = 0;
                    for (int step = 0; step < 8; ++step) {
                      const double loss = plain.engine().train_batch().item<double>();
                      first = step == 0 ? loss : first;
                      EXPECT_NEAR(two.engine().train_batch().item<double>(), loss, 1e-6 * loss) << "step " << step;
                      EXPECT_NEAR(three.engine().train_batch().item<double>(), loss, 1e-6 * loss) << "step " << step;
                      EXPECT_TRUE(step < 7 || loss < first) << loss << " after " << first;
                    }
                  }),
        IsEmpty())
        << optimizer;
  }
}

} // namespace
} // namespace trireme::engine
