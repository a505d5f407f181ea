// 1-bit Adam is Adam until the warm-up ends; afterwards a step is its formula.
#include "one_bit_run.h"

#include <trireme/base/error.h>
#include <trireme/base/log.h>

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
using testing::IsEmpty;

/// Ranks and ZeRO stage.
class OneBitAdamTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  static int ranks() { return std::get<0>(GetParam()); }
  static int stage() { return std::get<1>(GetParam()); }
};

TEST_P(OneBitAdamTest, TheWarmUpIsAdamBitForBit) {
  on_ranks(ranks(), [](comm::World& world) {
    for (const int64_t accumulation : {1, 2}) {
      config::EngineConfig config = small_config(48, accumulation);
      config.zero.stage = stage();
      torch::manual_seed(7);
      SmallRun adam(world, config);
      torch::manual_seed(7);
      SmallRun one_bit(world, one_bit_config(100, accumulation, 1.0, 48, stage()));
      for (int step = 0; step < 6; ++step) {
        EXPECT_EQ(one_bit.engine().train_batch().item<double>(), adam.engine().train_batch().item<double>())
            << "step " << step;
      }
      const auto ours = states_of(one_bit), theirs = states_of(adam);
      ASSERT_EQ(ours.size(), theirs.size());
      for (const auto& [name, values] : theirs) {
        EXPECT_TRUE(ours.at(name).equal(values)) << name;
      }
    }
  });
}

/// The samples of step `number` that one rank of the data axis has.
data::Batch batch_of(int64_t number, int rank, int ranks) {
  std::vector<int64_t> indices;
  for (int64_t i = rank; i < 48; i += ranks) {
    indices.push_back(((number - 1) * 48 + i) % 192);
  }
  return Counting().get(indices);
}

/// What a checkpoint has of a parameter, or zeros.
at::Tensor saved(const checkpoint::Checkpoint& from, const std::string& state, const std::string& parameter) {
  const std::string name = concat(state, '/', parameter);
  return from.has(name) ? from.read(name) : torch::zeros(from.entry(parameter).shape);
}

/// The powers of two at or below the roots of second moments.
at::Tensor powers(const at::Tensor& second) {
  return std::get<1>(torch::frexp(second.sqrt() + 1e-8)).sub(1).to(torch::kFloat64).exp2().to(torch::kFloat32);
}

// Step 6 from two checkpoints: what the ranks agreed on is the mean of their moments with their errors, less the errors
// after it; the second moment stays; the parameters follow. The gradients come from libtorch alone.
void expect_formula(comm::World& world, const fs::path& folder, double clipping, int zero_stage) {
  constexpr int64_t kFreeze = 3, kStep = 6;
  torch::manual_seed(7);
  SmallRun run(world, one_bit_config(kFreeze, 2, clipping, 48, zero_stage));
  for (int64_t step = 1; step <= kStep; ++step) {
    run.engine().train_batch();
    expect_equal_on(world.group(), *run.model, "after a step");
    if (step >= kStep - 1) {
      run.engine().save_checkpoint(folder, concat("step", step));
    }
  }
  const double reported = run.engine().get_global_grad_norm().value();
  world.group().barrier().wait();
  if (world.rank() != 0) {
    return;
  }
  const auto before = checkpoint::Checkpoint::open(folder, concat("step", kStep - 1));
  const auto after = checkpoint::Checkpoint::open(folder, concat("step", kStep));
  // The gradients of each rank.
  std::vector<std::map<std::string, at::Tensor>> gradients;
  double squares = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    models::Gpt model(small_gpt());
    {
      const torch::NoGradGuard no_grad;
      for (const auto& item : model->named_parameters()) {
        item.value().copy_(before.read(item.key()));
      }
    }
    const data::Batch batch = batch_of(kStep, rank, world.size());
    model->loss(batch.input(), batch.target()).backward();
    auto& own = gradients.emplace_back();
    for (const auto& item : model->named_parameters()) {
      own[item.key()] = item.value().grad().clone();
      squares += own[item.key()].square().sum().item<double>() / world.size();
    }
  }
  EXPECT_NEAR(reported, std::sqrt(squares), 1e-5 * reported);
  const double factor = clipping > 0 ? std::min(1.0, clipping / (std::sqrt(squares) + 1e-6)) : 1;
  EXPECT_EQ(factor < 1, clipping > 0);
  for (const auto& item : run.model->named_parameters()) {
    const std::string& name = item.key();
    const at::Tensor old = before.read("exp_avg/" + name), agreed = after.read("exp_avg/" + name),
                     second = before.read("exp_avg_sq/" + name);
    const at::Tensor unit = powers(second); // of the errors
    at::Tensor wanted = unit * (saved(before, "server_error", name) - saved(after, "server_error", name));
    for (int rank = 0; rank < world.size(); ++rank) {
      const std::string error = concat("worker_error_", rank);
      wanted += (kBeta1 * old + (1 - kBeta1) * factor * gradients[static_cast<size_t>(rank)][name] +
                 unit * (saved(before, error, name) - saved(after, error, name))) /
                world.size();
    }
    EXPECT_TRUE(torch::allclose(agreed, wanted, 1e-4, 1e-6))
        << name << ": " << (agreed - wanted).abs().max().item<double>();
    EXPECT_TRUE(after.read("exp_avg_sq/" + name).equal(second)) << name;
    const double correction1 = 1 - std::pow(kBeta1, kStep), correction2 = 1 - std::pow(kBeta2, kFreeze);
    const at::Tensor moved =
        before.read(name) * (1 - 0.01 * kDecay) - 0.01 / correction1 * agreed / ((second / correction2).sqrt() + 1e-8);
    EXPECT_TRUE(torch::allclose(after.read(name), moved, 1e-5, 1e-6)) << name;
    EXPECT_EQ(saved(after, "worker_error_0", name).abs().max().item<double>() > 0, world.size() > 1) << name;
    if (world.size() > 1) { // a compressed moment has as many magnitudes as scales
      EXPECT_LT(std::get<0>(at::_unique((agreed / unit).abs())).numel(), 8) << name;
    }
  }
}

