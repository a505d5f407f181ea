#include <trireme/extensions/compress/warm_up.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <vector>

namespace trireme::compress {
namespace {

TEST(WarmUpTest, EndsAfterANumberOfSteps) {
  WarmUp warm_up(3, 0.999);
  const auto norm = []() -> double { throw std::runtime_error("nobody needs it"); };
  EXPECT_FALSE(warm_up.ends_after(2, norm));
  EXPECT_TRUE(warm_up.ends_after(3, norm));
  EXPECT_TRUE(warm_up.ends_after(4, norm)); // a checkpoint of another optimizer was loaded
}

/// After which step a warm-up of its own choice ends, where the 1-norm after step 10 k is norms[k - 1]; 0: not at all.
int64_t end_with(const std::vector<double>& norms, int* asked = nullptr) {
  WarmUp warm_up(std::nullopt, 0.9);
  for (int64_t step = 1; step <= 10 * std::ssize(norms); ++step) {
    const bool ends = warm_up.ends_after(step, [&] {
      EXPECT_EQ(step % 10, 0);
      if (asked != nullptr) {
        ++*asked;
      }
      return norms[static_cast<size_t>(step / 10 - 1)];
    });
    if (ends) {
      return step;
    }
  }
  return 0;
}

TEST(WarmUpTest, EndsWhenTheNormHasSettledOverOneOverOneMinusBeta2Steps) {
  int asked = 0;
  EXPECT_EQ(end_with({1, 2, 3, 3.1, 3.2}, &asked), 40); // 3 / 3.1 = 0.968
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(end_with({1, 1.05, 1.1, 1.15}), 0); // 0.952, 0.955, 0.957
  EXPECT_EQ(end_with({4, 2, 1.93, 1}), 30);     // it may also fall: 0.965
  EXPECT_EQ(end_with({0, 0, 0}), 0);
  EXPECT_EQ(end_with({100, 96.1}), 20);
  EXPECT_EQ(end_with({100, 95.9}), 0);
}

TEST(WarmUpTest, ItsStateIsTheLastNorm) {
  WarmUp first(std::nullopt, 0.9), second(std::nullopt, 0.9), fresh(std::nullopt, 0.9);
  EXPECT_FALSE(first.ends_after(10, [] { return 5.0; }));
  second.load_state(first.state());
  EXPECT_TRUE(second.ends_after(20, [] { return 5.1; }));
  fresh.load_state(nullptr);
  EXPECT_FALSE(fresh.ends_after(20, [] { return 5.1; }));
}

} // namespace
} // namespace trireme::compress
