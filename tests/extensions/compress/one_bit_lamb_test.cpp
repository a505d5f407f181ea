// 1-bit LAMB is LAMB until the warm-up ends; afterwards a step is its formula.
#include "compressed_run.h"

#include <trireme/base/error.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <cmath>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

constexpr double kLambDecay = 0.1, kLambLr = 0.01, kCoeffBeta = 0.8, kFactorMin = 0.7, kFactorMax = 1.5,
                 kThreshold = 0.05, kMinCoeff = 0.02, kMaxCoeff = 3;

Compression lamb(const std::string& type, std::optional<int64_t> freeze_step, double lr = kLambLr) {
  const std::string own = !freeze_step ? ""
                                       : concat(R"(, "freeze_step": )", *freeze_step, R"(, "coeff_beta": )", kCoeffBeta,
                                                R"(, "factor_min": )", kFactorMin, R"(, "factor_max": )", kFactorMax,
                                                R"(, "factor_threshold": )", kThreshold);
  return {.optimizer = concat(R"({"type": ")", type, R"(", "params": {"lr": )", lr,
                              R"(, "betas": [0.9, 0.95], "weight_decay": )", kLambDecay, R"(, "min_coeff": )",
                              kMinCoeff, R"(, "max_coeff": )", kMaxCoeff, own, "}}")};
}

class OneBitLambTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  OneBitLambTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_one_bit_lamb_", ::getpid())) {}
  ~OneBitLambTest() override { fs::remove_all(folder_); }
  static int ranks() { return std::get<0>(GetParam()); }
  static int stage() { return std::get<1>(GetParam()); }
  fs::path folder_;
};

TEST_P(OneBitLambTest, TheWarmUpIsLambBitForBit) {
  on_ranks(ranks(), [](comm::World& world) {
    Compression plain = lamb("Lamb", std::nullopt), one_bit = lamb("OneBitLamb", 100);
    for (Compression* const one : {&plain, &one_bit}) {
      one->accumulation = 2;
      one->clipping = 1;
      one->zero_stage = stage();
    }
    EXPECT_TRUE(end_of(world, plain.config(), 6).equal(end_of(world, one_bit.config(), 6)));
  });
}

at::Tensor norm_of(const at::Tensor& x) {
  return x.to(torch::kFloat64).norm();
}

double limited(double x, double least, double most) {
  return std::min(std::max(x, least), most);
}

/// What a step divides by: LAMB's eps is outside of the root.
at::Tensor root_of(const at::Tensor& second) {
  return second.sqrt() + 1e-8;
}

