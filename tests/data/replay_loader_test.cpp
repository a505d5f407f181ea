#include <trireme/data/from_torch_loader.h>
#include <trireme/data/replay_loader.h>
#include <trireme/data/torch_sampler.h>

#include <trireme/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>
#include <nlohmann/json.hpp>

namespace trireme::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// `batches` batches of an epoch; batch b of epoch e holds 100 e + b.
ReplayLoader::Begin counted_batches(int64_t batches, int* begun = nullptr, int64_t rows = 2) {
  return [=](int64_t epoch) {
    if (begun != nullptr) {
      ++*begun;
    }
    return [=, b = int64_t{0}]() mutable -> std::optional<Batch> {
      if (b == batches) {
        return std::nullopt;
      }
      return Batch{{at::full({rows, 1}, 100 * epoch + b++)}, {}, 0};
    };
  };
}

RepeatingLoader repeating(ReplayLoader::Begin begin, bool compares = true) {
  return RepeatingLoader(std::make_unique<ReplayLoader>(std::move(begin), "numbers", compares));
}

std::vector<int64_t> read(RepeatingLoader& loader, int count) {
  std::vector<int64_t> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(loader.next().input()[0][0].item<int64_t>());
  }
  return out;
}

template <typename F>
std::string input_error_of(const F& f) {
  try {
    f();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(ReplayLoaderTest, StartsAnewWhenTheSourceEnds) {
  int begun = 0;
  RepeatingLoader loader = repeating(counted_batches(3, &begun));
  EXPECT_THAT(read(loader, 7), ElementsAre(0, 1, 2, 100, 101, 102, 200));
  EXPECT_EQ(begun, 3);
  EXPECT_EQ(loader.epoch(), 2);
  EXPECT_EQ(loader.next().samples, 2) << "all rows are real";
}

TEST(ReplayLoaderTest, ALoadReadsTheBegunEpochAgainAndNoOther) {
  RepeatingLoader loader = repeating(counted_batches(3));
  read(loader, 8); // epoch 2, after batch 1
  loader.skip();   // batch 2
  const nlohmann::json state = loader.state();
  int begun = 0;
  RepeatingLoader resumed = repeating(counted_batches(3, &begun));
  resumed.load_state(state);
  EXPECT_EQ(begun, 1);
  EXPECT_THAT(read(resumed, 3), ElementsAre(300, 301, 302));
  resumed.load_state(state); // also back from elsewhere
  EXPECT_THAT(read(resumed, 1), ElementsAre(300));
}

TEST(ReplayLoaderTest, OtherBatchesThanBeforeAreRefusedByTheRankThatSaved) {
  RepeatingLoader loader = repeating(counted_batches(5));
  read(loader, 4);
  const nlohmann::json state = loader.state();
  const auto others = [](int64_t) {
    return [b = int64_t{50}]() mutable -> std::optional<Batch> { return Batch{{at::full({2, 1}, b++)}, {}, 0}; };
  };
  EXPECT_THAT(input_error_of([&] { repeating(others).load_state(state); }),
              HasSubstr("batch 3 of epoch 0 of \"numbers\" is another one than before the checkpoint"));
  repeating(others, /*compares=*/false).load_state(state); // another rank's batches
  EXPECT_THAT(input_error_of([&] { repeating(counted_batches(2)).load_state(state); }),
              HasSubstr("is after batch 4 of epoch 0, and \"numbers\" now has 2 of them"));
}

TEST(ReplayLoaderTest, EmptyEpochsAndUnevenBatchesAreRefused) {
  EXPECT_THAT(input_error_of([] { repeating(counted_batches(0)).next(); }),
              HasSubstr("epoch 0 of \"numbers\" has no batch"));
  const auto uneven = [](int64_t) {
    return [rows = int64_t{3}]() mutable -> std::optional<Batch> { return Batch{{at::full({rows--, 1}, 1)}, {}, 0}; };
  };
  RepeatingLoader loader = repeating(uneven);
  loader.next();
  EXPECT_THAT(input_error_of([&] { loader.next(); }), HasSubstr("has 2 rows, the others have 3"));
  EXPECT_THAT(input_error_of([] { repeating(nullptr); }), HasSubstr("no function"));
}

std::unique_ptr<EpochLoader> torch_loader(int64_t rank, size_t workers, int64_t samples = 22) {
  TorchSampler sampler(samples, rank, 2);
  auto set = torch::data::datasets::TensorDataset(at::arange(samples).unsqueeze(1))
                 .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto loader = torch::data::make_data_loader(std::move(set), sampler,
                                              torch::data::DataLoaderOptions(2).workers(workers).drop_last(true));
  return from_torch_loader(std::move(loader),
                           {.set_epoch = [sampler](int64_t epoch) mutable { sampler.set_epoch(epoch); }, .rank = rank});
}

TEST(FromTorchLoaderTest, GoesOnWhereItWas) {
  for (const size_t workers : {0u, 2u}) {
    for (const int64_t rank : {0, 1}) {
      RepeatingLoader whole(torch_loader(rank, workers)); // 11 samples of this rank: 5 batches of an epoch
      const std::vector<int64_t> first = read(whole, 8);
      const nlohmann::json state = whole.state();
      const std::vector<int64_t> rest = read(whole, 9);
      EXPECT_NE(std::vector(first.begin(), first.begin() + 3), std::vector(first.begin() + 5, first.end()))
          << "each epoch has its own order";
      RepeatingLoader resumed(torch_loader(rank, workers));
      resumed.load_state(state);
      EXPECT_EQ(read(resumed, 9), rest) << workers << " workers, rank " << rank;
      whole.load_state(state); // in the middle of a pass
      EXPECT_EQ(read(whole, 9), rest) << workers << " workers, rank " << rank;
    }
  }
}

// torch's RandomSampler draws each order from the generator: what it gave before cannot be repeated.
TEST(FromTorchLoaderTest, ASamplerThatDrawsANewOrderIsNoticed) {
  const auto random = [] {
    auto set = torch::data::datasets::TensorDataset(at::arange(64).unsqueeze(1))
                   .map(torch::data::transforms::Stack<torch::data::TensorExample>());
    return from_torch_loader(torch::data::make_data_loader(std::move(set), torch::data::samplers::RandomSampler(64),
                                                           torch::data::DataLoaderOptions(4).workers(0)));
  };
  RepeatingLoader loader(random());
  read(loader, 5);
  RepeatingLoader resumed(random());
  EXPECT_THAT(input_error_of([&] { resumed.load_state(loader.state()); }), HasSubstr("torch's RandomSampler"));
}

} // namespace
} // namespace trireme::data
