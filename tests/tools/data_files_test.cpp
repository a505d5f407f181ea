// Data that a run cannot be trained on: all ranks say so, before the first step.
#include "small_training.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <functional>

namespace trireme::tools {
namespace {

using test::run_ranks;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

class DataFilesTest : public SmallTrainingTest {
 protected:
  // What the ranks say.
  static std::vector<std::string> trained(int ranks, const std::function<json(int rank)>& data) {
    json run = common();
    run["training"]["steps"] = 1;
    fs::remove_all(out());
    return run_ranks(ranks, [&](comm::World& world) {
      json own = run;
      own["data"].update(data(world.rank()));
      train::TrainCommand command;
      command.run_file = file(concat("run", world.rank(), ".json"), own.dump());
      command.out = out();
      train::train(command, train::Registry(), world);
    });
  }
};

// One file for both, whose only block is rank 0's to check.
TEST_F(DataFilesTest, ATrainingTokenAboveTheVocabularyStopsAllRanks) {
  std::string tokens(1200, '\1'); // token 257 of 260
  const std::string good = file("good.bin", tokens);
  tokens[998] = 4; // token 260
  const std::string bad = file("bad.bin", tokens);
  EXPECT_THAT(trained(2, [&](int) { return json{{"train", good}}; }), IsEmpty());
  const auto said = trained(2, [&](int) { return json{{"train", bad}}; });
  EXPECT_THAT(said, AllOf(SizeIs(2), Each(AllOf(HasSubstr("bad.bin: token 499 is 260, the vocabulary has 260"),
                                                Not(HasSubstr("has ended"))))));
}

// Of a host with another copy of the data.
TEST_F(DataFilesTest, WhatOneRankCannotReadStopsAllRanks) {
  const std::string good = tokens_file("good.bin", 3);
  std::string wide;
  for (int i = 0; i < 600; ++i) {
    wide += std::string{static_cast<char>(i * 3 % 50), '\0', '\0', '\0'};
  }
  const std::string bad = file("wide.bin", wide);
  const auto said = trained(2, [&](int rank) { return json{{"train", rank == 1 ? bad : good}}; });
  EXPECT_THAT(said,
              AllOf(SizeIs(2), Each(AllOf(HasSubstr("rank 1: "), HasSubstr("wide.bin: every second 16-bit value is 0"),
                                          HasSubstr("data.token_bytes")))));
  EXPECT_THAT(trained(2, [&](int) { return json{{"train", bad}, {"token_bytes", 4}}; }), IsEmpty());
}

} // namespace
} // namespace trireme::tools
