#include <trireme/train/clock_offset.h>

#include <tests/support/run_ranks.h>

#include <trireme/comm/world.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

// Ranks of one host have one clock, so rank 0's answer lies between question and arrival.
TEST(ClockOffsetTest, AnswersLieBetweenQuestionAndArrival) {
  for (const char* backend : {"shm", "gloo"}) {
    test::on_ranks(3,
                   [](comm::World& world) {
                     const auto samples = train::ask_clock_of_rank_0(world.group());
                     EXPECT_EQ(samples.size(), world.rank() == 0 ? 0u : 8u);
                     int64_t shortest = INT64_MAX;
                     for (const monitor::ClockSample& sample : samples) {
                       EXPECT_LE(sample.sent_ns, sample.remote_ns);
                       EXPECT_LE(sample.remote_ns, sample.received_ns);
                       shortest = std::min(shortest, sample.received_ns - sample.sent_ns);
                     }
                     EXPECT_LE(std::abs(monitor::clock_offset_ns(samples)), shortest);
                   },
                   {.backend = backend});
  }
}

} // namespace
} // namespace trireme::tools