// Every step from two checkpoints. In the warm-up the average of trust ratios; then momenta, fresh second moments,
// factors and parameters.
void expect_lamb_formula(comm::World& world, const fs::path& folder, int zero_stage) {
  constexpr int64_t kFreeze = 4, kSteps = 9;
  Compression one_bit = lamb("OneBitLamb", kFreeze);
  one_bit.zero_stage = zero_stage;
  torch::manual_seed(7);
  SmallRun run(world, one_bit.config());
  run.engine().save_checkpoint(folder, "step0");
  for (int64_t step = 1; step <= kSteps; ++step) {
    run.engine().train_batch();
    expect_equal_on(world.group(), *run.model, "after a step");
    run.engine().save_checkpoint(folder, concat("step", step));
  }
  world.group().barrier().wait();
  if (world.rank() != 0) {
    return;
  }
  int moved = 0; // factors that are neither what they were nor at a limit of change
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto before = checkpoint::Checkpoint::open(folder, concat("step", step - 1)),
               after = checkpoint::Checkpoint::open(folder, concat("step", step));
    const Tensors x = read_all(before, *run.model), y = read_all(after, *run.model),
                  old = read_all(before, *run.model, "exp_avg"), first = read_all(after, *run.model, "exp_avg"),
                  second = read_all(after, *run.model, "exp_avg_sq"),
                  second_before = read_all(before, *run.model, "exp_avg_sq");
    const bool frozen = step > kFreeze;
    const Tensors units = units_of(second);
    Tensors agreed;
    if (frozen) {
      std::vector<Tensors> gradients;
      for (int rank = 0; rank < world.size(); ++rank) {
        gradients.push_back(gradients_at(x, step, rank, world.size()));
      }
      agreed = agreed_between(before, after, *run.model, world.size(), units, [&](const std::string& name, int rank) {
        return 0.9 * old.at(name) + 0.1 * gradients[static_cast<size_t>(rank)].at(name);
      });
    }
    const double correction = std::sqrt(1 - std::pow(0.95, std::min(step, kFreeze))) / (1 - std::pow(0.9, step));
    for (const auto& [name, weight] : x) {
      const at::Tensor kept = after.read("lamb_coefficients/" + name),
                       kept_before = before.read("lamb_coefficients/" + name);
      const at::Tensor part = first.at(name) / root_of(second.at(name)), update = part + kLambDecay * weight;
      double ratio = 0;
      if (!frozen) {
        const double size = norm_of(weight).item<double>();
        ratio = size > 0 ? limited(size / norm_of(update).item<double>(), kMinCoeff, kMaxCoeff) : 1;
        EXPECT_NEAR(kept[0].item<double>(), kCoeffBeta * kept_before[0].item<double>() + (1 - kCoeffBeta) * ratio,
                    1e-4 * ratio)
            << name << ", step " << step;
        EXPECT_NEAR(kept[1].item<double>(), 1 - std::pow(kCoeffBeta, step), 1e-5) << name;
        EXPECT_EQ(kept[2].item<double>(), 1) << name;
      } else {
        EXPECT_TRUE(kept.slice(0, 0, 2).equal(kept_before.slice(0, 0, 2))) << name;
        EXPECT_TRUE(second.at(name).equal(second_before.at(name))) << name;
        EXPECT_TRUE(torch::allclose(first.at(name), agreed.at(name), 1e-4, 1e-6))
            << name << ": " << (first.at(name) - agreed.at(name)).abs().max().item<double>();
        const at::Tensor gradient = (first.at(name) - 0.9 * old.at(name)) / (1 - 0.9),
                         fresh = after.read("exp_avg_sq_fresh/" + name);
        const at::Tensor fresh_before = step == kFreeze + 1 ? second.at(name) : before.read("exp_avg_sq_fresh/" + name);
        EXPECT_TRUE(torch::allclose(fresh, 0.95 * fresh_before + 0.05 * gradient.square(), 1e-4, 1e-12))
            << name << ", step " << step;
        double factor =
            (root_of(second.at(name)) / root_of(fresh)).masked_fill(second.at(name).eq(0), 0).max().item<double>();
        const double share = std::min(1.0, norm_of(part).item<double>() / norm_of(update).item<double>());
        factor = limited(factor * share + 1 - share, kFactorMin, kFactorMax);
        const double last = kept_before[2].item<double>();
        moved += std::abs(factor / last - 1) < kThreshold && factor != last ? 1 : 0;
        factor = limited(factor, last * (1 - kThreshold), last * (1 + kThreshold));
        EXPECT_NEAR(kept[2].item<double>(), factor, 1e-4) << name << ", step " << step;
        ratio = factor * (kept[0] / kept[1]).item<double>();
      }
      EXPECT_TRUE(torch::allclose(y.at(name), weight - kLambLr * correction * ratio * update, 1e-5, 1e-6))
          << name << ", step " << step;
    }
  }
  EXPECT_GT(moved, 5);
}

TEST_P(OneBitLambTest, EachStepIsTheFormula) {
  on_ranks(ranks(), [&](comm::World& world) { expect_lamb_formula(world, folder_, stage()); });
}

TEST_P(OneBitLambTest, ResumedIsUninterruptedBitForBit) {
  const fs::path folder = folder_;
  on_ranks(ranks(), [folder](comm::World& world) {
    Compression one_bit = lamb("OneBitLamb", 4);
    one_bit.accumulation = 2;
    one_bit.clipping = 1;
    one_bit.zero_stage = stage();
    for (const int save_after : {2, 4, 7}) {
      expect_resume_repeats(world, one_bit.config(), folder, save_after);
    }
    one_bit.bf16 = true;
    expect_resume_repeats(world, one_bit.config(), folder, 7);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneBitLambTest, testing::Combine(testing::Values(1, 2, 3), testing::Values(0, 1)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), "RanksStage", std::get<1>(info.param));
                         });

TEST(OneBitLambZeroTest, StageOneIsStageZeroBitForBit) {
  on_ranks(2, [](comm::World& world) {
    for (const bool bf16 : {false, true}) {
      std::vector<at::Tensor> ends;
      for (const int stage : {0, 1}) {
        Compression one_bit = lamb("OneBitLamb", 4);
        one_bit.zero_stage = stage;
        one_bit.accumulation = 2;
        one_bit.clipping = 1;
        one_bit.bf16 = bf16;
        ends.push_back(end_of(world, one_bit.config(), 10));
      }
      EXPECT_TRUE(ends[0].equal(ends[1])) << "bf16 " << bf16;
    }
  });
}

