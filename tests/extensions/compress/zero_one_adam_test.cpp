// 0/1 Adam: when the second moment moves, what a step of each kind does, and that replicas meet as one model.
#include "compressed_run.h"

#include <trireme/base/error.h>
#include <trireme/extensions/compress/intervals.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <cmath>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

constexpr double kZeroOneLr = 0.01, kZeroOneDecay = 0.1;

struct When {
  int64_t freeze = 100000, update_scaler = 16, local_scaler = 32678, clipper = 16;
};

Compression zero_one(const When& when) {
  return {.optimizer = concat(
              R"({"type": "ZeroOneAdam", "params": {"lr": )", kZeroOneLr, R"(, "betas": [0.9, 0.95], "weight_decay": )",
              kZeroOneDecay, R"(, "var_freeze_step": )", when.freeze, R"(, "var_update_scaler": )", when.update_scaler,
              R"(, "local_step_scaler": )", when.local_scaler, R"(, "local_step_clipper": )", when.clipper, "}}")};
}

/// Every kind of step: moves in 1, 2, 4; gradients in 3; meetings after 5, 6, 8, 9, 12, 15 and so on.
constexpr When kAllKinds = {.freeze = 4, .update_scaler = 2, .local_scaler = 2, .clipper = 3};

// The loop of the reference implementation.
TEST(IntervalsTest, AreTheReferences) {
  optim::ZeroOneAdamOptions options;
  options.var_freeze_step = 300;
  options.local_step_scaler = 20;
  options.local_step_clipper = 6;
  compress::Intervals intervals(options);
  int64_t interval = 1, counter = 0, local_interval = 1, local_counter = 0, moves = 0;
  for (int64_t step = 1; step <= 300; ++step) {
    const bool moves_now = step % interval == 0;
    ASSERT_EQ(intervals.moves_in(step), moves_now) << step;
    if (moves_now) {
      ++moves;
      intervals.moved();
      if (++counter == 16) {
        counter = 0;
        interval *= 2;
      }
    }
  }
  EXPECT_EQ(intervals.moves(), moves);
  EXPECT_EQ(intervals.interval(), 16);
  compress::Intervals resumed(options);
  resumed.load_state(intervals.state(), 0);
  EXPECT_EQ(resumed.state(), intervals.state());
  std::vector<int64_t> meetings;
  for (int64_t step = 301; step <= 500; ++step) {
    EXPECT_FALSE(intervals.moves_in(step));
    ASSERT_EQ(options.local_interval(step), local_interval) << step;
    ASSERT_EQ(intervals.meet_in(step), step % local_interval == 0) << step;
    if (step % local_interval == 0) {
      meetings.push_back(step);
    }
    if (++local_counter == 20) {
      local_counter = 0;
      local_interval = std::min<int64_t>(6, 2 * local_interval);
    }
  }
  EXPECT_EQ(local_interval, 6);
  EXPECT_EQ(intervals.next_meeting(302), 302);
  EXPECT_EQ(intervals.next_meeting(497), 498);
}

