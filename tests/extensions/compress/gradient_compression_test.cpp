// Gradients whose mean is compressed, for any optimizer.
#include "compressed_run.h"

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

constexpr const char* kPlainSgd = R"({"type": "SGD", "params": {"lr": 0.1}})";
constexpr const char* kMomentum = R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})";
constexpr const char* kLambByName = R"({"type": "Lamb", "params": {"lr": 0.01, "betas": [0.9, 0.95]}})";

std::vector<std::string> kinds() {
  return {R"({"kind": "sign"})", R"({"kind": "eight_bit"})", R"({"kind": "top_k", "ratio": 0.1})",
          R"({"kind": "power_sgd", "rank": 2})"};
}

class GradientCompressionTest : public testing::TestWithParam<int> {
 protected:
  GradientCompressionTest()
      : folder_(fs::path(testing::TempDir()) / concat("trireme_gradient_compression_", ::getpid())) {}
  ~GradientCompressionTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// SGD's step shows the gradient: the mean of the ranks' with their errors, less the errors after it, times one factor
// of clipping.
void expect_sgd_formula(comm::World& world, const fs::path& folder, const Compression& run_of, double clipping) {
  constexpr int64_t kStep = 4;
  Compression compression = run_of;
  compression.clipping = clipping;
  torch::manual_seed(7);
  SmallRun run(world, compression.config());
  for (int64_t step = 1; step <= kStep; ++step) {
    run.engine().train_batch();
    expect_equal_on(world.group(), *run.model, "after a step");
    if (step >= kStep - 1) {
      run.engine().save_checkpoint(folder, concat("step", step));
    }
  }
  world.group().barrier().wait();
  if (world.rank() != 0) {
    return;
  }
  const auto before = checkpoint::Checkpoint::open(folder, concat("step", kStep - 1)),
             after = checkpoint::Checkpoint::open(folder, concat("step", kStep));
  const Tensors x = read_all(before, *run.model), y = read_all(after, *run.model);
  std::vector<Tensors> gradients;
  double squares = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    gradients.push_back(gradients_at(x, kStep, rank, world.size()));
    for (const auto& [name, gradient] : gradients.back()) {
      squares += gradient.square().sum().item<double>() / world.size();
    }
  }
  const double factor = clipping > 0 ? std::min(1.0, clipping / (std::sqrt(squares) + 1e-6)) : 1;
  EXPECT_EQ(factor < 1, clipping > 0);
  const Tensors agreed = agreed_between(
      before, after, *run.model, world.size(), {},
      [&](const std::string& name, int rank) { return factor * gradients[static_cast<size_t>(rank)].at(name); });
  double errors = 0;
  for (const auto& [name, weight] : x) {
    EXPECT_TRUE(torch::allclose(y.at(name), weight - 0.1 * agreed.at(name), 1e-5, 1e-6))
        << name << ": " << (y.at(name) - weight + 0.1 * agreed.at(name)).abs().max().item<double>();
    errors += after.has("worker_error_0/" + name) ? after.read("worker_error_0/" + name).abs().sum().item<double>() : 0;
  }
  EXPECT_EQ(errors > 0, world.size() > 1);
}

TEST_P(GradientCompressionTest, AStepIsTheFormula) {
  on_ranks(GetParam(), [this](comm::World& world) {
    int number = 0;
    for (const std::string& kind : kinds()) {
      for (const int stage : {0, 1}) {
        SCOPED_TRACE(concat(kind, ", ZeRO stage ", stage));
        expect_sgd_formula(world, folder_ / std::to_string(number++),
                           {.optimizer = kPlainSgd, .gradients = kind, .accumulation = 2, .zero_stage = stage},
                           stage == 0 ? 0.0 : 0.05);
      }
    }
  });
}

// Where nothing is left out, it is plain data parallelism up to the rounding of sums.
TEST_P(GradientCompressionTest, WhatArrivesExactlyTrainsAsPlainGradientsDo) {
  on_ranks(GetParam(), [](comm::World& world) {
    for (const std::string& optimizer : {Compression().optimizer, std::string(kLambByName)}) {
      for (const char* kind : {R"({"kind": "top_k", "ratio": 1})", R"({"kind": "power_sgd", "rank": 16})"}) {
        std::vector<Tensors> ends;
        for (const std::string& gradients : {std::string(), std::string(kind)}) {
          torch::manual_seed(7);
          SmallRun run(world, Compression{.optimizer = optimizer, .gradients = gradients, .accumulation = 2}.config());
          for (int step = 0; step < 6; ++step) {
            run.engine().train_batch();
          }
          ends.push_back(states_of(run));
        }
        for (const auto& [name, values] : ends[0]) {
          if (!name.ends_with("c_attn.bias")) { // the keys' have no gradient but rounding errors, which Adam
                                                // divides by themselves
            EXPECT_TRUE(torch::allclose(ends[1].at(name), values, 1e-3, 1e-5))
                << kind << ", " << name << ": " << (ends[1].at(name) - values).abs().max().item<double>();
          }
        }
      }
    }
  });
}

