// Masters and optimizer states that are not in memory between steps: the same bits, and one bucket at a time.
#include "flat_rank.h"

#include <tests/support/file_store.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <unistd.h>

namespace trireme::optim {
namespace {

namespace fs = std::filesystem;

TEST(StateStoreTest, StatesInFilesTrainAsThoseInMemory) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_states_", ::getpid());
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::bf16, StateType::int8}) {
      for (const Rule& rule : kRules) {
        if (is_lamb(rule) && state_type == StateType::int8) {
          continue;
        }
        const OptimizerOptions options = options_of(rule, state_type);
        Rank memory(options, 0, 1, type);
        Rank files(options, 0, 1, type, std::make_unique<test::FileStore>(folder));
        EXPECT_EQ(files.optimizer().bytes(), memory.optimizer().bytes());
        memory.run(1, 3);
        files.run(1, 3);
        files.load_states(files.states()); // what a checkpoint does
        memory.run(4, 5);
        files.run(4, 5);
        EXPECT_TRUE(torch::equal(files.flat().flat_data(), memory.flat().flat_data())) << memory.optimizer().rule().name() << ' ' << name(state_type);
        const auto expected = memory.states();
        for (const auto& [name, tensor] : files.states()) {
          EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
        }
      }
    }
  }
}

// Plain SGD has nothing to keep.
TEST(StateStoreTest, NothingIsAskedOfAStoreThatKeepsNothing) {
  OptimizerOptions options = options_of(SgdOptions{});
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_nothing_", ::getpid());
  Rank rank(options, 0, 1, torch::kFloat32, std::make_unique<test::FileStore>(folder));
  rank.run(1, 2);
  EXPECT_EQ(rank.optimizer().bytes(), 0);
  EXPECT_TRUE(rank.states().empty());
}

TEST(StateStoreTest, AVisitThatOnlyReadsWritesNothingAndOneThatThrowsGivesTheBucketBack) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_visits_", ::getpid());
  for (const StateType state_type : {StateType::fp32, StateType::int8}) {
    auto owned = std::make_unique<test::FileStore>(folder);
    const test::FileStore& store = *owned;
    Rank rank(options_of(AdamOptions{}, state_type), 0, 1, torch::kBFloat16, std::move(owned));
    rank.run(1, 2);
    const int writes = store.writes();
    int visits = 0;
    const auto visit = [&](const std::string&, const bucket::TensorInfo&, int64_t, const at::Tensor&) { ++visits; };
    rank.optimizer().for_each_state(visit, false);
    EXPECT_GT(visits, 0);
    EXPECT_EQ(store.writes(), writes);
    const auto fail = [](const std::string&, const bucket::TensorInfo&, int64_t, const at::Tensor&) { throw Error("test", "no"); };
    EXPECT_THROW(rank.optimizer().for_each_state(fail), Error);
    rank.run(3, 3);
    EXPECT_GT(store.writes(), writes);
  }
}

} // namespace
} // namespace trireme::optim