class ZeroOneAdamTest : public testing::TestWithParam<int> {
 protected:
  ZeroOneAdamTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_zero_one_", ::getpid())) {}
  ~ZeroOneAdamTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_P(ZeroOneAdamTest, WhereEveryStepMovesTheSecondMomentItIsAdamBitForBit) {
  on_ranks(GetParam(), [](comm::World& world) {
    for (const int stage : {0, 1}) {
      Compression plain, ours = zero_one({.update_scaler = 100, .clipper = 1});
      for (Compression* const one : {&plain, &ours}) {
        one->accumulation = 2;
        one->clipping = 1;
        one->zero_stage = stage;
      }
      EXPECT_TRUE(end_of(world, plain.config(), 6).equal(end_of(world, ours.config(), 6))) << "ZeRO stage " << stage;
    }
  });
}

std::string tag(int64_t step) {
  return concat("step", step);
}

at::Tensor denominator(const at::Tensor& second, int64_t moves) {
  return (second / (1 - std::pow(0.95, moves))).sqrt() + 1e-8;
}

// Gradients of one bit move the first moment, all ranks' gradients both; errors follow the second moment's units.
void expect_first_phase(comm::World& world, const fs::path& folder, int zero_stage) {
  constexpr int64_t kSteps = 10;
  Compression ours = zero_one({.update_scaler = 1, .clipper = 1}); // moves in 1, 2, 4, 8
  ours.zero_stage = zero_stage;
  torch::manual_seed(7);
  SmallRun run(world, ours.config());
  run.engine().save_checkpoint(folder, tag(0));
  for (int64_t step = 1; step <= kSteps; ++step) {
    run.engine().train_batch();
    expect_equal_on(world.group(), *run.model, "after a step");
    run.engine().save_checkpoint(folder, tag(step));
  }
  world.group().barrier().wait();
  if (world.rank() != 0) {
    return;
  }
  int64_t moves = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto before = checkpoint::Checkpoint::open(folder, tag(step - 1)),
               after = checkpoint::Checkpoint::open(folder, tag(step));
    const Tensors x = read_all(before, *run.model), y = read_all(after, *run.model),
                  first_before = read_all(before, *run.model, "exp_avg"),
                  first = read_all(after, *run.model, "exp_avg"),
                  second_before = read_all(before, *run.model, "exp_avg_sq"),
                  second = read_all(after, *run.model, "exp_avg_sq");
    std::vector<Tensors> gradients;
    for (int rank = 0; rank < world.size(); ++rank) {
      gradients.push_back(gradients_at(x, step, rank, world.size()));
    }
    const auto of_rank = [&](const std::string& name, int rank) {
      return gradients[static_cast<size_t>(rank)].at(name);
    };
    const bool moves_now = step == 1 || step == 2 || step == 4 || step == 8;
    moves += moves_now ? 1 : 0;
    const Tensors units = units_of(second), units_before = units_of(second_before);
    const Tensors agreed =
        moves_now ? Tensors() : agreed_between(before, after, *run.model, world.size(), units, of_rank);
    for (const auto& [name, weight] : x) {
      at::Tensor gradient = torch::zeros_like(weight);
      if (moves_now) {
        for (int rank = 0; rank < world.size(); ++rank) {
          gradient += of_rank(name, rank) / world.size();
        }
        EXPECT_TRUE(
            torch::allclose(second.at(name), 0.95 * second_before.at(name) + 0.05 * gradient.square(), 1e-4, 1e-12))
            << name << ", step " << step;
        for (const char* state : {"worker_error_0/", "server_error/"}) {
          if (step > 3 && world.size() > 1) {
            const at::Tensor error = before.read(state + name);
            EXPECT_TRUE(
                torch::allclose(units.at(name) * after.read(state + name), units_before.at(name) * error, 1e-5, 0))
                << name << ", step " << step;
            EXPECT_TRUE(error.abs().sum().item<double>() > 0 || state[0] == 's')
                << name; // a mean of one magnitude leaves the server none
          }
        }
      } else {
        gradient = agreed.at(name);
        EXPECT_TRUE(second.at(name).equal(second_before.at(name))) << name;
      }
      EXPECT_TRUE(torch::allclose(first.at(name), 0.9 * first_before.at(name) + 0.1 * gradient, 1e-4, 1e-6))
          << name << ", step " << step << ": "
          << (first.at(name) - 0.9 * first_before.at(name) - 0.1 * gradient).abs().max().item<double>();
      const at::Tensor moved = weight * (1 - kZeroOneLr * kZeroOneDecay) - kZeroOneLr / (1 - std::pow(0.9, step)) *
                                                                               first.at(name) /
                                                                               denominator(second.at(name), moves);
      EXPECT_TRUE(torch::allclose(y.at(name), moved, 1e-5, 1e-6)) << name << ", step " << step;
    }
  }
}

TEST_P(ZeroOneAdamTest, EachStepUpToTheFreezeIsTheFormula) {
  on_ranks(GetParam(), [this](comm::World& world) {
    for (const int stage : {0, 1}) {
      expect_first_phase(world, folder_ / concat("stage", stage), stage);
    }
  });
}

