// The choice of ways: the best of all that fit, found by trying all of them.
#include <trireme/memory/activations/choice.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace trireme::activations {
namespace {

using testing::ElementsAre;

// Costs of the size that layers have: milliseconds, megabytes, gigabytes a second.
Problem random_problem(std::mt19937& random, int parts) {
  const auto between = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  Problem problem;
  problem.allowed = {kWays.begin(), kWays.end()};
  problem.host = {1 / between(1e9, 3e10), 1 / between(1e9, 3e10), 0};
  problem.nvme = {1 / between(5e8, 4e9), 1 / between(5e8, 4e9), between(0, 1) < 0.5 ? 0 : 1 / between(5e9, 2e10)};
  problem.in_flight = between(0, 1) < 0.7 ? 1 : 3;
  problem.moving_copies = between(0, 1) < 0.5 ? 1 : 2;
  const bool shares = between(0, 1) < 0.3;
  problem.gather = shares ? 1 / between(1e9, 1e10) : 0;
  int64_t all = 0;
  const bool alike = between(0, 1) < 0.3;
  for (int i = 0; i < parts; ++i) {
    const double forward = between(1e-4, 2e-2);
    problem.parts.push_back(alike && i > 0 ? problem.parts.front()
                                           : PartCost{static_cast<int64_t>(between(0, 2e7)),
                                                      static_cast<int64_t>(between(1e5, 4e6)), 0, forward,
                                                      forward * between(1.5, 3)});
    PartCost& part = problem.parts.back();
    part.share_bytes = shares ? part.input_bytes / 4 : part.input_bytes;
    all += problem.parts.back().bytes + problem.parts.back().input_bytes;
  }
  problem.budget = static_cast<int64_t>(static_cast<double>(all * problem.in_flight) * between(0.1, 1.3));
  return problem;
}

// A pipeline's stage with the embedding alone.
TEST(ActivationChoice, NoPartsFitAnything) {
  const Choice none = choose({});
  EXPECT_TRUE(none.fits);
  EXPECT_TRUE(none.ways.empty());
}

Choice best_of_all(const Problem& problem) {
  Choice best;
  std::vector<Way> ways(problem.parts.size());
  const size_t each = problem.allowed.size();
  size_t count = 1;
  for (size_t i = 0; i < ways.size(); ++i) {
    count *= each;
  }
  for (size_t number = 0; number < count; ++number) {
    size_t rest = number;
    for (Way& way : ways) {
      way = problem.allowed[rest % each];
      rest /= each;
    }
    const Choice one = judge(problem, ways);
    if (one.fits && (!best.fits || one.seconds < best.seconds)) {
      best = one;
    }
  }
  return best;
}

TEST(ActivationChoice, IsTheBestOfAllThatFit) {
  std::mt19937 random(18);
  int fitting = 0;
  int mixed = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const Problem problem = random_problem(random, 1 + trial % 5);
    const Choice found = choose(problem);
    const Choice best = best_of_all(problem);
    ASSERT_EQ(found.fits, best.fits) << "trial " << trial;
    if (best.fits) {
      ++fitting;
      mixed += to_words(found.ways).size() > 1 ? 1 : 0;
      ASSERT_LE(found.bytes, problem.budget);
      ASSERT_NEAR(found.seconds, best.seconds, 1e-12) << "trial " << trial;
    }
  }
  EXPECT_GT(fitting, 250);
  EXPECT_GT(mixed, 100) << "the cases are too easy";
}

// Room in files, on the host, or in both.
TEST(ActivationChoice, KeepsToTheRoomThereIs) {
  std::mt19937 random(19);
  int fitting = 0;
  int in_files = 0;
  int on_host = 0;
  double found_seconds = 0;
  double best_seconds = 0;
  for (int trial = 0; trial < 600; ++trial) {
    Problem problem = random_problem(random, 1 + trial % 5);
    const auto room = [&] {
      return static_cast<int64_t>(std::uniform_real_distribution<double>(0, 1)(random) *
                                  static_cast<double>(problem.budget));
    };
    problem.file_room = room();
    problem.host_room = room();
    if (trial % 3 > 0) {
      std::erase_if(problem.allowed, trial % 3 == 1 ? to_host : to_nvme);
    }
    const Choice found = choose(problem);
    const Choice best = best_of_all(problem);
    if (found.fits) {
      ++fitting;
      in_files += found.in_files > 0 ? 1 : 0;
      on_host += found.on_host > 0 ? 1 : 0;
      ASSERT_LE(found.in_files, problem.file_room) << "trial " << trial;
      ASSERT_LE(found.on_host, problem.host_room) << "trial " << trial;
      ASSERT_LE(found.bytes, problem.budget) << "trial " << trial;
      ASSERT_GE(found.seconds, best.seconds - 1e-12) << "trial " << trial;
      found_seconds += found.seconds;
      best_seconds += best.seconds;
    }
    Problem without = problem;
    without.allowed = {Way::keep, Way::recompute};
    if (const Choice none = choose(without); none.fits) {
      EXPECT_TRUE(found.fits) << "trial " << trial;
    }
  }
  EXPECT_GT(fitting, 300);
  EXPECT_GT(in_files, 30);
  EXPECT_GT(on_host, 30);
  EXPECT_LE(found_seconds, 1.1 * best_seconds);
}

