#include <trireme/data/mixture.h>

#include "temporary_folder.h"

#include <trireme/data/loader.h>
#include <trireme/data/sampler.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <zlib.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Sample i is {1000 * set + i} with target {i}.
class Numbered : public Dataset {
 public:
  Numbered(int64_t set, int64_t size, int64_t width = 1) : set_(set), size_(size), width_(width) {}
  int64_t size() const override { return size_; }
  Batch get(std::span<const int64_t> indices) const override {
    const auto rows = std::ssize(indices);
    const at::Tensor input = at::empty({rows, width_}, at::kLong);
    const at::Tensor target = at::empty({rows}, at::kLong);
    for (int64_t i = 0; i < rows; ++i) {
      input[i].fill_(1000 * set_ + indices[static_cast<size_t>(i)]);
      target[i].fill_(indices[static_cast<size_t>(i)]);
    }
    return {{input}, {target}, rows};
  }
  std::string describe() const override { return concat("set ", set_); }

 private:
  int64_t set_;
  int64_t size_;
  int64_t width_;
};

std::shared_ptr<const Mixture> mixture_of(const std::vector<std::pair<int64_t, double>>& sizes_and_weights,
                                          Mixture::Order order = {}) {
  std::vector<Mixture::Set> sets;
  for (const auto& [size, weight] : sizes_and_weights) {
    const auto number = std::ssize(sets);
    sets.push_back({std::make_shared<Numbered>(number, size), weight, concat("set ", number)});
  }
  return std::make_shared<Mixture>(std::move(sets), order);
}

// The numbers of mixture_reference.py.
TEST(MixtureOrderTest, IsMegatrons) {
  const std::vector<std::pair<std::vector<double>, uint64_t>> all = {
      {{0.7, 0.3}, 0x64d7d0cf},       {{1, 1}, 0xc16394c},
      {{0.7, 0.2, 0.1}, 0x59f0aaf0},  {{3, 1, 4, 1, 5, 9, 2, 6}, 0x276105ed},
      {{1000, 1, 0.001}, 0x8bb10315}, {{5}, 0x987885dd},
  };
  for (const auto& [weights, expected] : all) {
    const MixtureOrder order(weights);
    std::string choices;
    for (int64_t sample = 0; sample < 150'000; ++sample) {
      choices += static_cast<char>(order.at(sample).set);
    }
    EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>(choices.data()), static_cast<uInt>(choices.size())), expected)
        << testing::PrintToString(weights);
  }
  EXPECT_EQ(MixtureOrder({0.7, 0.3}).at(0).set, 0u);
}

TEST(MixtureOrderTest, SharesHoldAtEveryPrefix) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<double> weights(1 + random() % 8);
    for (double& weight : weights) {
      weight = 0.01 + static_cast<double>(random() % 1000);
    }
    const MixtureOrder order(weights);
    std::vector<int64_t> counts(weights.size());
    for (int64_t sample = 0; sample < 5000; ++sample) {
      const auto [set, number] = order.at(sample);
      EXPECT_EQ(number, counts[set]++);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double wanted = order.shares()[i] * static_cast<double>(sample + 1);
        ASSERT_LT(std::abs(static_cast<double>(counts[i]) - wanted), 2) << round << ' ' << sample << ' ' << i;
      }
    }
    EXPECT_EQ(order.counts(5000), counts);
  }
}

TEST(MixtureOrderTest, AnyPlaceIsFoundInAnyOrder) {
  const MixtureOrder forwards({0.55, 0.4, 0.05});
  std::map<int64_t, std::pair<size_t, int64_t>> known;
  for (int64_t sample = 0; sample < 400'000; ++sample) {
    const auto place = forwards.at(sample);
    if (sample % 9973 == 0) {
      known[sample] = {place.set, place.number};
    }
  }
  const MixtureOrder order({0.55, 0.4, 0.05});
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (auto at = known.rbegin(); at != known.rend(); ++at) {
        const auto place = order.at(at->first);
        EXPECT_EQ(std::pair(place.set, place.number), at->second) << at->first;
      }
    });
  }
}

TEST(MixtureOrderTest, BadWeightsAreErrors) {
  EXPECT_THAT(input_error([] { MixtureOrder({}); }), HasSubstr("no sets"));
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(input_error([&] { MixtureOrder({1.0, bad}); }), HasSubstr("must be above 0, got"));
  }
  EXPECT_THAT(input_error([] { MixtureOrder({1e308, 1e308}); }), HasSubstr("too large"));
}

TEST(MixtureTest, ASetThatIsReadBeginsAgainInAnotherOrder) {
  const auto mixture = mixture_of({{7, 1}, {1000, 3}});
  std::vector<std::vector<int64_t>> epochs;
  std::vector<int64_t> long_ones;
  for (int64_t i = 0; i < 7 * 4 * 3; ++i) {
    const auto [set, sample] = mixture->sample_at(i);
    if (set == 1) {
      long_ones.push_back(sample);
    } else if (epochs.empty() || epochs.back().size() == 7) {
      epochs.push_back({sample});
    } else {
      epochs.back().push_back(sample);
    }
  }
  ASSERT_EQ(epochs.size(), 3u);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (const auto& epoch : epochs) {
    EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 7u);
  }
  EXPECT_EQ(std::set<int64_t>(long_ones.begin(), long_ones.end()).size(), long_ones.size());
  EXPECT_FALSE(std::ranges::is_sorted(long_ones));
  EXPECT_EQ(mixture->describe_first(84), "25.0 % set 0 (3.00 epochs), 75.0 % set 1 (0.06 epochs)");
  EXPECT_EQ(mixture->describe(), "mixture: 25.0 % set 0; 75.0 % set 1");

  const auto in_order = mixture_of({{3, 1}, {1000, 1}}, {.shuffle = false});
  std::vector<int64_t> short_ones;
  for (int64_t i = 0; i < 16; ++i) {
    const auto [set, sample] = in_order->sample_at(i);
    if (set == 0) {
      short_ones.push_back(sample);
    }
  }
  EXPECT_THAT(short_ones, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
}