// A round from one meeting to the next: each rank's steps by plain operators, from its own gradients.
void expect_round(const checkpoint::Checkpoint& before, const checkpoint::Checkpoint& after, torch::nn::Module& model,
                  int ranks, int64_t from, int64_t to) {
  constexpr int64_t kMoves = 3;
  const Tensors start = read_all(before, model), second = read_all(before, model, "exp_avg_sq"),
                end = read_all(after, model), momenta = read_all(after, model, "exp_avg");
  std::vector<Tensors> sums;
  double kept = 1, rates = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    Tensors x = start, first = read_all(before, model, "exp_avg"), sum;
    kept = 1, rates = 0;
    for (int64_t step = from + 1; step <= to; ++step) {
      const Tensors gradients = gradients_at(x, step, rank, ranks);
      const double lr = kZeroOneLr / (1 - std::pow(0.9, step)), decay = 1 - kZeroOneLr * kZeroOneDecay;
      kept *= decay;
      rates = rates * decay + lr;
      for (auto& [name, weight] : x) {
        const at::Tensor gradient = gradients.at(name).masked_fill(second.at(name).eq(0), 0);
        first[name] = 0.9 * first[name] + 0.1 * gradient;
        sum[name] = (sum[name].defined() ? sum[name] * decay : torch::zeros_like(weight)) + lr * first[name];
        weight = weight * decay - lr * first[name] / denominator(second.at(name), kMoves);
      }
    }
    sums.push_back(sum);
  }
  const Tensors agreed =
      agreed_between(before, after, model, ranks, units_of(second),
                     [&](const std::string& name, int rank) { return sums[static_cast<size_t>(rank)].at(name); });
  for (const auto& [name, weight] : start) {
    if (to - from > 1 && name.ends_with("c_attn.bias")) {
      continue; // the keys' have no gradient but rounding errors, which are others at parameters that differ in a last
                // bit
    }
    const at::Tensor wanted = kept * weight - agreed.at(name) / denominator(second.at(name), kMoves);
    EXPECT_TRUE(torch::allclose(end.at(name), wanted, 1e-5, to - from > 1 ? 5e-5 : 2e-6))
        << name << ", steps " << from << " to " << to << ": " << (end.at(name) - wanted).abs().max().item<double>();
    EXPECT_TRUE(torch::allclose(momenta.at(name), agreed.at(name) / rates, 1e-3, to - from > 1 ? 1e-4 : 1e-5))
        << name << ", steps " << from << " to " << to << ": "
        << (momenta.at(name) - agreed.at(name) / rates).abs().max().item<double>();
  }
}

TEST_F(ZeroOneAdamTest, RoundsOfStepsAloneAreTheFormula) {
  const fs::path folder = folder_;
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [folder](comm::World& world) {
      torch::manual_seed(7);
      Compression clipped = zero_one(kAllKinds);
      clipped.clipping = 1e6; // asks for norms, and changes nothing
      SmallRun run(world, clipped.config());
      const std::vector<int64_t> meetings = {4, 5, 6, 8, 9, 12};
      for (int64_t step = 1; step <= meetings.back(); ++step) {
        const int64_t sent = run.engine().bytes_sent();
        Tensors x;
        for (const auto& item : run.model->named_parameters()) {
          x[item.key()] = item.value().detach().clone();
        }
        run.engine().train_batch();
        if (step == 3 || step == 10) { // of all ranks' own gradients; alone, of this rank's
          double squares = 0;
          for (int rank = 0; rank < world.size(); ++rank) {
            for (const auto& [name, gradient] : gradients_at(x, step, rank, world.size())) {
              squares += step == 3              ? gradient.square().sum().item<double>() / world.size()
                         : rank == world.rank() ? gradient.square().sum().item<double>()
                                                : 0;
            }
          }
          EXPECT_NEAR(run.engine().get_global_grad_norm().value(), std::sqrt(squares), 1e-4 * std::sqrt(squares))
              << "step " << step;
        }
        if (step < 4) {
          continue;
        }
        if (std::find(meetings.begin(), meetings.end(), step) == meetings.end()) {
          EXPECT_EQ(run.engine().bytes_sent(), sent) << "step " << step; // nothing
          EXPECT_THAT(test::error_of([&] { run.engine().save_checkpoint(folder, tag(step)); }),
                      HasSubstr("between two averaging steps"));
          continue;
        }
        expect_equal_on(world.group(), *run.model, "at a meeting");
        run.engine().save_checkpoint(folder, tag(step));
      }
      world.group().barrier().wait();
      for (size_t i = 1; i < meetings.size() && world.rank() == 0; ++i) {
        expect_round(checkpoint::Checkpoint::open(folder, tag(meetings[i - 1])),
                     checkpoint::Checkpoint::open(folder, tag(meetings[i])), *run.model, world.size(), meetings[i - 1],
                     meetings[i]);
      }
    });
  }
}

