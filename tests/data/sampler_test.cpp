#include <trireme/data/sampler.h>

#include "temporary_folder.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

DistributedSampler make(int64_t size, int64_t rank, int64_t replicas, bool shuffle, bool drop_last,
                        int64_t seed = 1234) {
  return DistributedSampler(
      size, {.shuffle = shuffle, .drop_last = drop_last, .seed = seed, .rank = rank, .replicas = replicas});
}

/// One global micro-batch: what all ranks take, in the order of the epoch's positions.
std::optional<std::vector<int64_t>> global_next(std::vector<DistributedSampler>& ranks, int64_t per_rank,
                                                int64_t* real = nullptr) {
  std::vector<int64_t> together(ranks.size() * static_cast<size_t>(per_rank), -1);
  size_t ended = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto mine = ranks[rank].next(per_rank);
    if (!mine) {
      ++ended;
      continue;
    }
    EXPECT_EQ(mine->indices.size(), static_cast<size_t>(per_rank));
    for (size_t k = 0; k < mine->indices.size(); ++k) {
      together[k * ranks.size() + rank] = mine->indices[k];
    }
    if (real != nullptr) {
      *real += mine->samples;
    }
  }
  EXPECT_TRUE(ended == 0 || ended == ranks.size()) << "some ranks ended before others";
  return ended == 0 ? std::optional(together) : std::nullopt;
}

std::vector<DistributedSampler> all_ranks(int64_t size, int64_t replicas, bool shuffle, bool drop_last, int64_t seed) {
  std::vector<DistributedSampler> ranks;
  for (int64_t rank = 0; rank < replicas; ++rank) {
    ranks.push_back(make(size, rank, replicas, shuffle, drop_last, seed));
  }
  return ranks;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<int64_t> counting(int64_t size) {
  std::vector<int64_t> values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(SamplerTest, RanksTakeTurnsWithinAGlobalMicroBatch) {
  auto rank1 = make(20, 1, 3, /*shuffle=*/false, /*drop_last=*/true);
  EXPECT_THAT(rank1.next(2)->indices, ElementsAre(1, 4));
  EXPECT_THAT(rank1.next(2)->indices, ElementsAre(7, 10));
  EXPECT_EQ(rank1.position(), 12);
  EXPECT_THAT(rank1.next(2)->indices, ElementsAre(13, 16));
  EXPECT_FALSE(rank1.next(2).has_value()); // 18, 19 are left: dropped
}

TEST(SamplerTest, PaddingWrapsAroundAndSaysWhatIsReal) {
  auto rank0 = make(5, 0, 2, false, /*drop_last=*/false);
  auto rank1 = make(5, 1, 2, false, false);
  rank0.next(2);
  rank1.next(2);
  const auto last0 = rank0.next(2);
  const auto last1 = rank1.next(2);
  EXPECT_THAT(last0->indices, ElementsAre(4, 1));
  EXPECT_EQ(last0->samples, 1);
  EXPECT_THAT(last1->indices, ElementsAre(0, 2));
  EXPECT_EQ(last1->samples, 0);
  EXPECT_FALSE(rank0.next(2));
  EXPECT_EQ(rank0.position(), 5);
}

TEST(SamplerTest, PaddingWrapsSeveralTimesWhenSamplesAreFew) {
  auto rank = make(2, 1, 2, false, false);
  const auto only = rank.next(3);
  EXPECT_THAT(only->indices, ElementsAre(1, 1, 1));
  EXPECT_EQ(only->samples, 1);
}

TEST(SamplerTest, AnEpochIsEverySampleOnceForAnyLayout) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 400; ++trial) {
    const int64_t size = 1 + static_cast<int64_t>(random() % 97);
    const int64_t replicas = 1 + static_cast<int64_t>(random() % 5);
    const int64_t per_rank = 1 + static_cast<int64_t>(random() % 7);
    const bool shuffle = random() % 2 == 0;
    const bool drop_last = random() % 2 == 0;
    const int64_t seed = random();
    SCOPED_TRACE(testing::Message() << size << " samples, " << replicas << " x " << per_rank << " shuffle " << shuffle
                                    << " drop " << drop_last);
    auto ranks = all_ranks(size, replicas, shuffle, drop_last, seed);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      for (auto& rank : ranks) {
        rank.start_epoch(epoch);
      }
      const std::vector<int64_t> order = shuffle ? permutation(size, seed, epoch) : counting(size);
      std::vector<int64_t> seen;
      int64_t real = 0;
      int64_t batches = 0;
      while (const auto batch = global_next(ranks, per_rank, &real)) {
        seen.insert(seen.end(), batch->begin(), batch->end());
        ++batches;
      }
      EXPECT_EQ(batches, ranks[0].micro_batches_per_epoch(per_rank));
      EXPECT_EQ(ranks[0].micro_batches_left(per_rank), 0);
      const int64_t together = replicas * per_rank;
      const int64_t kept = drop_last ? size / together * together : size;
      EXPECT_EQ(real, kept);
      ASSERT_GE(static_cast<int64_t>(seen.size()), kept);
      for (size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i], order[i % order.size()]);
      }
      EXPECT_EQ(seen.size(), drop_last ? static_cast<size_t>(kept)
                                       : static_cast<size_t>((size + together - 1) / together * together));
    }
  }
}