TEST(MixtureTest, BatchesHaveTheirRowsInOrder) {
  const auto mixture = mixture_of({{7, 1}, {50, 2}});
  const std::vector<int64_t> indices{30, 3, 4, 5, 31};
  const Batch batch = mixture->get(indices);
  ASSERT_EQ(batch.input().sizes(), (std::vector<int64_t>{5, 1}));
  for (size_t row = 0; row < indices.size(); ++row) {
    const auto [set, sample] = mixture->sample_at(indices[row]);
    EXPECT_EQ(batch.input()[static_cast<int64_t>(row)].item<int64_t>(), 1000 * static_cast<int64_t>(set) + sample);
    EXPECT_EQ(batch.target()[static_cast<int64_t>(row)].item<int64_t>(), sample);
  }
  EXPECT_TRUE(mixture->get_part(indices, Part::inputs).targets.empty());
  EXPECT_TRUE(at::equal(mixture->get_part(indices, Part::targets).target(), batch.target()));
}

std::vector<int64_t> read(DataLoader& loader, int batches) {
  std::vector<int64_t> inputs;
  for (int i = 0; i < batches; ++i) {
    const auto batch = loader.next();
    for (int64_t row = 0; row < batch->samples; ++row) {
      inputs.push_back(batch->input()[row].item<int64_t>());
    }
  }
  return inputs;
}

DataLoader loader_of(const std::shared_ptr<const Mixture>& mixture, int64_t per_rank, int64_t rank = 0,
                     int64_t replicas = 1) {
  return DataLoader(mixture,
                    DistributedSampler(mixture->size(), {.shuffle = false, .rank = rank, .replicas = replicas}),
                    per_rank, 2);
}

TEST(MixtureTest, AnyNumberOfRanksReadsTheSameSamples) {
  const std::vector<std::pair<int64_t, double>> sets = {{7, 0.2}, {50, 0.5}, {11, 0.3}};
  DataLoader alone = loader_of(mixture_of(sets), 12);
  const std::vector<int64_t> expected = read(alone, 10);
  DataLoader accumulating = loader_of(mixture_of(sets), 3);
  EXPECT_EQ(read(accumulating, 40), expected);
  std::vector<int64_t> of_two(expected.size());
  for (int64_t rank = 0; rank < 2; ++rank) {
    DataLoader loader = loader_of(mixture_of(sets), 6, rank, 2);
    const std::vector<int64_t> own = read(loader, 10);
    for (size_t i = 0; i < own.size(); ++i) {
      of_two[2 * i + static_cast<size_t>(rank)] = own[i];
    }
  }
  EXPECT_EQ(of_two, expected);
}

TEST(MixtureTest, GoesOnInTheMiddleOfTheSameMixtureOnly) {
  const std::vector<std::pair<int64_t, double>> sets = {{7, 0.25}, {50, 0.75}};
  DataLoader whole = loader_of(mixture_of(sets), 4);
  read(whole, 13);
  const nlohmann::json state = whole.state();
  const std::vector<int64_t> expected = read(whole, 9);
  DataLoader resumed = loader_of(mixture_of(sets), 2); // another micro-batch
  resumed.load_state(nlohmann::json::parse(state.dump()));
  EXPECT_EQ(read(resumed, 18), expected);

  const auto refused = [&](const std::shared_ptr<const Mixture>& other) {
    DataLoader loader = loader_of(other, 4);
    return input_error([&] { loader.load_state(state); });
  };
  EXPECT_EQ(refused(mixture_of(sets)), "");
  EXPECT_THAT(refused(mixture_of({{7, 0.2}, {50, 0.8}})), HasSubstr("is not one of mixture: 20.0 %"));
  EXPECT_THAT(refused(mixture_of({{8, 0.25}, {50, 0.75}})), HasSubstr("Use the same sets, weights and seed"));
  EXPECT_NE(refused(mixture_of(sets, {.seed = 5})), "");
  EXPECT_NE(refused(mixture_of(sets, {.shuffle = false})), "");
}

TEST(MixtureTest, SetsThatDoNotFitAreErrors) {
  const auto wide = std::make_shared<Numbered>(1, 10, 2);
  const auto narrow = std::make_shared<Numbered>(0, 10);
  EXPECT_THAT(input_error([&] { Mixture({{narrow, 1, "a"}, {wide, 1, "b"}}, {}); }),
              AllOf(HasSubstr("set 0"), HasSubstr("[1]"), HasSubstr("[2]")));
  EXPECT_THAT(input_error([&] { Mixture({{narrow, 1, "a"}, {std::make_shared<Numbered>(1, 0), 1, "b"}}, {}); }),
              HasSubstr("no samples"));
  EXPECT_THAT(input_error([&] { Mixture({}, {}); }), HasSubstr("no sets"));
}

TEST(ConcatenationTest, ReadsOneSetAfterTheOther) {
  const Concatenation all({std::make_shared<Numbered>(0, 3), std::make_shared<Numbered>(1, 2)});
  ASSERT_EQ(all.size(), 5);
  const Batch batch = all.get(std::vector<int64_t>{4, 0, 2, 3});
  std::vector<int64_t> inputs;
  for (int64_t row = 0; row < 4; ++row) {
    inputs.push_back(batch.input()[row].item<int64_t>());
  }
  EXPECT_THAT(inputs, ElementsAre(1001, 0, 2, 1000));
}

} // namespace
} // namespace trireme::data
