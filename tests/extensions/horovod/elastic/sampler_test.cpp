// Whoever comes and goes, an epoch has every sample once.
#include <trireme/base/error.h>
#include <trireme/horovod.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/serialize.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <unistd.h>

namespace trireme::horovod::elastic {
namespace {

using test::error_of;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

std::vector<int64_t> of_all_ranks(const std::vector<size_t>& mine) {
  const std::vector<int64_t> numbers(mine.begin(), mine.end());
  const at::Tensor all = allgather(torch::tensor(numbers, at::kLong));
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

class ElasticSamplerTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Shuffled, ElasticSamplerTest, testing::Bool(), testing::PrintToStringParamName());

// Four ranks begin the epoch, three do the rest of it.
TEST_P(ElasticSamplerTest, FewerRanksDoTheRestOfTheEpoch) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / concat("trireme_sampler_", ::getpid());
  on_ranks(4, [&](comm::World& world) {
    init(world);
    ElasticSampler sampler(50, GetParam(), 3);
    sampler.set_epoch(2);
    sampler.reset();
    nlohmann::json seen = nlohmann::json::array();
    for (int batch = 0; batch < 4;
         ++batch) { // the last one is handed out, as to a loader that is ahead, and is not done
      for (const int64_t sample : of_all_ranks(*sampler.next(2))) {
        if (batch < 3) {
          seen.push_back(sample);
        }
      }
      if (batch < 3) {
        sampler.record_batch(2);
      }
    }
    EXPECT_EQ(sampler.done(), 24);
    EXPECT_THAT(error_of([&] { sampler.record_batch(0); }), HasSubstr("record_batch(0)"));
    if (rank() == 0) {
      std::ofstream(file) << nlohmann::json{sampler.state(), seen};
    }
    shutdown();
  });
  on_ranks(3, [&](comm::World& world) {
    init(world);
    std::ifstream stream(file);
    const nlohmann::json before = nlohmann::json::parse(stream);
    std::set<int64_t> seen = before.at(1).get<std::set<int64_t>>();
    EXPECT_EQ(seen.size(), 24U);
    ElasticSampler saved(50, GetParam(), 3), sampler(50, GetParam(), 3);
    saved.load_state(before.at(0));
    torch::serialize::OutputArchive out;
    saved.save(out);
    std::stringstream bytes;
    out.save_to(bytes);
    torch::serialize::InputArchive in;
    in.load_from(bytes);
    sampler.load(in);
    sampler.reset();
    EXPECT_EQ(sampler.epoch(), 2);
    size_t counted = seen.size();
    while (const auto batch = sampler.next(2)) {
      for (const int64_t sample : of_all_ranks(*batch)) {
        seen.insert(sample);
      }
      sampler.record_batch(2);
      counted = std::min<size_t>(50, counted + 6);
      EXPECT_EQ(seen.size(), counted) << "none twice, before the last batch is filled up";
    }
    EXPECT_EQ(seen.size(), 50U);
    EXPECT_EQ(sampler.done(), 50);
    sampler.reset();
    EXPECT_FALSE(sampler.next(2)) << "the epoch is over";
    sampler.set_epoch(3);
    sampler.reset();
    EXPECT_TRUE(sampler.next(2));
    shutdown();
  });
  std::filesystem::remove(file);
}

} // namespace
} // namespace trireme::horovod::elastic