TEST_P(ZeroOneAdamTest, ResumedIsUninterruptedBitForBit) {
  const fs::path folder = folder_;
  on_ranks(GetParam(), [folder](comm::World& world) {
    Compression ours = zero_one(kAllKinds);
    ours.accumulation = 2;
    ours.clipping = 1;
    for (const int save_after : {2, 3, 4, 6, 9}) {
      expect_resume_repeats(world, ours.config(), folder, save_after);
    }
    Compression first = zero_one({.update_scaler = 1, .clipper = 1});
    first.zero_stage = 1;
    for (const int save_after :
         {3, 4, 7}) { // behind a step with gradients, and behind one that has moved the units of its errors
      expect_resume_repeats(world, first.config(), folder, save_after);
    }
    Compression last = zero_one({.freeze = 4, .update_scaler = 2, .clipper = 1});
    last.zero_stage = 1;
    expect_resume_repeats(world, last.config(), folder, 6);
    ours.bf16 = true;
    expect_resume_repeats(world, ours.config(), folder, 9);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ZeroOneAdamTest, testing::Values(1, 2, 3));

TEST(ZeroOneAdamZeroTest, StageOneIsStageZeroBitForBit) {
  on_ranks(2, [](comm::World& world) {
    for (const bool bf16 : {false, true}) {
      std::vector<at::Tensor> ends;
      for (const int stage : {0, 1}) {
        Compression ours = zero_one({.freeze = 8, .update_scaler = 1, .clipper = 1});
        ours.zero_stage = stage;
        ours.accumulation = 2;
        ours.clipping = 1;
        ours.bf16 = bf16;
        ends.push_back(end_of(world, ours.config(), 12));
      }
      EXPECT_TRUE(ends[0].equal(ends[1])) << "bf16 " << bf16;
    }
  });
}

TEST(ZeroOneAdamCurveTest, LearnsAsAdamDoes) {
  on_ranks(2, [](comm::World& world) {
    for (const bool bf16 : {false, true}) {
      std::vector<double> ends;
      for (Compression one : {Compression(), zero_one({.update_scaler = 8}),
                              zero_one({.freeze = 100, .update_scaler = 8, .local_scaler = 20, .clipper = 4})}) {
        one.bf16 = bf16;
        one.clipping = 1;
        config::EngineConfig config = one.config();
        std::visit([](auto& rule) { rule.lr = 0.003; }, config.optimizer->rule);
        torch::manual_seed(7);
        SmallRun run(world, config);
        double last = 0;
        for (int step = 0; step < 200; ++step) {
          const double loss = run.engine().train_batch().item<double>();
          last += step >= 196 ? loss / 4 : 0;
        }
        ends.push_back(last);
      }
      EXPECT_LT(ends[0], 1.3);
      EXPECT_NEAR(ends[1], ends[0], 0.15) << "bf16 " << bf16;
      EXPECT_NEAR(ends[2], ends[0], 0.2) << "bf16 " << bf16;
    }
  });
}

TEST(ZeroOneAdamPipelineTest, TwoStagesWithTwoReplicasLearnAsOneStageDoes) {
  on_ranks(4, [](comm::World& world) {
    Compression ours = zero_one({.freeze = 20, .update_scaler = 4, .local_scaler = 5, .clipper = 2});
    ours.accumulation = 4;
    ours.clipping = 1;
    const std::vector<double> staged = pipeline_losses(world, 2, ours.config(), 40),
                              whole = pipeline_losses(world, 1, ours.config(), 40);
    for (size_t step = 0; step < staged.size(); ++step) {
      EXPECT_NEAR(staged[step], whole[step], step < 4 ? 1e-4 : 0.35) << "step " << step;
    }
    EXPECT_LT(staged.back(), staged[10]);
  });
}

/// Two weights; the target says whether the second is used.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    a = register_parameter("a", torch::linspace(-1, 1, 40));
    b = register_parameter("b", torch::linspace(-1, 1, 40));
  }
  at::Tensor loss(const data::Batch& batch) {
    const at::Tensor sum = (a * batch.input()).square().sum();
    const double uses_b = batch.target().item<double>();
    return uses_b != 0 ? sum + (b * batch.input()).square().sum() * uses_b : sum;
  }
  at::Tensor a, b;
};
TORCH_MODULE(Pair);

