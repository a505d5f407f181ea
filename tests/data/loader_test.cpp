#include <trireme/data/collate.h>
#include <trireme/data/loader.h>

#include "temporary_folder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Sample i is {100 + i} with target {i}; can fail and can be held up.
class CountingDataset : public Dataset {
 public:
  explicit CountingDataset(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Batch get(std::span<const int64_t> indices) const override {
    ++calls;
    for (const int64_t index : indices) {
      if (index == bad_sample) {
        throw InputError("data", concat("sample ", index, " is damaged"));
      }
    }
    const auto rows = static_cast<int64_t>(indices.size());
    auto input = at::empty({rows + extra_rows, 1}, at::kLong);
    auto target = at::empty({rows}, at::kLong);
    for (int64_t i = 0; i < rows; ++i) {
      input.mutable_data_ptr<int64_t>()[i] = 100 + indices[static_cast<size_t>(i)];
      target.mutable_data_ptr<int64_t>()[i] = indices[static_cast<size_t>(i)];
    }
    return {{input}, {target}, rows};
  }
  std::string describe() const override { return "counting"; }
  mutable std::atomic<int> calls = 0;
  std::atomic<int64_t> bad_sample = -1;
  int64_t extra_rows = 0;

 private:
  int64_t size_;
};

std::vector<int64_t> values(const at::Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<int64_t>();
  return {data, data + tensor.numel()};
}

DataLoader make(std::shared_ptr<const Dataset> dataset, int64_t micro_batch, int64_t prefetch,
                SamplerOptions options = {}) {
  const int64_t size = dataset->size();
  return DataLoader(std::move(dataset), DistributedSampler(size, options), micro_batch, prefetch);
}

/// Waits until the dataset was asked `calls` times, and a little for what comes of it.
void wait_for_calls(const CountingDataset& dataset, int calls) {
  for (int i = 0; i < 2000 && dataset.calls < calls; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(dataset.calls, calls);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
}

class LoaderTest : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Prefetch, LoaderTest, testing::Values(0, 1, 2, 7));

TEST_P(LoaderTest, EqualsDirectIndexing) {
  const auto dataset = std::make_shared<CountingDataset>(23);
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (const bool drop_last : {true, false}) {
      const SamplerOptions options{.drop_last = drop_last, .rank = rank, .replicas = 2};
      auto loader = make(dataset, 3, GetParam(), options);
      DistributedSampler sampler(23, options);
      EXPECT_EQ(loader.batches_per_epoch(), drop_last ? 3 : 4);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        loader.start_epoch(epoch);
        sampler.start_epoch(epoch);
        while (const auto expected = sampler.next(3)) {
          const auto batch = loader.next();
          ASSERT_TRUE(batch.has_value());
          EXPECT_EQ(values(batch->target()), expected->indices);
          EXPECT_EQ(values(batch->input()), values(batch->target() + 100));
          EXPECT_EQ(batch->samples, expected->samples);
          EXPECT_EQ(loader.state(), sampler.state());
        }
        EXPECT_FALSE(loader.next().has_value());
        EXPECT_FALSE(loader.next().has_value());
        EXPECT_EQ(loader.batches_left(), 0);
      }
    }
  }
}

// Stages of different versions compare these numbers.
TEST_P(LoaderTest, FingerprintsAreFnv1aOfTheSamples) {
  auto loader = make(std::make_shared<CountingDataset>(4), 2, GetParam(), {.shuffle = false});
  EXPECT_EQ(loader.next()->fingerprint, 11126444148914698057u);
}

TEST_P(LoaderTest, StateIsWhatWasHandedOutAndResumesThere) {
  const auto dataset = std::make_shared<CountingDataset>(40);
  auto loader = make(dataset, 4, GetParam());
  for (int i = 0; i < 3; ++i) {
    loader.next();
  }
  if (GetParam() > 1) { // the thread is ahead, as it is in a real run
    wait_for_calls(*dataset, 4);
  }
  const auto state = loader.state();
  EXPECT_EQ(state["position"], 12);
  auto resumed = make(dataset, 4, GetParam());
  resumed.next();
  resumed.load_state(state);
  for (auto expected = loader.next(); expected; expected = loader.next()) {
    const auto batch = resumed.next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(values(batch->target()), values(expected->target()));
  }
  EXPECT_FALSE(resumed.next().has_value());
}