TEST_P(OneBitAdamTest, AfterItAStepIsTheFormula) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_one_bit_", ::getpid());
  for (const double clipping : {0.0, 0.05}) {
    EXPECT_THAT(run_ranks(ranks(), [&](comm::World& world) { expect_formula(world, folder, clipping, stage()); }),
                IsEmpty())
        << "clipping " << clipping;
    fs::remove_all(folder);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneBitAdamTest, testing::Combine(testing::Values(1, 2, 3), testing::Values(0, 1)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), "RanksStage", std::get<1>(info.param));
                         });

TEST(OneBitAdamZeroTest, StageOneIsStageZeroBitForBit) {
  for (const int ranks : {2, 3}) {
    EXPECT_THAT(run_ranks(ranks,
                          [](comm::World& world) {
                            for (const bool bf16 : {false, true}) {
                              std::vector<at::Tensor> ends;
                              for (const int stage : {0, 1}) {
                                config::EngineConfig config = one_bit_config(4, 2, 1.0, 48, stage);
                                if (bf16) {
                                  config.precision.compute = precision::Type::bf16;
                                }
                                torch::manual_seed(7);
                                SmallRun run(world, config);
                                for (int step = 0; step < 10; ++step) {
                                  run.engine().train_batch();
                                }
                                ends.push_back(fingerprint(*run.model));
                              }
                              EXPECT_TRUE(ends[0].equal(ends[1])) << "bf16 " << bf16;
                            }
                          }),
                IsEmpty())
        << ranks << " ranks";
  }
}

/// Losses of so many steps, and the largest magnitude of each parameter then.
struct Trained {
  double last = 0; // mean of four
  std::map<std::string, double> sizes;
};

Trained trained(comm::World& world, config::EngineConfig config, bool bf16) {
  std::visit([](auto& rule) { rule.lr = 0.003; }, config.optimizer->rule);
  if (bf16) {
    config.precision.compute = precision::Type::bf16;
  }
  torch::manual_seed(7);
  SmallRun run(world, config);
  Trained result;
  for (int step = 0; step < 200; ++step) {
    const double loss = run.engine().train_batch().item<double>();
    result.last += step >= 196 ? loss / 4 : 0;
  }
  for (const auto& item : run.model->named_parameters()) {
    result.sizes[item.key()] = item.value().abs().max().item<double>();
  }
  return result;
}

// Biases of keys have no gradient but rounding errors: what travels is in units of their second moments' roots, or they
// would step a thousand times too far.
TEST(OneBitAdamCurveTest, LearnsAsAdamDoesInFp32AndInBf16) {
  on_ranks(2, [](comm::World& world) {
    for (const bool bf16 : {false, true}) {
      const Trained exact = trained(world, small_config(48, 1), bf16),
                    compressed = trained(world, one_bit_config(40, 1, 1.0), bf16);
      EXPECT_LT(exact.last, 1.3);
      EXPECT_NEAR(compressed.last, exact.last, 0.15) << "bf16 " << bf16;
      for (const auto& [name, size] : compressed.sizes) {
        EXPECT_LT(size, exact.sizes.at(name) + 3) << name << ", bf16 " << bf16;
      }
    }
  });
}