TEST_P(GradientCompressionTest, ResumedIsUninterruptedBitForBitAndStageOneIsStageZero) {
  const fs::path folder = folder_;
  on_ranks(GetParam(), [folder](comm::World& world) {
    for (const std::string& kind : kinds()) {
      SCOPED_TRACE(kind);
      std::vector<at::Tensor> ends;
      for (const int stage : {0, 1}) {
        Compression one{.gradients = kind, .accumulation = 2, .clipping = 1, .zero_stage = stage, .bf16 = stage == 1};
        expect_resume_repeats(world, one.config(), folder, 4, 3);
        one.bf16 = false;
        ends.push_back(end_of(world, one.config(), 5));
      }
      EXPECT_TRUE(ends[0].equal(ends[1]));
    }
    expect_resume_repeats(world, Compression{.optimizer = kLambByName, .gradients = kinds()[3]}.config(), folder, 3, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientCompressionTest, testing::Values(1, 2, 3));

TEST(GradientCompressionStartTest, UpToTheStartStepItIsPlainBitForBit) {
  on_ranks(2, [](comm::World& world) {
    const config::EngineConfig plain = Compression{.accumulation = 2, .clipping = 1}.config();
    const config::EngineConfig late =
        Compression{.gradients = R"({"kind": "sign", "start_step": 5})", .accumulation = 2, .clipping = 1}.config();
    EXPECT_TRUE(end_of(world, late, 5).equal(end_of(world, plain, 5)));
    EXPECT_FALSE(end_of(world, late, 6).equal(end_of(world, plain, 6)));
  });
}

TEST(GradientCompressionBytesTest, MessagesAreAsShortAsTheyShouldBe) {
  on_ranks(2, [](comm::World& world) {
    const auto bytes = [&](const std::string& kind) {
      torch::manual_seed(7);
      models::GptOptions shape = small_gpt();
      shape.hidden = 128;
      shape.vocab_size = 512;
      models::Gpt model(shape);
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
      options.config = Compression{.gradients = kind, .global_batch = 4}.config();
      options.config.data_parallel = parallel::DataParallelOptions();
      options.training_data = std::make_shared<Counting>();
      const Initialized made = initialize(world, options);
      const int64_t before = made.engine->bytes_sent();
      made.engine->train_batch();
      return static_cast<double>(made.engine->bytes_sent() - before);
    };
    const double plain = bytes("");
    EXPECT_GT(plain / bytes(R"({"kind": "sign"})"), 30);
    EXPECT_GT(plain / bytes(R"({"kind": "eight_bit"})"), 3.9);
    EXPECT_GT(plain / bytes(R"({"kind": "top_k", "ratio": 0.01})"), 60);
    EXPECT_GT(plain / bytes(R"({"kind": "power_sgd", "rank": 1})"), 40);
  });
}

TEST(GradientCompressionCurveTest, LearnsAsPlainGradientsDo) {
  on_ranks(2, [](comm::World& world) {
    const auto end = [&](const std::string& gradients, bool fp16) {
      config::EngineConfig config = Compression{.optimizer = kMomentum, .gradients = gradients, .clipping = 1}.config();
      if (fp16) {
        config.precision.compute = precision::Type::fp16;
        config.precision.loss_scale.initial_scale_power = 10;
      }
      torch::manual_seed(7);
      SmallRun run(world, config);
      double last = 0;
      for (int step = 0; step < 200; ++step) {
        const double loss = run.engine().train_batch().item<double>();
        last += step >= 196 ? loss / 4 : 0;
      }
      return last;
    };
    const double plain = end("", false);
    EXPECT_LT(plain, 1.5); // from 3.5
    EXPECT_LT(end(kinds()[0], false), 2.3);
    EXPECT_NEAR(end(kinds()[1], false), plain, 0.05);
    EXPECT_LT(end(kinds()[2], false), 2.3);
    EXPECT_NEAR(end(kinds()[3], false), plain, 0.3);
    EXPECT_NEAR(end(kinds()[3], true), plain, 0.3);
  });
}

TEST(GradientCompressionPipelineTest, TwoStagesWithTwoReplicasLearnAsOneStageDoes) {
  on_ranks(4, [](comm::World& world) {
    const config::EngineConfig config = Compression{.gradients = kinds()[1], .accumulation = 4, .clipping = 1}.config();
    const std::vector<double> staged = pipeline_losses(world, 2, config, 20),
                              whole = pipeline_losses(world, 1, config, 20);
    for (size_t step = 0; step < staged.size(); ++step) {
      EXPECT_NEAR(staged[step], whole[step], 0.1) << "step " << step;
    }
    EXPECT_LT(staged.back(), staged.front());
  });
}

/// Two weights; the target says whether the second is used, and NaN that its gradient is none.
struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    a = register_parameter("a", torch::linspace(-1, 1, 400).view({20, 20}));
    b = register_parameter("b", torch::linspace(-1, 1, 400).view({20, 20}));
  }
  at::Tensor loss(const data::Batch& batch) {
    const at::Tensor sum = (a * batch.input()).square().sum();
    const double of_b = batch.target().item<double>();
    return of_b != 0 ? sum + (b * batch.input() * of_b).square().sum() : sum;
  }
  at::Tensor a, b;
};
TORCH_MODULE(Two);

// A gradient that is not finite on one rank, and a step that does not use b: neither leaves a trace in errors.
TEST(GradientCompressionSkipTest, SkippedStepsAndParametersLeaveNoTrace) {
  on_ranks(2, [](comm::World& world) {
    for (const std::string& kind : kinds()) {
      std::vector<at::Tensor> ends;
      for (const bool disturbed : {false, true}) {
        Two model;
        InitializeOptions options;
        options.model = model.ptr();
        options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch); };
        options.config = Compression{.optimizer = kPlainSgd, .gradients = kind, .global_batch = 2}.config();
        std::visit([](auto& rule) { rule.lr = 1e-4; }, options.config.optimizer->rule);
        const Initialized made = initialize(world, options);
        const auto step = [&](double of_b) {
          torch::manual_seed(3 + world.rank());
          made.engine->train_batch(
              [&] { return data::Batch{{torch::rand({20, 20}) + 0.1}, {torch::tensor(of_b)}, 1}; });
        };
        for (int i = 0; i < 4; ++i) {
          step(1);
        }
        const at::Tensor b = model->b.detach().clone();
        if (disturbed) {
          step(world.rank() == 1 ? std::nan("") : 1);
          EXPECT_EQ(made.engine->skipped_steps(), 1);
          EXPECT_TRUE(model->b.equal(b));
          const at::Tensor a = model->a.detach().clone();
          step(0);
          EXPECT_TRUE(model->b.equal(b)) << kind;
          EXPECT_FALSE(model->a.equal(a)) << kind;
        }
        step(1);
        expect_equal_on(world.group(), *model, "at the end");
        ends.push_back(model->b.detach().clone());
      }
      EXPECT_TRUE(ends[0].equal(ends[1])) << kind; // b is what it would be
    }
  });
}