TEST_F(OneBitLambTest, WithAnotherNumberOfRanksCoefficientsAndFreshMomentsRemain) {
  const fs::path folder = folder_;
  on_ranks(3, [folder](comm::World& world) {
    SmallRun run(world, lamb("OneBitLamb", 3).config());
    for (int step = 0; step < 6; ++step) {
      run.engine().train_batch();
    }
    run.engine().save_checkpoint(folder, "three");
  });
  on_ranks(2, [folder](comm::World& world) {
    SmallRun run(world, lamb("OneBitLamb", 3).config());
    run.engine().load_checkpoint(folder, "three");
    run.engine().save_checkpoint(folder, "two");
    world.group().barrier().wait();
    const auto three = checkpoint::Checkpoint::open(folder, "three"), two = checkpoint::Checkpoint::open(folder, "two");
    for (const auto& item : run.model->named_parameters()) {
      for (const char* state : {"exp_avg_sq_fresh/", "lamb_coefficients/", "exp_avg/"}) {
        EXPECT_TRUE(two.read(state + item.key()).equal(three.read(state + item.key()))) << state << item.key();
      }
    }
    run.engine().train_batch();
    expect_equal_on(world.group(), *run.model, "after a step");
  });
}

TEST(OneBitLambCurveTest, LearnsAsLambDoes) {
  on_ranks(2, [](comm::World& world) {
    std::vector<double> ends;
    for (
        const Compression& one :
        {lamb("Lamb", std::nullopt, 0.02),
         Compression{
             .optimizer =
                 R"({"type": "OneBitLamb", "params": {"lr": 0.02, "betas": [0.9, 0.95], "weight_decay": 0.1, "min_coeff": 0.02, "max_coeff": 3, "freeze_step": 40}})"}}) {
      torch::manual_seed(7);
      SmallRun run(world, one.config());
      double last = 0;
      for (int step = 0; step < 200; ++step) {
        const double loss = run.engine().train_batch().item<double>();
        last += step >= 196 ? loss / 4 : 0;
      }
      ends.push_back(last);
    }
    EXPECT_LT(ends[0], 1.3);
    EXPECT_NEAR(ends[1], ends[0], 0.25);
  });
}

TEST(OneBitLambPipelineTest, TwoStagesWithTwoReplicasLearnAsOneStageDoes) {
  on_ranks(4, [](comm::World& world) {
    Compression one_bit = lamb("OneBitLamb", 10);
    one_bit.accumulation = 4;
    one_bit.clipping = 1;
    const std::vector<double> staged = pipeline_losses(world, 2, one_bit.config(), 30),
                              whole = pipeline_losses(world, 1, one_bit.config(), 30);
    for (size_t step = 0; step < staged.size(); ++step) {
      EXPECT_NEAR(staged[step], whole[step], step < 10 ? 1e-4 : 0.35) << "step " << step;
    }
    EXPECT_LT(staged.back(), staged[10]);
  });
}

TEST(OneBitLambErrorTest, WhatDoesNotGoTogetherIsRefusedByName) {
  comm::World world = comm::World::connect();
  const auto error = [&](const std::function<void(config::EngineConfig&)>& change) {
    config::EngineConfig config = lamb("OneBitLamb", 5).config();
    change(config);
    return test::error_of([&] { SmallRun(world, config); });
  };
  EXPECT_THAT(error([](auto& config) { config.zero.stage = 3; }), HasSubstr("OneBitLamb with ZeRO stage 3"));
  EXPECT_THAT(error([](auto& config) { config.step_in_backward = true; }),
              HasSubstr("step_in_backward with OneBitLamb"));
  EXPECT_THAT(error([](auto& config) { config.averaging.every = 2; }),
              HasSubstr("parameter_averaging with OneBitLamb"));
  EXPECT_THAT(error([](auto& config) { std::get<optim::OneBitLambOptions>(config.optimizer->rule).freeze_step = 0; }),
              HasSubstr("freeze_step is 0"));
  EXPECT_THAT(error([](auto& config) { std::get<optim::OneBitLambOptions>(config.optimizer->rule).factor_min = 2; }),
              HasSubstr("factor_min 2"));
}

} // namespace
} // namespace trireme::engine
