#include "small_run.h"

#include <trireme/base/error.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

struct Case {
  int ranks;
  int64_t accumulation;
  double clipping;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.ranks << " ranks, " << c.accumulation << " accumulated, clipping " << c.clipping;
  }
};

class EngineEqualsOneProcess : public testing::TestWithParam<Case> {};

TEST_P(EngineEqualsOneProcess, ForTwentySteps) {
  const Case c = GetParam();
  on_ranks(c.ranks, [c](comm::World& world) {
    SmallRun run(world, small_config(48, c.accumulation, c.clipping));
    run.engine().want_grad_norm(true);
    std::vector<double> norms;
    const std::vector<double> expected = plain_losses(48, 20, c.clipping, &norms);
    for (int step = 0; step < 20; ++step) {
      const double loss = run.engine().train_batch().item<double>();
      EXPECT_NEAR(loss, expected[step], 1e-6 * expected[step]) << "step " << step;
      EXPECT_NEAR(*run.engine().get_global_grad_norm(), norms[step], 2e-5 * norms[step]) << "step " << step;
    }
    EXPECT_LT(expected.back(), 0.8 * expected.front()) << "the test must train";
    EXPECT_EQ(run.engine().global_samples(), 20 * 48);
  });
}

INSTANTIATE_TEST_SUITE_P(All, EngineEqualsOneProcess,
                         testing::Values(Case{1, 1, 1.0}, Case{1, 4, 0}, Case{2, 1, 1.0}, Case{2, 2, 1.0},
                                         Case{2, 4, 0}, Case{3, 1, 0}, Case{3, 2, 1.0}, Case{4, 1, 1.0}, Case{4, 3, 0}),
                         [](const auto& info) {
                           return concat(info.param.ranks, "ranks_", info.param.accumulation, "accumulated_",
                                         info.param.clipping > 0 ? "clipped" : "free");
                         });

TEST(EngineTest, TrainBatchEqualsTheExplicitLoopBitForBit) {
  on_ranks(2, [](comm::World& world) {
    SmallRun whole(world, small_config(48, 3));
    SmallRun parts(world, small_config(48, 3));
    for (int step = 0; step < 5; ++step) {
      whole.engine().train_batch();
      for (int micro = 0; micro < 3; ++micro) {
        EXPECT_EQ(parts.engine().is_gradient_accumulation_boundary(), micro == 2);
        const at::Tensor loss = parts.engine().forward(parts.made.loader->next());
        parts.engine().backward(loss);
        parts.engine().step();
      }
      EXPECT_EQ(whole.engine().loss(), parts.engine().loss());
    }
    const auto a = whole.model->parameters();
    const auto b = parts.model->parameters();
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(a[i].equal(b[i]));
    }
  });
}

TEST(EngineTest, AllRanksReturnTheSameLossAndHoldTheSameWeights) {
  on_ranks(3, [](comm::World& world) {
    SmallRun run(world, small_config(48, 1), /*shuffle=*/true);
    for (int step = 0; step < 6; ++step) {
      at::Tensor all = torch::zeros({3}, torch::kFloat64);
      world.group().all_gather(all, run.engine().train_batch().reshape({1})).wait();
      EXPECT_EQ(all[0].item<double>(), all[1].item<double>());
      EXPECT_EQ(all[0].item<double>(), all[2].item<double>());
    }
    for (at::Tensor& parameter : run.model->parameters()) {
      at::Tensor root = parameter.detach().clone();
      world.group().broadcast(root, 0).wait();
      EXPECT_TRUE(root.equal(parameter));
    }
  });
}

TEST(EngineTest, AStepWithoutAFiniteLossIsSkippedOnAllRanks) {
  on_ranks(2, [](comm::World& world) {
    for (const double clipping : {0.0, 1.0}) {
      SmallRun run(world, small_config(48, 1, clipping));
      run.engine().train_batch();
      const at::Tensor before = run.model->parameters()[0].detach().clone();
      const data::Batch batch = run.made.loader->next();
      at::Tensor loss = run.engine().forward(batch);
      run.engine().backward(world.rank() == 1 ? loss * NAN : loss); // one rank only
      run.engine().step();
      EXPECT_EQ(run.engine().skipped_steps(), 1);
      EXPECT_EQ(run.engine().global_steps(), 2);
      EXPECT_TRUE(run.model->parameters()[0].equal(before));
      EXPECT_TRUE(std::isfinite(run.engine().train_batch().item<double>()));
    }
  });
}

TEST(EngineTest, EndlessNanEndsTheRun) {
  on_ranks(1, [](comm::World& world) {
    SmallRun run(world, small_config(48, 1));
    int steps = 0;
    try {
      for (; steps < 100; ++steps) {
        run.engine().backward(run.engine().forward(run.made.loader->next()) * NAN);
        run.engine().step();
      }
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("20 steps in a row"));
    }
    EXPECT_EQ(steps, 19);
  });
}

TEST(EngineTest, EvaluationIsTheMeanOverAllSamplesHoweverTheyAreDivided) {
  on_ranks(3, [](comm::World& world) {
    SmallRun run(world, small_config(48, 1), false, /*dropout=*/0.5);
    auto dataset = std::make_shared<Counting>();
    data::SamplerOptions place;
    place.shuffle = false;
    place.drop_last = false;
    place.rank = world.rank();
    place.replicas = world.size();
    // 192 samples in micro-batches of 7 over 3 ranks: the last one is mostly padding.
    data::DataLoader loader(dataset, data::DistributedSampler(dataset->size(), place), 7);
    const double mean = run.engine().evaluate(loader);
    std::vector<int64_t> all(192);
    std::iota(all.begin(), all.end(), 0);
    const torch::NoGradGuard no_grad;
    run.model->eval();
    const data::Batch whole = dataset->get(all);
    EXPECT_NEAR(mean, run.model->loss(whole.input(), whole.target()).item<double>(), 1e-5);
  });
}

TEST(EngineTest, BatchSizesThatDoNotFitAreExplained) {
  on_ranks(3, [](comm::World& world) {
    try {
      SmallRun run(world, small_config(50, 2));
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("50"), HasSubstr("3"), HasSubstr("48")));
    }
  });
}

} // namespace
} // namespace trireme::engine