// In a round one rank skips a step, for a NaN, and one does not use b: they meet as one model, of finite numbers.
// Elements 0 to 9 have no gradient while the second moment moves, and keep their values.
TEST(ZeroOneAdamSkipTest, RanksThatSkipAStepOrAParameterMeetAsOneModel) {
  on_ranks(2, [](comm::World& world) {
    Pair model;
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch); };
    Compression ours = zero_one(kAllKinds);
    ours.global_batch = 2;
    options.config = ours.config();
    std::visit([](auto& rule) { rule.weight_decay = 0; }, options.config.optimizer->rule);
    const Initialized made = initialize(world, options);
    at::Tensor first;
    for (int step = 1; step <= 12; ++step) {
      at::Tensor input = torch::linspace(0.5, 1, 40) + world.rank();
      if (step <= 4) {
        input.slice(0, 0, 10).zero_();
      }
      if (step == 5) {
        first = model->a.detach().clone();
      }
      const double uses_b = step == 10 && world.rank() == 1 ? std::nan("") : step > 8 && world.rank() == 0 ? 0 : 1;
      made.engine->train_batch([&] { return data::Batch{{input}, {torch::tensor(uses_b)}, 1}; });
      if (step >= 5) { // also between meetings
        EXPECT_TRUE(model->a.slice(0, 0, 10).equal(first.slice(0, 0, 10))) << "step " << step;
      }
    }
    EXPECT_EQ(made.engine->skipped_steps(), world.rank() == 1 ? 1 : 0);
    expect_equal_on(world.group(), *model, "at the meeting");
    EXPECT_TRUE(model->a.isfinite().all().item<bool>() && model->b.isfinite().all().item<bool>());
    EXPECT_TRUE(model->a.slice(0, 0, 10).equal(first.slice(0, 0, 10)));
    EXPECT_TRUE(model->a.slice(0, 10).ne(first.slice(0, 10)).all().item<bool>());
  });
}

TEST(ZeroOneAdamErrorTest, WhatDoesNotGoTogetherIsRefusedByName) {
  on_ranks(2, [](comm::World& world) {
    const auto error = [&](const std::function<void(config::EngineConfig&)>& change) {
      config::EngineConfig config = zero_one(kAllKinds).config();
      change(config);
      return test::error_of([&] { SmallRun(world, config); });
    };
    EXPECT_THAT(error([](auto& config) { config.zero.stage = 1; }),
                testing::AllOf(HasSubstr("ZeroOneAdam with ZeRO stage 1"), HasSubstr("\"local_step_clipper\": 1")));
    EXPECT_THAT(error([](auto& config) { config.zero.stage = 2; }), HasSubstr("ZeroOneAdam with ZeRO stage 2"));
    EXPECT_THAT(error([](auto& config) { config.data_parallel.sync_batch_norm = true; }),
                HasSubstr("ZeroOneAdam with sync_batch_norm"));
    EXPECT_THAT(error([](auto& config) { config.averaging.every = 2; }),
                HasSubstr("parameter_averaging with ZeroOneAdam"));
    EXPECT_THAT(error([](auto& config) { config.step_in_backward = true; }),
                HasSubstr("step_in_backward with ZeroOneAdam"));
    EXPECT_THAT(
        error([](auto& config) { std::get<optim::ZeroOneAdamOptions>(config.optimizer->rule).local_step_scaler = 0; }),
        HasSubstr("local_step_scaler is 0"));
  });
}

} // namespace
} // namespace trireme::engine
