#include <trireme/data/torch_sampler.h>

#include "temporary_folder.h"

#include <gmock/gmock.h>

#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>

#include <sstream>

namespace trireme::data {
namespace {

using testing::HasSubstr;
using Batches = std::vector<std::vector<size_t>>;

// The rest of a pass, as a loader reads it.
Batches rest_of(TorchSampler& sampler) {
  Batches all;
  while (const auto batch = sampler.next(4)) {
    all.push_back(*batch);
  }
  return all;
}

// A pass from its begin: what a loader does at begin().
Batches pass_of(TorchSampler& sampler) {
  sampler.reset();
  return rest_of(sampler);
}

std::string saved(const TorchSampler& sampler) {
  torch::serialize::OutputArchive archive;
  sampler.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

void load(TorchSampler& sampler, const std::string& bytes) {
  std::istringstream in(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  sampler.load(archive);
}

TEST(TorchSamplerTest, GoesOnInTheMiddleOfAnEpoch) {
  TorchSampler whole(50, 1, 2);
  pass_of(whole);
  whole.reset();
  whole.next(4);
  whole.next(4);
  const std::string state = saved(whole);

  TorchSampler resumed(50, 1, 2);
  load(resumed, state);
  const Batches rest = pass_of(resumed);
  EXPECT_EQ(rest.size(), 4u);
  EXPECT_EQ(rest, rest_of(whole));
  EXPECT_EQ(pass_of(resumed), pass_of(whole)) << "the epoch after it";
}

TEST(TorchSamplerTest, GoesOnBetweenTwoEpochs) {
  TorchSampler whole(50, 0, 1);
  pass_of(whole);
  pass_of(whole);
  TorchSampler resumed(50, 0, 1);
  load(resumed, saved(whole));
  EXPECT_EQ(pass_of(resumed), pass_of(whole));

  TorchSampler fresh(50, 0, 1);
  TorchSampler first(50, 0, 1);
  load(first, saved(fresh)); // before the first pass
  EXPECT_EQ(pass_of(first), pass_of(fresh));
}

// As resumed by another number of ranks: the epoch has no gap and no repeat.
TEST(TorchSamplerTest, AnotherNumberOfRanksGoesOn) {
  TorchSampler before(40, 0, 2, {.shuffle = false});
  before.reset();
  before.next(4); // samples 0 to 7 of all ranks
  TorchSampler after(40, 0, 1, {.shuffle = false});
  load(after, saved(before));
  EXPECT_EQ(pass_of(after).front(), (std::vector<size_t>{8, 9, 10, 11}));
}

// The numbers of its samples.
class Numbers : public torch::data::datasets::Dataset<Numbers, int64_t> {
 public:
  int64_t get(size_t index) override { return static_cast<int64_t>(index); }
  std::optional<size_t> size() const override { return 50; }
};

// A loader that reads by a copy of the sampler.
auto loader_by(const TorchSampler& sampler) {
  return torch::data::make_data_loader(Numbers(), sampler, 4);
}

template <typename Loader>
std::vector<int64_t> samples_of(Loader& loader) {
  std::vector<int64_t> all;
  for (const auto& batch : loader) {
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

TEST(TorchSamplerTest, SavesAndLoadsThePlaceOfTheLoaderThatHasACopy) {
  TorchSampler whole(50, 1, 2);
  const auto loader = loader_by(whole);
  samples_of(*loader);
  std::vector<int64_t> rest;
  std::string state;
  int batches = 0;
  for (const auto& batch : *loader) {
    if (++batches == 2) {
      state = saved(whole);
    } else if (batches > 2) {
      rest.insert(rest.end(), batch.begin(), batch.end());
    }
  }

  TorchSampler resumed(50, 1, 2);
  const auto other = loader_by(resumed); // before the load
  load(resumed, state);
  EXPECT_EQ(samples_of(*other), rest);
  EXPECT_EQ(rest.size(), 16u);
  EXPECT_EQ(samples_of(*other), samples_of(*loader)) << "the epoch after it";
}

TEST(TorchSamplerTest, AMovedOneStillHasThePlace) {
  TorchSampler sampler(50, 0, 2);
  TorchSampler taken = std::move(sampler);
  pass_of(taken);
  EXPECT_EQ(sampler.sampler().position(), 48);
}

TEST(TorchSamplerTest, TwoLoadersAtATimeNeedTwo) {
  const TorchSampler sampler(50, 0, 1);
  TorchSampler a = sampler, b = sampler;
  a.reset();
  a.next(4);
  b.reset();
  b.next(4);
  EXPECT_THAT(input_error([&] { a.next(4); }), HasSubstr("Make a TorchSampler for each loader"));
  EXPECT_EQ(pass_of(a).size(), 12u) << "one after the other";
}

TEST(TorchSamplerTest, EpochsMayBeSaid) {
  TorchSampler one(50, 0, 2), other(50, 0, 2);
  const Batches first = pass_of(one), second = pass_of(one);
  EXPECT_NE(first, second);
  other.set_epoch(1);
  EXPECT_EQ(pass_of(other), second);
  other.set_epoch(0);
  EXPECT_EQ(pass_of(other), first);

  one.reset();
  one.next(4);
  TorchSampler resumed(50, 0, 2);
  load(resumed, saved(one));
  resumed.set_epoch(2); // the one that was loaded goes on
  EXPECT_EQ(pass_of(resumed), rest_of(one));
  load(resumed, saved(one));
  resumed.set_epoch(0);
  EXPECT_EQ(pass_of(resumed), first);
  EXPECT_THAT(input_error([&] { one.set_epoch(-1); }), HasSubstr("Epochs count from 0"));
}

// What is saved behind set_epoch() is the epoch that was said, as without save and load.
TEST(TorchSamplerTest, AnEpochThatWasSaidIsSaved) {
  TorchSampler whole(50, 0, 2);
  whole.set_epoch(3);
  const auto resumed = [](const TorchSampler& from) {
    TorchSampler sampler(50, 0, 2);
    load(sampler, saved(from));
    return sampler;
  };
  TorchSampler before = resumed(whole);
  TorchSampler twice = resumed(before);
  const Batches third = pass_of(whole), fourth = pass_of(whole);
  EXPECT_NE(third, fourth);
  for (TorchSampler sampler : {before, twice}) {
    EXPECT_EQ(pass_of(sampler), third);
    EXPECT_EQ(pass_of(sampler), fourth);
  }

  TorchSampler broken_off(50, 0, 2), fifth(50, 0, 2);
  broken_off.reset();
  broken_off.next(4);
  const std::string middle = saved(broken_off);
  broken_off.set_epoch(5);
  fifth.set_epoch(5);
  TorchSampler other = resumed(broken_off);
  const Batches expected = pass_of(fifth);
  EXPECT_EQ(pass_of(other), expected);
  EXPECT_EQ(pass_of(broken_off), expected);
  broken_off.reset(); // epoch 6
  broken_off.next(4);
  broken_off.set_epoch(6); // from its start
  TorchSampler again = resumed(broken_off);
  EXPECT_EQ(pass_of(again), pass_of(broken_off));

  load(other, middle);
  TorchSampler loaded = resumed(other); // still in the middle
  EXPECT_EQ(pass_of(loaded).size(), 5u);
  other.start_at(0, 2, 4);
  TorchSampler placed = resumed(other);
  EXPECT_EQ(pass_of(placed).size(), 4u);
}

TEST(TorchSamplerTest, TakesStatesWithoutTheWordWithin) {
  torch::serialize::OutputArchive archive;
  TorchSampler whole(50, 0, 2);
  whole.reset();
  whole.next(4);
  archive.write(
      "trireme_sampler",
      c10::IValue(nlohmann::json({{"sampler", whole.sampler().state()}, {"passes", 1}, {"ended", false}}).dump()));
  std::ostringstream out;
  archive.save_to(out);
  TorchSampler resumed(50, 0, 2);
  load(resumed, out.str());
  EXPECT_EQ(pass_of(resumed), rest_of(whole));
}

TEST(TorchSamplerTest, StartsBehindBatchesThatWereCounted) {
  TorchSampler whole(50, 1, 2), resumed(50, 1, 2);
  pass_of(whole);
  whole.reset();
  whole.next(4);
  whole.next(4);
  resumed.start_at(1, 2, 4);
  EXPECT_EQ(pass_of(resumed), rest_of(whole));
  EXPECT_EQ(pass_of(resumed), pass_of(whole)) << "the epoch after it";
  resumed.start_at(0, 6, 4);
  EXPECT_TRUE(pass_of(resumed).empty());
  EXPECT_THAT(input_error([&] { resumed.start_at(0, 7, 4); }),
              HasSubstr("start_at(epoch 0, 7 batches of 4) of 50 samples for 2 ranks"));
}

TEST(TorchSamplerTest, RefusesWhatIsNotItsOwn) {
  TorchSampler sampler(50, 0, 1);
  EXPECT_THAT(input_error([&] { load(sampler, saved(TorchSampler(49, 0, 1))); }), HasSubstr("dataset size of 49"));
  torch::serialize::OutputArchive archive;
  archive.write("index", c10::IValue(7));
  std::ostringstream out;
  archive.save_to(out);
  EXPECT_THAT(input_error([&] { load(sampler, out.str()); }), HasSubstr("TorchSampler"));
}

} // namespace
} // namespace trireme::data
