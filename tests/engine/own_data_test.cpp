// The client's own sampler and collate function: the same training as ours where they do the same, and resumed where
// they were.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

struct OwnRun {
  models::Gpt model{small_gpt()};
  Initialized made;

  OwnRun(comm::World& world, const std::function<void(InitializeOptions&)>& change) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [gpt = model](const data::Batch& batch) mutable { return gpt->loss(batch.input(), batch.target()); };
    options.config = small_config(48, 2);
    options.training_data = std::make_shared<Counting>();
    change(options);
    made = initialize(world, options);
  }
  std::vector<double> train(int steps) {
    std::vector<double> found;
    for (int step = 0; step < steps; ++step) {
      found.push_back(made.engine->train_batch().item<double>());
    }
    return found;
  }
};

std::vector<int64_t> our_order(int64_t epoch) {
  return data::permutation(Counting().size(), data::SamplerOptions().seed, epoch);
}

// Every third sample is left out, and the first ones come again.
std::vector<int64_t> odd_order(int64_t epoch) {
  std::vector<int64_t> order = our_order(epoch + 100);
  std::erase_if(order, [](int64_t sample) { return sample % 3 == 0; });
  order.insert(order.end(), order.begin(), order.begin() + 10 * epoch);
  return order;
}

TEST(OwnDataTest, OurOrderAndStackedSamplesTrainAsWithoutThem) {
  on_ranks(2, [](comm::World& world) {
    OwnRun ours(world, [](auto&) {});
    OwnRun own(world, [](InitializeOptions& options) {
      options.order = our_order;
      options.collate = stacked;
    });
    EXPECT_EQ(own.train(9), ours.train(9)) << "more than two epochs";
  });
}

TEST(OwnDataTest, ResumesInTheMiddleOfAnEpochBitForBit) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_own_order_", ::getpid());
  on_ranks(2, [folder](comm::World& world) {
    const auto own = [](InitializeOptions& options) { options.order = odd_order; };
    OwnRun whole(world, own);
    whole.train(4); // 2 steps an epoch, then 2, 3, ...
    whole.made.engine->save_checkpoint(folder);
    const nlohmann::json place = whole.made.loader->state();
    EXPECT_EQ(place["epoch"], 1);
    OwnRun resumed(world, own);
    EXPECT_TRUE(resumed.made.engine->load_checkpoint(folder));
    EXPECT_EQ(resumed.made.loader->state(), place);
    EXPECT_EQ(resumed.train(6), whole.train(6));

    const auto refusal = [&](const std::function<void(InitializeOptions&)>& change) -> std::string {
      try {
        OwnRun(world, change).made.engine->load_checkpoint(folder);
      } catch (const InputError& error) {
        return error.what();
      }
      return "loaded";
    };
    EXPECT_THAT(refusal([](InitializeOptions& options) { options.order = our_order; }),
                HasSubstr("another order of epoch 1"));
    EXPECT_THAT(refusal([](auto&) {}), HasSubstr("order: the program's own, this run has the sampler's"));
  });
  fs::remove_all(folder);
}

TEST(OwnDataTest, AnOrderThatNoCheckpointCouldGoOnWithIsRefused) {
  on_ranks(2, [](comm::World& world) {
    const auto refusal = [&](std::function<std::vector<int64_t>(int64_t)> order) -> std::string {
      try {
        OwnRun(world, [&](InitializeOptions& options) { options.order = order; });
      } catch (const InputError& error) {
        return error.what();
      }
      return "made";
    };
    EXPECT_THAT(refusal([calls = 0](int64_t) mutable { return data::permutation(192, ++calls, 0); }),
                HasSubstr("differs between two calls"));
    EXPECT_THAT(refusal([&](int64_t) { return data::permutation(192, world.rank(), 0); }),
                HasSubstr("the ranks have different orders"));
    EXPECT_THAT(refusal([](int64_t) { return std::vector<int64_t>{3, 192}; }), HasSubstr("has sample 192 at index 1"));
  });
}

} // namespace
} // namespace trireme::engine
