#include "toy.h"

#include <trireme/base/error.h>
#include <trireme/comm/algorithms/cost.h>
#include <trireme/shards/data_parallel/data_parallel.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/serialize.h>

#include <sstream>

namespace trireme::parallel {
namespace {

using test::on_ranks;
using test::run_ranks;

constexpr int64_t kGlobalRows = 12; // divides by 1, 2, 3 and 4

// One process on the whole batch: what every parallel run must equal.
Toy train_alone(int steps) {
  Toy model(1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model->loss(toy_batch(step, kGlobalRows)).backward();
    optimizer.step();
  }
  return model;
}

class DataParallelTest : public testing::TestWithParam<int> {};

TEST_P(DataParallelTest, AnOrdinaryLoopEqualsOneProcess) {
  on_ranks(GetParam(), [](comm::World& world) {
    Toy model(1 + world.rank()); // other weights on every rank: construction hands out rank 0's
    DataParallel parallel(*model, world.group(), small_buckets());
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0));
    const int64_t rows = kGlobalRows / world.size();
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad(); // sets gradients to none: the views come back by themselves
      const at::Tensor mine = toy_batch(step, kGlobalRows).slice(0, world.rank() * rows, (world.rank() + 1) * rows);
      model->loss(mine).backward();
      optimizer.step();
    }
    Toy reference = train_alone(20);
    EXPECT_LT(largest_difference(*model, *reference), 1e-5);
    EXPECT_TRUE(model->offset.equal(reference->offset)) << "buffers are rank 0's";
  });
}

// Trains by an algorithm, checks the result, and returns what the busiest rank has sent.
int64_t sent_by(DataParallelOptions::Algorithm algorithm, comm::World& world, Toy& reference, int steps) {
  Toy model(1);
  DataParallelOptions options = small_buckets();
  options.algorithm = algorithm;
  DataParallel parallel(*model, world.group(), options);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0));
  const int64_t rows = kGlobalRows / world.size();
  const int64_t before = world.group().bytes_sent();
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model->loss(toy_batch(step, kGlobalRows).slice(0, world.rank() * rows, (world.rank() + 1) * rows)).backward();
    optimizer.step();
  }
  at::Tensor sent = torch::tensor({world.group().bytes_sent() - before});
  EXPECT_LT(largest_difference(*model, *reference), 1e-5);
  world.group().all_reduce(sent, comm::ReduceOp::max).wait();
  return sent.item<int64_t>();
}

// The algorithms over messages give the sums of the backend's own, and the busiest rank sends what their formulas say,
// beside the small messages that all have.
TEST_P(DataParallelTest, EveryAlgorithmEqualsOneProcess) {
  on_ranks(GetParam(), [](comm::World& world) {
    using Algorithm = DataParallelOptions::Algorithm;
    Toy reference = train_alone(5);
    const int64_t ring = sent_by(Algorithm::ring, world, reference, 5);
    for (const Algorithm algorithm :
         {Algorithm::backend, Algorithm::tree, Algorithm::halving_doubling, Algorithm::naive}) {
      SCOPED_TRACE(DataParallelOptions::kAlgorithmNames[static_cast<size_t>(algorithm)]);
      const int64_t sent = sent_by(algorithm, world, reference, 5);
      if (world.size() > 1) {
        const auto busiest = [&](Algorithm of) {
          const char* const name =
              of == Algorithm::backend ? "ring" : DataParallelOptions::kAlgorithmNames[static_cast<size_t>(of)];
          return comm::cost(comm::algorithm_named(name), world.size(), 1 << 20).bytes_busiest;
        };
        EXPECT_NEAR(static_cast<double>(sent) / static_cast<double>(ring),
                    busiest(algorithm) / busiest(Algorithm::ring), 0.1)
            << "small buckets do not divide evenly";
      }
    }
  });
}

TEST_P(DataParallelTest, NoSyncAccumulatesBeforeOneReduction) {
  on_ranks(GetParam(), [](comm::World& world) {
    Toy model(1);
    DataParallel parallel(*model, world.group(), small_buckets());
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0));
    const int64_t rows = kGlobalRows / world.size();
    for (int step = 0; step < 10; ++step) {
      parallel.zero_grad();
      const at::Tensor mine = toy_batch(step, kGlobalRows).slice(0, world.rank() * rows, (world.rank() + 1) * rows);
      const int64_t half = rows / 2 > 0 ? rows / 2 : rows;
      const int64_t before = world.group().bytes_sent();
      {
        const auto guard = parallel.no_sync();
        (model->loss(mine.slice(0, 0, half)) * half / rows).backward();
        EXPECT_EQ(world.group().bytes_sent(), before) << "no communication before the boundary";
      }
      (model->loss(mine.slice(0, half, rows)) * (rows - half) / rows).backward();
      optimizer.step();
    }
    EXPECT_LT(largest_difference(*model, *train_alone(10)), 1e-5);
  });
}