TEST(OneBitAdamCurveTest, AutoEndsTheWarmUpWhenTheSecondMomentsHaveSettled) {
  on_ranks(2, [](comm::World& world) {
    std::vector<std::string> lines;
    log::set_sink([&](const std::string& line) { lines.push_back(line); });
    torch::manual_seed(7);
    config::EngineConfig config = one_bit_config(std::nullopt);
    std::get<optim::OneBitAdamOptions>(config.optimizer->rule).lr = 1e-6; // gradients stay as they are
    SmallRun run(world, config);
    double last = 0;
    int64_t frozen = 0;
    std::map<std::string, at::Tensor> kept;
    for (int64_t step = 1; step <= 160; ++step) {
      run.engine().train_batch();
      const auto states = states_of(run);
      if (frozen != 0) {
        for (const auto& [name, values] : kept) {
          ASSERT_TRUE(states.at(name).equal(values)) << name << ", step " << step;
        }
        if (step == frozen + 2) {
          break;
        }
      } else if (step % 20 == 0) { // 1 / (1 - beta2)
        double norm = 0;
        for (const auto& [name, values] : states) {
          norm += name.starts_with("exp_avg_sq/") ? values.sum(torch::kFloat64).item<double>() : 0;
        }
        if (std::min(norm, last) >= 0.96 * std::max(norm, last)) {
          frozen = step;
          for (const auto& [name, values] : states) {
            if (name.starts_with("exp_avg_sq/")) {
              kept[name] = values;
            }
          }
        }
        last = norm;
      }
    }
    log::set_sink(nullptr);
    EXPECT_EQ(frozen, 80); // (1 - beta2^60) / (1 - beta2^80) is the first such ratio above 0.96
    if (world.rank() == 0) {
      EXPECT_THAT(lines,
                  testing::Contains(HasSubstr(concat("the second moments are frozen after step ", frozen, ';'))));
    }
  });
}

/// 460 thousand parameters: large enough that scales and short parameters do not count.
struct WideRun {
  models::Gpt model{[] {
    models::GptOptions options = small_gpt();
    options.hidden = 128;
    options.vocab_size = 512;
    return options;
  }()};
  Initialized made;

  WideRun(comm::World& world, const config::EngineConfig& config) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [gpt = model](const data::Batch& batch) mutable { return gpt->loss(batch.input(), batch.target()); };
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    made = initialize(world, options);
  }
  /// Bytes that this rank sends in so many steps.
  int64_t bytes(int steps) {
    const int64_t before = made.engine->bytes_sent();
    for (int step = 0; step < steps; ++step) {
      made.engine->train_batch();
    }
    return made.engine->bytes_sent() - before;
  }
};

TEST(OneBitAdamBytesTest, FiveTimesFewerInARunWithFifteenPercentOfWarmUp) {
  on_ranks(2, [](comm::World& world) {
    std::vector<std::string> lines;
    log::set_sink([&](const std::string& line) { lines.push_back(line); });
    config::EngineConfig plain = small_config(4, 1), one_bit = one_bit_config(3, 1, 1.0, 4);
    plain.data_parallel = one_bit.data_parallel = parallel::DataParallelOptions();
    const auto whole = static_cast<double>(WideRun(world, plain).bytes(20));
    WideRun run(world, one_bit);
    const auto warm_up = static_cast<double>(run.bytes(3)), after = static_cast<double>(run.bytes(17));
    log::set_sink(nullptr);
    EXPECT_NEAR(warm_up, whole * 3 / 20, 200);
    EXPECT_GT(whole / (warm_up + after), 5);
    EXPECT_GT(whole * 17 / 20 / after, 30.5);
    const auto told = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("bytes, compressed, in step 4 where gradients take") != std::string::npos;
    });
    EXPECT_EQ(told, world.rank() == 0 ? 1 : 0);
  });
}

TEST(OneBitAdamErrorTest, WhatDoesNotGoTogetherIsRefusedByName) {
  comm::World world = comm::World::connect();
  const auto error = [&](const std::function<void(config::EngineConfig&)>& change) {
    config::EngineConfig config = one_bit_config(5);
    change(config);
    return test::error_of([&] { SmallRun(world, config); });
  };
  EXPECT_THAT(error([](auto& config) { config.zero.stage = 2; }), HasSubstr("OneBitAdam with ZeRO stage 2"));
  EXPECT_THAT(error([](auto& config) { config.zero.stage = 1, config.zero.shard_size = 2; }),
              HasSubstr("OneBitAdam with zero_optimization.mics_shard_size"));
  EXPECT_THAT(error([](auto& config) { config.step_in_backward = true; }),
              HasSubstr("step_in_backward with OneBitAdam"));
  EXPECT_THAT(error([](auto& config) { config.optimizer->state_type = optim::StateType::bf16; }),
              HasSubstr("OneBitAdam with moments in bf16"));
  EXPECT_THAT(error([](auto& config) { std::get<optim::OneBitAdamOptions>(config.optimizer->rule).freeze_step = 0; }),
              HasSubstr("freeze_step is 0"));
}

} // namespace
} // namespace trireme::engine