Problem equal_parts(int parts) {
  Problem problem;
  problem.allowed = {kWays.begin(), kWays.end()};
  problem.parts.assign(static_cast<size_t>(parts), {64'000'000, 4'000'000, 4'000'000, 10e-3, 20e-3});
  problem.host = {1 / 25e9, 1 / 25e9, 0};
  problem.nvme = {1 / 3e9, 1 / 4e9, 0};
  return problem;
}

TEST(ActivationChoice, KeepsAllWhereThereIsRoom) {
  Problem problem = equal_parts(12);
  problem.budget = 12 * 68'000'000;
  EXPECT_EQ(to_words(choose(problem).ways), std::vector<std::string>{"12*keep"});
  problem.budget -= 1;
  EXPECT_NE(to_words(choose(problem).ways), std::vector<std::string>{"12*keep"});
}

// Moves that the next part hides cost nothing: 68 MB at 25 GB/s take 2.7 ms of its 10.
TEST(ActivationChoice, MovesToTheHostBeforeItRecomputes) {
  Problem problem = equal_parts(12);
  problem.budget = 4 * 68'000'000;
  const Choice choice = choose(problem);
  EXPECT_TRUE(choice.fits);
  EXPECT_EQ(choice.seconds, 0);
  for (const Way way : choice.ways) {
    EXPECT_FALSE(recomputes(way));
  }
  EXPECT_EQ(choice.ways.back(), Way::keep) << "nothing is behind the last part to hide its move";
}

// On the CPU a moved part lies in the buffers of moves: with all of them in files no more is there than those. What is
// kept or recomputed comes on top.
TEST(ActivationChoice, PartsInFilesLieInTheBuffers) {
  Problem problem = equal_parts(6);
  problem.allowed = {Way::keep, Way::recompute, Way::nvme, Way::recompute_nvme};
  problem.moving_copies = 2;
  problem.nvme = {1 / 1e10, 1 / 1e10, 1 / 1e11}; // hidden, but for what the computing thread does
  EXPECT_EQ(judge(problem, std::vector<Way>(6, Way::nvme)).bytes, 2 * 68'000'000);
  EXPECT_EQ(judge(problem, {Way::nvme, Way::nvme, Way::nvme, Way::nvme, Way::nvme, Way::keep}).bytes, 3 * 68'000'000);
  EXPECT_EQ(judge(problem, std::vector<Way>(6, Way::recompute_nvme)).bytes, 68'000'000 + 2 * 4'001'792)
      << "buffers fill whole blocks";
  problem.in_flight = 3;
  EXPECT_EQ(judge(problem, std::vector<Way>(6, Way::recompute_nvme)).bytes, 68'000'000 + 3 * 4'001'792)
      << "one leaves while another comes back";
  problem.in_flight = 1;
  problem.budget = 2 * 68'000'000;
  EXPECT_EQ(to_words(choose(problem).ways), std::vector<std::string>{"6*nvme"});
  problem.moving_copies = 1; // a device, where it is copied to memory of its own
  EXPECT_EQ(judge(problem, std::vector<Way>(6, Way::nvme)).bytes, 2 * 68'000'000);
}

TEST(ActivationChoice, RecomputesWhereMovesAreSlow) {
  Problem problem = equal_parts(12);
  problem.allowed = {Way::keep, Way::recompute, Way::nvme};
  problem.nvme = {1 / 1e8, 1 / 1e8, 0};
  problem.budget = 6 * 68'000'000;
  const Choice choice = choose(problem);
  EXPECT_TRUE(choice.fits);
  EXPECT_THAT(choice.ways, testing::Not(testing::Contains(Way::nvme)));
  EXPECT_THAT(choice.ways, testing::Contains(Way::recompute));
}

