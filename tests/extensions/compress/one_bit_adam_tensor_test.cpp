// 1-bit Adam of models whose layers are split among tensor ranks: what these have whole stays the same on them.
#include "compressed_run.h"

#include <trireme/base/log.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <cmath>
#include <fstream>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

/// A GPT whose layers are split among `tensor` ranks.
struct SplitRun {
  SplitRun(comm::World& world, int tensor, bool sequence_parallel, const config::EngineConfig& config) {
    InitializeOptions options;
    options.mesh = mesh::training_mesh(world.group(), {.data = mesh::kRest, .tensor = tensor});
    options.sequence_parallel = sequence_parallel;
    models::ModelRanks ranks;
    ranks.tensor = {options.mesh->group(mesh::Axis::tensor), sequence_parallel};
    torch::manual_seed(7);
    model = models::Gpt(small_gpt(), ranks);
    options.model = model.ptr();
    options.loss = [model = model](const data::Batch& batch) mutable {
      return model->loss(batch.input(), batch.target());
    };
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    made = initialize(world, options);
  }
  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      losses.push_back(made.engine->train_batch().item<double>());
    }
    return losses;
  }
  models::Gpt model = nullptr;
  Initialized made;
};

std::vector<double> train_split(comm::World& world, int tensor, bool sequence_parallel, int steps,
                                const config::EngineConfig& config = one_bit_config(10, 1, 1.0, 24)) {
  SplitRun run(world, tensor, sequence_parallel, config);
  const std::vector<double> losses = run.train(steps);
  expect_equal_on(run.made.engine->group(), *run.model, "of one tensor rank");
  const comm::Group& tensor_ranks = run.made.engine->tensor_group();
  for (const auto& item : run.model->named_parameters()) { // norms, positions and biases of sums
    if (item.key().find("ln_") != std::string::npos || item.key().find("wpe") != std::string::npos ||
        item.key().ends_with("c_proj.bias")) {
      at::Tensor first = item.value().detach().clone();
      tensor_ranks.broadcast(first, 0).wait();
      EXPECT_TRUE(first.equal(item.value())) << item.key();
    }
  }
  return losses;
}

TEST(OneBitAdamTensorTest, SplitLayersLearnAsWholeOnesDo) {
  on_ranks(4, [](comm::World& world) {
    const std::vector<double> whole = train_split(world, 1, false, 40);
    for (const bool sequence_parallel : {false, true}) {
      const std::vector<double> split = train_split(world, 2, sequence_parallel, 40);
      for (int step = 0; step < 40; ++step) {
        EXPECT_NEAR(split[static_cast<size_t>(step)], whole[static_cast<size_t>(step)], step < 10 ? 1e-4 : 0.35)
            << "step " << step << ", sequence parallelism " << sequence_parallel;
      }
      EXPECT_LT(split.back(), split[10]);
    }
  });
}

// Gradients of one bit, then replicas that step by themselves: what tensor ranks have whole stays the same on them.
TEST(ZeroOneAdamTensorTest, SplitLayersLearnAsWholeOnesDo) {
  on_ranks(4, [](comm::World& world) {
    config::EngineConfig config = one_bit_config(10, 1, 1.0, 24);
    optim::ZeroOneAdamOptions zero_one;
    zero_one.lr = 0.01;
    zero_one.beta2 = kBeta2;
    zero_one.var_freeze_step = 20;
    zero_one.var_update_scaler = 6;
    zero_one.local_step_scaler = 5;
    zero_one.local_step_clipper = 2;
    config.optimizer->rule = zero_one;
    const std::vector<double> whole = train_split(world, 1, false, 40, config),
                              split = train_split(world, 2, false, 40, config);
    for (int step = 0; step < 40; ++step) {
      EXPECT_NEAR(split[static_cast<size_t>(step)], whole[static_cast<size_t>(step)], step < 6 ? 1e-4 : 0.35)
          << "step " << step;
    }
    EXPECT_LT(split.back(), split[6]);
  });
}

class CompressedTensorStateTest : public testing::Test {
 protected:
  CompressedTensorStateTest()
      : folder_(fs::path(testing::TempDir()) / concat("trireme_compressed_tensor_", ::getpid())) {}
  ~CompressedTensorStateTest() override { fs::remove_all(folder_); }

  static std::map<std::string, config::EngineConfig> configs() {
    return {
        {"1-bit Adam", one_bit_config(3, 1, 1.0, 24)},
        {"power_sgd", Compression{.gradients = R"({"kind": "power_sgd", "rank": 2})", .global_batch = 24}.config()}};
  }

  // Trains with `before` tensor ranks, saves, continues with `after` of them, and returns what was logged.
  std::string resumed(const config::EngineConfig& config, int before, bool sequence_before, int after,
                      bool sequence_after) {
    std::string logged;
    const fs::path folder = folder_;
    on_ranks(2 * before, [&](comm::World& world) {
      SplitRun run(world, before, sequence_before, config);
      run.train(6);
      run.made.engine->save_checkpoint(folder, "six");
    });
    on_ranks(2 * after, [&](comm::World& world) {
      std::string lines;
      log::set_sink([&](const std::string& line) { lines += line; });
      SplitRun run(world, after, sequence_after, config);
      run.made.engine->load_checkpoint(folder, "six");
      log::set_sink(nullptr);
      for (const double loss : run.train(3)) {
        EXPECT_TRUE(std::isfinite(loss));
      }
      run.made.engine->save_checkpoint(folder, "nine");
      if (world.rank() == 0) {
        std::ofstream(folder / "lines") << lines;
      }
    });
    std::ifstream in(folder / "lines");
    logged.assign(std::istreambuf_iterator<char>(in), {});
    fs::remove_all(folder);
    return logged;
  }
  fs::path folder_;
};

// On two data x two tensor ranks.
TEST_F(CompressedTensorStateTest, ResumedIsUninterruptedBitForBit) {
  const fs::path folder = folder_;
  on_ranks(4, [&](comm::World& world) {
    for (const auto& [name, config] : configs()) {
      for (const bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(concat(name, ", sequence parallelism ", sequence_parallel));
        SplitRun whole(world, 2, sequence_parallel, config);
        whole.train(5);
        whole.made.engine->save_checkpoint(folder);
        SplitRun second(world, 2, sequence_parallel, config);
        second.train(2); // errors of its own, which the load replaces
        second.made.engine->load_checkpoint(folder);
        EXPECT_EQ(second.train(4), whole.train(4));
      }
    }
  });
}

TEST_F(CompressedTensorStateTest, WithOtherTensorRanksTheErrorsBeginAtZeroAndARunGoesOn) {
  for (const auto& [name, config] : configs()) {
    SCOPED_TRACE(name);
    EXPECT_THAT(resumed(config, 1, false, 2, true),
                HasSubstr("is from a run that summed gradients over 2 ranks, this one sums over 2 and 4; the "
                          "errors of compression begin at zero"));
    EXPECT_THAT(resumed(config, 2, true, 1, false),
                HasSubstr("is from a run that summed gradients over 2 and 4 ranks, this one sums over 2; the "
                          "errors of compression begin at zero"));
  }
  EXPECT_THAT(
      resumed(configs().at("power_sgd"), 2, false, 1, false),
      HasSubstr("the checkpoint is from 2 tensor ranks, this run has 1; the errors of compression begin at zero"));
  EXPECT_THAT(resumed(configs().at("1-bit Adam"), 1, false, 2, false), testing::Not(HasSubstr("begin at zero")))
      << "each element's error goes with it";
}

} // namespace
} // namespace trireme::engine