TEST_P(LoaderTest, AnEpochCanBeLeftInTheMiddle) {
  const auto dataset = std::make_shared<CountingDataset>(12);
  auto loader = make(dataset, 4, GetParam());
  loader.next();
  for (const int64_t epoch : {1, 1, 0}) {
    loader.start_epoch(epoch);
    const auto order = permutation(12, SamplerOptions{}.seed, epoch);
    EXPECT_EQ(values(loader.next()->target()), std::vector<int64_t>(order.begin(), order.begin() + 4));
  }
}

TEST_P(LoaderTest, ResumesInTheMiddleWithAnotherNumberOfRanks) {
  const auto dataset = std::make_shared<CountingDataset>(24);
  auto before = make(dataset, 2, GetParam(), {.rank = 0, .replicas = 3});
  before.next();
  before.next(); // 12 of 24 samples are gone
  std::vector<int64_t> rest;
  for (int64_t rank = 0; rank < 2; ++rank) {
    auto after = make(dataset, 3, GetParam(), {.rank = rank, .replicas = 2});
    after.load_state(before.state());
    while (const auto batch = after.next()) {
      const auto mine = values(batch->target());
      rest.insert(rest.end(), mine.begin(), mine.end());
    }
  }
  const auto order = permutation(24, SamplerOptions{}.seed, 0);
  EXPECT_THAT(rest, testing::UnorderedElementsAreArray(order.begin() + 12, order.end()));
}

