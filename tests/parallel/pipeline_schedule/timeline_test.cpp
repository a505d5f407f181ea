#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/schedule_check.h>
#include <trireme/parallel/pipeline/timeline.h>

#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

using testing::Each;
using testing::Le;

Timeline timeline_of(ScheduleKind kind, const ScheduleShape& shape, const Costs& costs = {}) {
  return simulate(make_programs(kind, shape), shape, costs);
}

// The formulas of the papers, p stages and m micro-batches.
TEST(TimelineTest, BubblesAreThoseOfThePapers) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 16; ++m) {
      EXPECT_NEAR(timeline_of(ScheduleKind::naive, {p, m, 1}).bubble, 1 - 1.0 / p, 1e-12);
      const double bubble = (p - 1.0) / (m + p - 1.0);
      EXPECT_NEAR(timeline_of(ScheduleKind::gpipe, {p, m, 1}).bubble, bubble, 1e-12) << p << ' ' << m;
      EXPECT_NEAR(timeline_of(ScheduleKind::one_f_one_b, {p, m, 1}).bubble, bubble, 1e-12) << p << ' ' << m;
      EXPECT_NEAR(timeline_of(ScheduleKind::forward_only, {p, m, 1}).bubble, bubble, 1e-12) << p << ' ' << m;
    }
  }
}

TEST(TimelineTest, InterleavingDividesTheBubbleByTheChunks) {
  for (int p = 2; p <= 6; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = p; m <= 4 * p; m += p) {
        EXPECT_NEAR(timeline_of(ScheduleKind::interleaved, {p, m, v}).bubble, (p - 1.0) / (v * m + p - 1.0), 1e-12)
            << p << ' ' << m << ' ' << v;
      }
    }
  }
}

TEST(TimelineTest, InFlightIsWhatTheSchedulesPromise) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const Timeline one = timeline_of(ScheduleKind::one_f_one_b, {p, m, 1});
      for (int stage = 0; stage < p; ++stage) {
        EXPECT_EQ(one.peak_in_flight[stage], std::min(p - stage, m));
      }
      EXPECT_THAT(timeline_of(ScheduleKind::gpipe, {p, m, 1}).peak_in_flight, Each(m));
      EXPECT_THAT(timeline_of(ScheduleKind::naive, {p, m, 1}).peak_in_flight, Each(1));
      EXPECT_THAT(timeline_of(ScheduleKind::forward_only, {p, m, 1}).peak_in_flight, Each(1));
      EXPECT_THAT(timeline_of(ScheduleKind::zero_bubble, {p, m, 1}).peak_in_flight, Each(Le(std::min(p, m))))
          << p << ' ' << m;
    }
  }
  // Interleaved: 2 (p - 1 - stage) + (v - 1) p + 1 chunks of the model, so more than 1F1B's p micro-batches on the
  // first stage.
  EXPECT_EQ(timeline_of(ScheduleKind::interleaved, {4, 8, 2}).peak_in_flight,
            (std::vector<double>{5.5, 4.5, 3.5, 2.5}));
}

// Where the stages do not divide the micro-batches there is no formula, but it still pays.
TEST(TimelineTest, InterleavingIsNeverWorseThanNot) {
  for (int p = 2; p <= 6; ++p) {
    for (int m = 1; m <= 16; ++m) {
      for (int v = 2; v <= 4; ++v) {
        EXPECT_LE(timeline_of(ScheduleKind::interleaved, {p, m, v}).bubble, (p - 1.0) / (m + p - 1.0) + 1e-12)
            << p << ' ' << m << ' ' << v;
      }
    }
  }
}

TEST(TimelineTest, ZeroBubbleIsAThirdOfTheBubble) {
  for (int p = 2; p <= 6; ++p) {
    for (int m = 1; m <= 16; ++m) {
      const double bubble = timeline_of(ScheduleKind::zero_bubble, {p, m, 1}).bubble;
      EXPECT_LT(bubble, (p - 1.0) / (m + p - 1.0)) << p << ' ' << m;
      const double total = m >= p ? 3 * m + p - 1 : 2 * p + 2 * m - 1; // below p the pipeline never fills
      EXPECT_NEAR(bubble, 1 - 3 * m / total, 1e-12) << p << ' ' << m;
    }
  }
}

TEST(TimelineTest, SpansAreWhatEveryStageDoes) {
  const Timeline timeline = timeline_of(ScheduleKind::one_f_one_b, {2, 2, 1});
  ASSERT_EQ(timeline.spans.size(), 8u);
  EXPECT_EQ(timeline.total, 9);
  const auto text = [](const TimelineSpan& span) {
    return concat(span.stage, op_name(span.op)[0], span.micro_batch, ' ', span.begin, '-', span.end);
  };
  std::vector<std::string> spans;
  for (const TimelineSpan& span : timeline.spans) {
    spans.push_back(text(span));
  }
  EXPECT_EQ(spans, (std::vector<std::string>{"0f0 0-1", "0f1 1-2", "0b0 4-6", "0b1 7-9", "1f0 1-2", "1b0 2-4",
                                             "1f1 4-5", "1b1 5-7"}));
}

TEST(TimelineTest, CostsCount) {
  Costs costs;
  costs.forward = 3;
  costs.backward = 5;
  costs.transfer = 0.5;
  EXPECT_NEAR(timeline_of(ScheduleKind::naive, {2, 1, 1}, costs).total, 2 * 3 + 2 * 5 + 2 * 0.5, 1e-12);
  EXPECT_NEAR(timeline_of(ScheduleKind::naive, {2, 1, 2}, costs).total, 2 * 3 + 2 * 5 + 6 * 0.5, 1e-12);
}

// Two stages, two micro-batches: stage 1 takes three times as long, messages forward 1 and backward 2.
TEST(TimelineTest, PartsHaveTheirOwnCosts) {
  Costs costs;
  costs.parts = {{1, 2, 1, 1, 1, 0}, {3, 6, 3, 3, 0, 2}};
  const Timeline timeline = timeline_of(ScheduleKind::one_f_one_b, {2, 2, 1}, costs);
  // Stage 1: forward 2 to 5, backward to 11, forward to 14, backward to 20; stage 0's last backward begins at 22.
  EXPECT_DOUBLE_EQ(timeline.total, 24);
  EXPECT_DOUBLE_EQ(timeline.bubble, 1 - (2 * 3 + 2 * 9) / 48.0);
  const ScheduleShape chunked{2, 4, 2};
  Costs even;
  even.parts.assign(4, {0.5, 1, 0.5, 0.5, 0, 0});
  EXPECT_DOUBLE_EQ(timeline_of(ScheduleKind::interleaved, chunked, even).total,
                   timeline_of(ScheduleKind::interleaved, chunked).total);
  even.parts.pop_back();
  EXPECT_THROW(timeline_of(ScheduleKind::interleaved, chunked, even), InputError);
}

TEST(TimelineTest, ProgramsThatDoNotFitAreRefusedNotSimulated) {
  const ScheduleShape shape{2, 1, 1};
  EXPECT_THROW(simulate({{}}, shape), InputError);
  EXPECT_THROW(simulate({{{Op::recv_grad, 0, 0, 0}}, {}}, shape), InputError);
  EXPECT_THROW(simulate({{{Op::recv_activation, 0, 0, 0}}, {}}, shape), InputError);
  EXPECT_THROW(simulate({{{Op::forward, 7, 0, 0}}, {}}, shape), InputError);
  EXPECT_EQ(simulate({{}, {}}, shape).bubble, 0);
}

} // namespace
} // namespace trireme::pipeline