TEST(SamplerTest, OtherNumbersOfRanksContinueWithoutRepeatOrGap) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t size = 30 + static_cast<int64_t>(random() % 300);
    const int64_t seed = random();
    nlohmann::json state;
    std::vector<int64_t> seen;
    for (bool ended = false; !ended;) {
      const int64_t replicas = 1 + static_cast<int64_t>(random() % 5);
      const int64_t per_rank = 1 + static_cast<int64_t>(random() % 4);
      auto ranks = all_ranks(size, replicas, /*shuffle=*/true, /*drop_last=*/false, seed);
      for (auto& rank : ranks) {
        if (!state.is_null()) {
          rank.load_state(state);
        }
      }
      for (int i = static_cast<int>(random() % 4); i >= 0 && !ended; --i) {
        int64_t real = 0;
        auto batch = global_next(ranks, per_rank, &real);
        ended = !batch;
        if (batch) {
          seen.insert(seen.end(), batch->begin(), batch->begin() + real);
        }
      }
      for (const auto& rank : ranks) {
        EXPECT_EQ(rank.state(), ranks[0].state());
      }
      state = nlohmann::json::parse(ranks[0].state().dump());
    }
    EXPECT_EQ(seen, permutation(size, seed, 0));
  }
}

// Values of permutation_reference.py: another machine or library must not change an old run's order.
TEST(SamplerTest, PermutationIsTheSameOnAllPlatforms) {
  EXPECT_THAT(permutation(10, 1234, 0), ElementsAre(3, 0, 9, 1, 4, 2, 5, 6, 7, 8));
  EXPECT_THAT(permutation(10, 1234, 1), ElementsAre(6, 5, 8, 2, 3, 0, 1, 9, 7, 4));
  EXPECT_THAT(permutation(10, -5, int64_t{1} << 40), ElementsAre(6, 5, 7, 1, 9, 2, 0, 4, 8, 3));
  const auto large = permutation(1000, 7, 3);
  int64_t sum = 0;
  for (size_t i = 0; i < large.size(); ++i) {
    sum += static_cast<int64_t>(i) * large[i];
  }
  EXPECT_EQ(sum, 251208413);
  EXPECT_EQ(sorted(large), counting(1000));
}

TEST(SamplerTest, EveryOrderIsEquallyLikely) {
  std::map<std::vector<int64_t>, int> found;
  constexpr int kDraws = 24000;
  for (int epoch = 0; epoch < kDraws; ++epoch) {
    ++found[permutation(4, 99, epoch)];
  }
  EXPECT_EQ(found.size(), 24u);
  double chi_squared = 0;
  for (const auto& [order, count] : found) {
    chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  }
  EXPECT_LT(chi_squared, 49.7); // 23 degrees of freedom: exceeded once in 1000 seeds
}

TEST(SamplerTest, SeedAndEpochChangeTheOrder) {
  const auto order = permutation(100, 1, 0);
  EXPECT_NE(order, permutation(100, 2, 0));
  EXPECT_NE(order, permutation(100, 1, 1));
  EXPECT_NE(permutation(100, 0, 1), permutation(100, 1, 0));
  EXPECT_TRUE(permutation(0, 1, 0).empty());
}

TEST(SamplerTest, StartEpochGoesBackToo) {
  auto sampler = make(50, 0, 1, true, true);
  const auto first = sampler.next(5)->indices;
  sampler.start_epoch(1);
  EXPECT_NE(sampler.next(5)->indices, first);
  sampler.start_epoch(0);
  EXPECT_EQ(sampler.next(5)->indices, first);
}