TEST_F(GradientCompressionTest, WithAnotherNumberOfRanksTheErrorsBeginAtZero) {
  const fs::path folder = folder_;
  const auto train = [folder](int ranks, bool loads) {
    return run_ranks(ranks, [&](comm::World& world) {
      std::vector<std::string> lines;
      log::set_sink([&](const std::string& line) { lines.push_back(line); });
      SmallRun run(world, Compression{.gradients = kinds()[3]}.config());
      if (loads) {
        run.engine().load_checkpoint(folder);
      }
      run.engine().train_batch();
      log::set_sink(nullptr);
      expect_equal_on(world.group(), *run.model, "after a step");
      if (loads && world.rank() == 0) {
        EXPECT_THAT(lines, testing::Contains(HasSubstr("from 3 data ranks that compressed by power_sgd, this run has 2 "
                                                       "and power_sgd; the errors of compression begin at zero")));
      }
      if (!loads) {
        run.engine().save_checkpoint(folder);
      }
    });
  };
  EXPECT_THAT(train(3, false), IsEmpty());
  EXPECT_THAT(train(2, true), IsEmpty());
}

TEST(GradientCompressionErrorTest, WhatDoesNotGoTogetherIsRefusedByName) {
  comm::World world = comm::World::connect();
  const auto error = [&](const std::function<void(config::EngineConfig&)>& change) {
    config::EngineConfig config = Compression{.gradients = kinds()[0]}.config();
    change(config);
    return test::error_of([&] { SmallRun(world, config); });
  };
  EXPECT_THAT(error([](auto& config) { config.zero.stage = 2; }), HasSubstr("gradient_compression with ZeRO stage 2"));
  EXPECT_THAT(error([](auto& config) { config.zero.stage = 1, config.zero.shard_size = 2; }),
              HasSubstr("gradient_compression with zero_optimization.mics_shard_size"));
  EXPECT_THAT(error([](auto& config) { config.step_in_backward = true; }),
              HasSubstr("step_in_backward with gradient_compression"));
  EXPECT_THAT(error([](auto& config) { config.averaging.every = 2; }),
              HasSubstr("parameter_averaging with gradient_compression"));
  EXPECT_THAT(error([](auto& config) { config.optimizer = optim::OptimizerOptions{optim::OneBitAdamOptions()}; }),
              HasSubstr("gradient_compression with OneBitAdam"));
}

} // namespace
} // namespace trireme::engine
