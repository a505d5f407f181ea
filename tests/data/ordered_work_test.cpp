#include <trireme/data/tokenize/ordered_work.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace trireme::data {
namespace {

// Items of these bytes, all of which must come out in order; returns the most that were worked on or waited at a time.
size_t most_bytes_under_way(const std::vector<size_t>& sizes, size_t capacity, size_t most_bytes) {
  OrderedWork<size_t> work(capacity, most_bytes);
  std::atomic<size_t> held = 0;
  std::atomic<size_t> most = 0;
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_TRUE(work.push(i, sizes[i]));
    }
    work.close();
  });
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      work.work_on([&](size_t& item) {
        most = std::max<size_t>(most, held += sizes[item]);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        held -= sizes[item];
      });
    });
  }
  for (size_t next = 0; next < sizes.size(); ++next) {
    EXPECT_EQ(work.pop(), next);
  }
  EXPECT_FALSE(work.pop());
  return most;
}

TEST(OrderedWorkTest, BytesUnderWayAreBounded) {
  std::vector<size_t> sizes(200, 10);
  EXPECT_GT(most_bytes_under_way(sizes, 8, 100), 10u);
  EXPECT_LE(most_bytes_under_way(sizes, 8, 20), 20u);
  for (size_t i = 0; i < sizes.size(); i += 7) {
    sizes[i] = 500; // more than the limit: alone
  }
  EXPECT_EQ(most_bytes_under_way(sizes, 8, 40), 500u);
}

} // namespace
} // namespace trireme::data