TEST_P(LoaderTest, AFailureSurfacesWhereItBelongsAndCanBeTriedAgain) {
  const auto dataset = std::make_shared<CountingDataset>(12);
  dataset->bad_sample = 5;
  auto loader = make(dataset, 2, GetParam(), {.shuffle = false});
  EXPECT_EQ(values(loader.next()->target()), (std::vector<int64_t>{0, 1}));
  if (GetParam() > 1) { // the thread has failed already while a good micro-batch is still to be handed out
    wait_for_calls(*dataset, 3);
  }
  EXPECT_EQ(values(loader.next()->target()), (std::vector<int64_t>{2, 3}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(input_error([&] { loader.next(); }), HasSubstr("sample 5 is damaged"));
    EXPECT_EQ(loader.state()["position"], 4);
  }
  dataset->bad_sample = -1;
  EXPECT_EQ(values(loader.next()->target()), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(values(loader.next()->target()), (std::vector<int64_t>{6, 7}));
}

TEST_P(LoaderTest, AWrongNumberOfRowsIsTheDatasetsFault) {
  const auto dataset = std::make_shared<CountingDataset>(12);
  dataset->extra_rows = 1;
  auto loader = make(dataset, 2, GetParam());
  EXPECT_THROW(loader.next(), Error);
}

TEST_P(LoaderTest, MovesWithItsThreadRunning) {
  const auto dataset = std::make_shared<CountingDataset>(12);
  auto first = make(dataset, 2, GetParam(), {.shuffle = false});
  first.next();
  DataLoader second = std::move(first);
  EXPECT_EQ(values(second.next()->target()), (std::vector<int64_t>{2, 3}));
  second = make(dataset, 3, GetParam(), {.shuffle = false});
  EXPECT_EQ(values(second.next()->target()), (std::vector<int64_t>{0, 1, 2}));
}

TEST_P(LoaderTest, RepeatingGoesOnWithTheNextEpochsOrder) {
  const auto dataset = std::make_shared<CountingDataset>(7);
  RepeatingLoader loader(make(dataset, 2, GetParam()));
  std::vector<int64_t> seen;
  for (int i = 0; i < 9; ++i) {
    const auto mine = values(loader.next().target());
    seen.insert(seen.end(), mine.begin(), mine.end());
  }
  EXPECT_EQ(loader.epoch(), 2);
  std::vector<int64_t> expected;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto order = permutation(7, SamplerOptions{}.seed, epoch);
    expected.insert(expected.end(), order.begin(), order.begin() + 6);
  }
  EXPECT_EQ(seen, expected);

  RepeatingLoader resumed(make(dataset, 2, GetParam()));
  resumed.load_state(loader.state());
  EXPECT_EQ(values(resumed.next().target()), values(loader.next().target()));
}

TEST_P(LoaderTest, RepeatingRefusesAnEpochWithoutAMicroBatch) {
  const auto dataset = std::make_shared<CountingDataset>(7);
  const auto message = input_error([&] { RepeatingLoader(make(dataset, 4, GetParam(), {.replicas = 2})); });
  EXPECT_THAT(message, AllOf(HasSubstr("7 samples"), HasSubstr("4 * 2 = 8")));
  RepeatingLoader padded(make(dataset, 4, GetParam(), {.drop_last = false, .replicas = 2}));
  EXPECT_EQ(padded.next().samples, 4);
}

/// Sample i has i + 1 numbers, which only a collate function can put together.
class UnevenDataset : public CountingDataset {
 public:
  using CountingDataset::CountingDataset;
  Batch get(std::span<const int64_t> indices) const override {
    EXPECT_EQ(indices.size(), 1u);
    return {{at::full({1, indices[0] + 1}, 1, at::kLong)}, {at::full({1}, indices[0], at::kLong)}, 1};
  }
};

TEST_P(LoaderTest, ACollateFunctionMakesTheMicroBatches) {
  const auto padded = [](std::vector<Batch> samples) {
    Batch batch{{at::zeros({std::ssize(samples), 12}, at::kLong)}, {at::zeros({std::ssize(samples)}, at::kLong)}};
    for (int64_t i = 0; i < std::ssize(samples); ++i) {
      batch.inputs[0][i].slice(0, 0, samples[i].input().size(1)).copy_(samples[i].input()[0]);
      batch.targets[0][i] = samples[i].target()[0];
    }
    return batch;
  };
  const auto dataset = collated(std::make_shared<UnevenDataset>(12), padded);
  auto loader = make(dataset, 5, GetParam(), {.drop_last = false});
  DistributedSampler sampler(12, {.drop_last = false});
  while (const auto expected = sampler.next(5)) {
    const auto batch = loader.next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(values(batch->target()), expected->indices);
    EXPECT_EQ(values(batch->input().sum(1)), values(batch->target() + 1));
    EXPECT_EQ(batch->samples, expected->samples);
  }
  DataLoader targets(dataset, DistributedSampler(12), 4, GetParam(), Part::targets);
  EXPECT_TRUE(targets.next()->inputs.empty());
  auto wrong =
      make(collated(std::make_shared<UnevenDataset>(12), [](std::vector<Batch> samples) { return samples[0]; }), 5,
           GetParam());
  EXPECT_THROW(wrong.next(), Error);
}

/// Holds `get` until told to go on.
class GatedDataset : public CountingDataset {
 public:
  using CountingDataset::CountingDataset;
  Batch get(std::span<const int64_t> indices) const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
    return CountingDataset::get(indices);
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool open_ = false;
};

TEST(LoaderThreadTest, MakesNoMoreThanPrefetchAhead) {
  const auto dataset = std::make_shared<CountingDataset>(1000);
  auto loader = make(dataset, 1, 3);
  EXPECT_EQ(dataset->calls, 0); // nothing before the first next()
  loader.next();
  wait_for_calls(*dataset, 4);
  EXPECT_EQ(dataset->calls, 4);
}

TEST(LoaderThreadTest, DestructionWaitsForOneGetOnly) {
  const auto dataset = std::make_shared<GatedDataset>(1000);
  {
    auto loader = make(dataset, 1, 2);
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      dataset->open();
    });
    loader.next();
    opener.join();
  }
  EXPECT_LE(dataset->calls, 4); // one handed out, two ready, one under way
  EXPECT_EQ(dataset.use_count(), 1);
}

TEST(LoaderThreadTest, BadArgumentsAreTheUsersInput) {
  const auto dataset = std::make_shared<CountingDataset>(10);
  EXPECT_THROW(make(dataset, 0, 2), InputError);
  EXPECT_THROW(make(dataset, 1, -1), InputError);
  EXPECT_THROW(DataLoader(nullptr, DistributedSampler(10), 1), InputError);
  EXPECT_THAT(input_error([&] { DataLoader(dataset, DistributedSampler(11), 1); }),
              AllOf(HasSubstr("11"), HasSubstr("10")));
  auto loader = make(dataset, 1, 2);
  auto other = make(std::make_shared<CountingDataset>(11), 1, 2);
  loader.next();
  EXPECT_THROW(loader.load_state(other.state()), InputError);
  EXPECT_EQ(loader.state()["position"], 1);
}

} // namespace
} // namespace trireme::data
