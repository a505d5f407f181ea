#include <trireme/data/torch_sampler.h>

#include "temporary_folder.h"

#include <gmock/gmock.h>

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