TEST(SamplerTest, ForeignStatesAreRefusedSayingWhy) {
  auto sampler = make(100, 0, 2, true, true);
  sampler.next(3);
  const auto good = sampler.state();
  const auto refused = [&](const nlohmann::json& state) { return input_error([&] { sampler.load_state(state); }); };
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto state = good;
    state[key] = value;
    return refused(state);
  };
  EXPECT_THAT(refused(make(99, 0, 2, true, true).state()),
              AllOf(HasSubstr("dataset size of 99"), HasSubstr("has 100")));
  EXPECT_THAT(refused(make(100, 0, 2, true, true, 5).state()), AllOf(HasSubstr("seed 5"), HasSubstr("1234")));
  EXPECT_THAT(refused(make(100, 0, 2, false, true).state()), HasSubstr("shuffle: false, this run has true"));
  EXPECT_THAT(with("position", 101), HasSubstr("sample 101"));
  EXPECT_THAT(with("position", -1), HasSubstr("sample -1"));
  EXPECT_THAT(with("epoch", -1), HasSubstr("epoch -1"));
  EXPECT_THAT(with("position", "3"), HasSubstr("\"position\""));
  EXPECT_THAT(with("kind", "other"), HasSubstr("not written by this sampler"));
  EXPECT_THAT(refused(nullptr), HasSubstr("not written by this sampler"));
  EXPECT_THAT(refused(nlohmann::json::object()), HasSubstr("\"kind\""));
  EXPECT_EQ(sampler.state(), good); // nothing half-loaded
  EXPECT_EQ(refused(make(100, 0, 1, true, false).state()), "");
}

TEST(SamplerTest, AnUnshuffledOrderDoesNotDependOnTheSeed) {
  auto sampler = make(100, 0, 1, false, true, 1);
  EXPECT_NO_THROW(sampler.load_state(make(100, 0, 1, false, true, 2).state()));
}

TEST(SamplerTest, BadLayoutsAreTheUsersInput) {
  EXPECT_THROW(make(0, 0, 1, true, true), InputError);
  EXPECT_THROW(make(5, 2, 2, true, true), InputError);
  EXPECT_THROW(make(5, -1, 2, true, true), InputError);
  EXPECT_THROW(make(5, 0, 0, true, true), InputError);
  EXPECT_THROW(make(5, 0, 1, true, true).next(0), InputError);
  EXPECT_THROW(make(5, 0, 1, true, true).next(int64_t{1} << 62), InputError);
}

TEST(OwnOrderTest, IsSharedOutAndResumedByAnyNumberOfRanks) {
  const auto order = [](int64_t epoch) { return std::vector<int64_t>{9, 4, 4, 7, epoch, 0, 1}; };
  const auto make_own = [&](int64_t rank, int64_t replicas, bool drop_last = true) {
    return DistributedSampler(10, {.drop_last = drop_last, .rank = rank, .replicas = replicas, .order = order});
  };
  std::vector<DistributedSampler> ranks = {make_own(0, 2), make_own(1, 2)};
  EXPECT_EQ(ranks[0].micro_batches_per_epoch(1), 3);
  EXPECT_THAT(global_next(ranks, 1).value(), ElementsAre(9, 4));
  DistributedSampler alone = make_own(0, 1, false);
  alone.load_state(ranks[1].state());
  EXPECT_EQ(alone.state(), ranks[0].state());
  EXPECT_THAT(alone.next(3)->indices, ElementsAre(4, 7, 0));
  const auto last = alone.next(3);
  EXPECT_THAT(last->indices, ElementsAre(0, 1, 9)) << "padded from the epoch's start";
  EXPECT_EQ(last->samples, 2);
  EXPECT_FALSE(alone.next(3));
  alone.start_epoch(5);
  EXPECT_THAT(alone.next(5)->indices, ElementsAre(9, 4, 4, 7, 5));

  const auto before = alone.state();
  auto other = before;
  other["order"] = 1;
  EXPECT_THAT(input_error([&] { alone.load_state(other); }), HasSubstr("another order of epoch 5"));
  EXPECT_THAT(input_error([&] { alone.load_state(DistributedSampler(10).state()); }),
              HasSubstr("order: the sampler's, this run has the program's own"));
  EXPECT_THAT(input_error([&] { DistributedSampler(10).load_state(before); }),
              HasSubstr("order: the program's own, this run has the sampler's"));
  EXPECT_EQ(alone.state(), before);
  EXPECT_THAT(input_error([&] { alone.start_epoch(10); }),
              HasSubstr("the program's own order of epoch 10 has sample 10 at index 4"));
  EXPECT_EQ(alone.state(), before);
}

} // namespace
} // namespace trireme::data