// Ranks that use different layers must neither hang nor disagree: absent gradients count as zero.
TEST_P(DataParallelTest, UnusedParametersTakePartWithZeros) {
  on_ranks(GetParam(), [](comm::World& world) {
    Toy model(1);
    DataParallel parallel(*model, world.group(), small_buckets());
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));
    Toy reference(1);
    for (int step = 0; step < 6; ++step) {
      const auto uses = [&](int rank) { return (step + rank) % 2 == 0; };
      optimizer.zero_grad();
      model->loss(toy_batch(step * 10 + world.rank(), 3), uses(world.rank())).backward();
      optimizer.step();
      reference->zero_grad();
      for (int rank = 0; rank < world.size(); ++rank) {
        (reference->loss(toy_batch(step * 10 + rank, 3), uses(rank)) / world.size()).backward();
      }
      torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : reference->parameters()) {
        if (parameter.grad().defined()) {
          parameter.sub_(parameter.grad() * 0.05);
        }
      }
    }
    EXPECT_LT(largest_difference(*model, *reference), 1e-5);
  });
}

void expect_that_ranks_join(int ranks, bool loads) {
  on_ranks(ranks, [&](comm::World& world) {
    Toy model(1);
    DataParallel parallel(*model, world.group(), small_buckets());
    if (loads) {
      std::stringstream saved;
      torch::save(Toy(1), saved);
      torch::load(model, saved);
    }
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));
    const auto batches_of = [](int rank) { return 3 + 2 * rank; };
    for (int step = 0; step < batches_of(world.rank()); ++step) {
      parallel.zero_grad();
      model->loss(toy_batch(step * 10 + world.rank(), 3)).backward();
      optimizer.step();
    }
    parallel.join();
    // The mean is over the ranks that still had a batch.
    Toy reference(1);
    for (int step = 0; step < batches_of(world.size() - 1); ++step) {
      reference->zero_grad();
      int active = 0;
      for (int rank = 0; rank < world.size(); ++rank) {
        active += step < batches_of(rank) ? 1 : 0;
      }
      for (int rank = 0; rank < world.size(); ++rank) {
        if (step < batches_of(rank)) {
          (reference->loss(toy_batch(step * 10 + rank, 3)) / active).backward();
        }
      }
      torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : reference->parameters()) {
        if (parameter.grad().defined()) {
          parameter.sub_(parameter.grad() * 0.05);
        }
      }
    }
    EXPECT_LT(largest_difference(*model, *reference), 1e-5);
  });
}

TEST_P(DataParallelTest, RanksThatRunOutOfDataJoinTheRest) {
  expect_that_ranks_join(GetParam(), false);
}

// Parameters have memory of their own after it.
TEST_P(DataParallelTest, RanksThatHaveLoadedAModelJoinTheRest) {
  expect_that_ranks_join(GetParam(), true);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DataParallelTest, testing::Values(1, 2, 3, 4));

TEST(DataParallelErrorTest, DifferentModelsAreRefusedOnEveryRank) {
  on_ranks(2, [](comm::World& world) {
    torch::nn::Linear model(3, 3 + world.rank());
    try {
      DataParallel parallel(*model, world.group());
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("rank 1 built another model than rank 0: it has \"weight, Float [4, 3]\" "
                                     "where rank 0 has \"weight, Float [3, 3]\""));
    }
  });
}

TEST(DataParallelErrorTest, OptionsThatDifferAreRefusedOnEveryRank) {
  on_ranks(3, [](comm::World& world) {
    const auto refusal = [&](const std::function<void(DataParallelOptions&)>& change) -> std::string {
      Toy model(1);
      DataParallelOptions options = small_buckets();
      if (world.rank() == 2) {
        change(options);
      }
      try {
        const DataParallel parallel(*model, world.group(), options);
      } catch (const InputError& error) {
        return error.what();
      }
      return "made";
    };
    using testing::HasSubstr;
    EXPECT_THAT(refusal([](auto& o) { o.gradient_predivide_factor = 2; }),
                HasSubstr("rank 2 and rank 0 differ in gradient_predivide_factor: 2.0 and 1.0"));
    EXPECT_THAT(refusal([](auto& o) { o.op = DataParallelOptions::Op::sum; }), HasSubstr("differ in op"));
    EXPECT_THAT(refusal([](auto& o) { o.bucket_bytes += 4; }), HasSubstr("differ in bucket_bytes"));
    EXPECT_THAT(refusal([](auto& o) { o.broadcast_at_start = false; }),
                HasSubstr("differ in broadcast_at_start: false and true"));
    EXPECT_EQ(refusal([](auto&) {}), "made");
  });
}

TEST(DataParallelErrorTest, AFrozenModelIsRefused) {
  torch::nn::Linear model(3, 3);
  for (at::Tensor& parameter : model->parameters()) {
    parameter.set_requires_grad(false);
  }
  EXPECT_THROW(DataParallel(*model, comm::Group()), InputError);
}

} // namespace
} // namespace trireme::parallel