// Four ranks keep a quarter of each input: three quarters of what recomputation holds are there for parts that are
// kept, for the price of gathering.
TEST(ActivationChoice, SharesOfInputsLeaveRoomForPartsThatAreKept) {
  Problem problem = equal_parts(12);
  problem.allowed = {Way::keep, Way::recompute};
  for (PartCost& part : problem.parts) {
    part.bytes = 16'000'000;
    part.share_bytes = 1'000'000;
  }
  problem.gather = 1e-10;
  const Choice all = judge(problem, std::vector<Way>(12, Way::recompute));
  EXPECT_EQ(all.bytes, 11 * 1'000'000 + 20'000'000 + 1'000'000) << "a share lies beside what it is gathered to";
  EXPECT_DOUBLE_EQ(all.seconds, 12 * (10e-3 + 4'000'000 * 1e-10));
  problem.in_flight = 3;
  EXPECT_EQ(judge(problem, std::vector<Way>(12, Way::recompute)).bytes, 3 * 12 * 1'000'000 + 21'000'000);
  problem.in_flight = 1;
  problem.budget = 11 * 4'000'000 + 20'000'000; // of recomputing all without shares
  EXPECT_EQ(std::ranges::count(choose(problem).ways, Way::keep), 2);
  for (PartCost& part : problem.parts) {
    part.share_bytes = part.input_bytes;
  }
  EXPECT_EQ(std::ranges::count(choose(problem).ways, Way::keep), 1) << "the last one, which nothing lies behind";
}

// What is measured while the machine does something else.
TEST(ActivationChoice, PartsThatDoTheSameHaveTheMedianOfTheirTimes) {
  std::vector<PartCost> parts = equal_parts(5).parts;
  parts[1].forward = 90e-3;
  parts[3].backward = 1e-3;
  parts.push_back({7, 8, 8, 3e-3, 6e-3});
  parts.push_back(parts[0]);
  parts.back().forward = 11e-3; // of another class
  even_out(parts, {0, 0, 0, 0, 0, 0, 1});
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(parts[i].forward, 10e-3) << i;
    EXPECT_EQ(parts[i].backward, 20e-3) << i;
  }
  EXPECT_EQ(parts[5].forward, 3e-3);
  EXPECT_EQ(parts[6].forward, 11e-3);
}

// Between its forward and its backward lie head and loss, and it need not come back: it is still there.
TEST(ActivationChoice, TheLastPartLeavesBehindTheHead) {
  Problem problem = equal_parts(2);
  EXPECT_DOUBLE_EQ(judge(problem, {Way::keep, Way::nvme}).seconds, 68'000'000 / 3e9);
  problem.after_last = 20e-3;
  EXPECT_NEAR(judge(problem, {Way::keep, Way::nvme}).seconds, 68'000'000 / 3e9 - 20e-3, 1e-12);
  problem.after_last = 1;
  EXPECT_EQ(judge(problem, {Way::keep, Way::nvme}).seconds, 0);
}

TEST(ActivationChoice, SaysWhatLeastMemoryIsWhereNothingFits) {
  Problem problem = equal_parts(4);
  problem.allowed = {Way::keep, Way::recompute};
  problem.budget = 10'000'000;
  const Choice choice = choose(problem);
  EXPECT_FALSE(choice.fits);
  EXPECT_EQ(to_words(choice.ways), std::vector<std::string>{"4*recompute"});
  EXPECT_EQ(choice.bytes, 3 * 4'000'000 + 68'000'000);
}

// More parts than any model has, all different: no exhaustive search, and within what some uniform choice costs.
TEST(ActivationChoice, CopesWithManyDifferentParts) {
  std::mt19937 random(5);
  Problem problem = random_problem(random, 120);
  problem.in_flight = 1;
  int64_t all = 0;
  for (PartCost& part : problem.parts) {
    part.bytes += static_cast<int64_t>(random() % 1000);
    all += part.bytes + part.input_bytes;
  }
  problem.budget = all / 2;
  const Choice found = choose(problem);
  ASSERT_TRUE(found.fits);
  for (const Way way : kWays) {
    const Choice uniform = judge(problem, std::vector<Way>(problem.parts.size(), way));
    EXPECT_TRUE(!uniform.fits || found.seconds <= uniform.seconds) << name_of(way);
  }
}

TEST(ActivationWays, AreWrittenAndReadAsWords) {
  const std::vector<Way> ways = {Way::nvme, Way::nvme, Way::recompute, Way::keep, Way::keep, Way::recompute_host};
  EXPECT_THAT(to_words(ways), ElementsAre("2*nvme", "recompute", "2*keep", "recompute_host"));
  EXPECT_EQ(from_words(to_words(ways)), ways);
  for (const char* wrong : {"", "kept", "0*keep", "*keep", "x*keep", "2*", "2 * keep", "-1*keep", "100001*keep"}) {
    EXPECT_THROW(from_words({"keep", wrong}), InputError) << wrong;
  }
}

} // namespace
} // namespace trireme::activations
