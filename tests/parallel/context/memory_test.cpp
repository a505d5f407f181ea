#include "whole.h"

#include <tests/support/run_ranks.h>
#include <tests/support/sanitized.h>

#include <gmock/gmock.h>

#include <fstream>
#include <new>

#include <malloc.h>
#include <sys/resource.h>

namespace trireme::context {
namespace {

/// A line of /proc/self/status in bytes: what this process has now ("VmRSS", "VmData"), or the most since forget_peak()
/// ("VmHWM").
int64_t status(const std::string& name) {
  std::ifstream lines("/proc/self/status");
  std::string word;
  while (lines >> word) {
    if (word == name + ":") {
      int64_t kib = 0;
      lines >> kib;
      return kib * 1024;
    }
  }
  return -1;
}

bool forget_peak() {
  return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush);
}

constexpr int64_t kBatch = 4, kHeads = 16, kHeadSize = 64;

/// Forward and backward of causal attention over `length` tokens: 16 KiB a token and tensor.
void attend(const comm::Group& ranks, Kind kind, int64_t length) {
  const auto random = [&] { return at::randn({kBatch, kHeads, length / ranks.size(), kHeadSize}).requires_grad_(); };
  const at::Tensor q = random(), k = random(), v = random();
  attention(q, k, v, ranks, {.kind = kind}).sum().backward();
}

/// What a call takes at most beside what the process has.
int64_t peak_of(const comm::Group& ranks, Kind kind, int64_t length) {
  attend(ranks, kind, 4 * int64_t{ranks.size()}); // what is made once
  malloc_trim(0);
  forget_peak();
  const int64_t before = status("VmRSS");
  attend(ranks, kind, length);
  return status("VmHWM") - before;
}

void as_measured() {
  at::set_num_threads(1);
  mallopt(M_MMAP_THRESHOLD, 256 << 10); // freed memory is no more the process'
}

/// Peaks of each number of ranks, the largest rank's.
int64_t peak_over_ranks(comm::World& world, Kind kind, int64_t length) {
  at::Tensor peak = at::full({1}, peak_of(world.group(), kind, length), at::kLong);
  world.group().all_reduce(peak, comm::ReduceOp::max).wait();
  return peak.item<int64_t>();
}

class ContextMemoryTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (test::kSanitized) {
      GTEST_SKIP() << "a sanitizer needs memory of its own";
    }
    if (!forget_peak()) {
      GTEST_SKIP() << "this kernel does not let a process forget its peak";
    }
  }
};

// Tensors of a rank are 4 MiB, however many ranks there are; the whole sequence's are N times as large.
TEST_P(ContextMemoryTest, PeakIsThatOfARanksTokens) {
  constexpr int64_t kTokens = 256;
  const std::string file = testing::TempDir() + concat("context_memory_", getpid());
  std::vector<double> mib;
  for (const int ranks : {4, 8}) {
    test::on_ranks(ranks,
                   [&](comm::World& world) {
                     as_measured();
                     const int64_t peak = peak_over_ranks(world, GetParam(), kTokens * ranks);
                     if (world.rank() == 0) {
                       std::ofstream(file) << static_cast<double>(peak) / (1 << 20);
                     }
                   },
                   {.backend = "gloo"});
    std::ifstream(file) >> mib.emplace_back();
  }
  std::remove(file.c_str());
  std::printf("%s: %.1f MiB with 4 ranks, %.1f with 8, of tensors of 4 MiB each\n",
              GetParam() == Kind::ring ? "ring" : "ulysses", mib[0], mib[1]);
  EXPECT_GT(mib[0], 4 * 8) << "q, k, v, the result and their gradients";
  EXPECT_LT(mib[0], 4 * 26) << "and three blocks of keys and values and of their gradients";
  EXPECT_NEAR(mib[1] / mib[0], 1, 0.15);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ContextMemoryTest, testing::Values(Kind::ring, Kind::ulysses),
                         [](const auto& info) { return info.param == Kind::ring ? "ring" : "ulysses"; });

/// May take so many more bytes of private memory.
class DataLimit {
 public:
  explicit DataLimit(int64_t bytes) {
    getrlimit(RLIMIT_DATA, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(status("VmData") + bytes);
    setrlimit(RLIMIT_DATA, &limit);
  }
  ~DataLimit() { setrlimit(RLIMIT_DATA, &before_); }

 private:
  rlimit before_;
};

// A sequence of which eight tensors of 32 MiB do not fit: alone the limit refuses it, four ranks with the same limit
// each compute it.
TEST(ContextMemoryLimitTest, RanksTogetherAttendToWhatOneMayNot) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs memory of its own";
  }
  constexpr int64_t kLength = 2048;
  constexpr int64_t kLimit = 224 << 20;
  test::on_ranks(4,
                 [](comm::World& world) {
                   as_measured();
                   attend(world.group(), Kind::ring, 32);
                   const DataLimit limit(kLimit);
                   if (world.rank() == 0) {
                     EXPECT_THROW(attend(comm::Group(), Kind::ring, kLength), std::exception)
                         << "the limit does not refuse it: the test shows nothing";
                   }
                   attend(world.group(), Kind::ring, kLength);
                 },
                 {.backend = "gloo"});
}

} // namespace
} // namespace trireme::context
