#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/parallel/pipeline/timeline.h>

#include <gmock/gmock.h>

#include <unistd.h>

#include <filesystem>

namespace trireme::pipeline {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  TraceTest() : path(fs::path(testing::TempDir()) / concat("trireme_trace_", ::getpid(), ".json")) {}
  ~TraceTest() override { fs::remove(path); }

  // Times in microseconds.
  void event(int rank, const std::string& name, double begin, double duration) {
    events_ += concat(events_.empty() ? "" : ",\n", R"({"ph":"X","name":")", name, R"(","pid":)", rank,
                      R"(,"tid":0,"ts":)", begin, R"(,"dur":)", duration, '}');
  }
  // A step as a pipeline on paper would do it, a thousand microseconds a unit.
  void step(const Timeline& plan, const std::vector<int>& ranks, double begin) {
    for (const TimelineSpan& span : plan.spans) {
      const char letter = span.op == Op::forward          ? 'F'
                          : span.op == Op::backward       ? 'B'
                          : span.op == Op::backward_input ? 'I'
                                                          : 'W';
      event(ranks[span.stage], concat(letter, ' ', span.micro_batch, ' ', span.chunk), begin + 1000 * span.begin,
            1000 * (span.end - span.begin));
    }
  }
  Timeline read() {
    write_file_atomically(path, concat(R"({"traceEvents":[)", events_, "]}"));
    return from_trace(path);
  }
  void forget() { events_.clear(); }
  void refused(const std::string& words) {
    try {
      read();
      ADD_FAILURE() << "accepted; expected: " << words;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }

  fs::path path;

 private:
  std::string events_;
};

Timeline plan(ScheduleKind kind, const ScheduleShape& shape) {
  return simulate(make_programs(kind, shape), shape);
}

TEST_F(TraceTest, APlanComesBackAsItWas) {
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zero_bubble}) {
    const Timeline planned = plan(kind, {4, 8, kind == ScheduleKind::interleaved ? 2 : 1});
    step(planned, {0, 1, 2, 3}, 12345);
    const Timeline measured = read();
    EXPECT_EQ(measured.shape, planned.shape);
    EXPECT_EQ(measured.unit, "ms");
    EXPECT_NEAR(measured.total, planned.total, 1e-6);
    EXPECT_NEAR(measured.bubble, planned.bubble, 1e-6);
    EXPECT_EQ(measured.peak_in_flight, planned.peak_in_flight);
    ASSERT_EQ(measured.spans.size(), planned.spans.size());
    EXPECT_NEAR(measured.spans.back().begin, planned.spans.back().begin, 1e-6);
    forget();
  }
}

TEST_F(TraceTest, TheLastCompleteStepCounts) {
  const ScheduleShape shape{2, 4, 1};
  step(plan(ScheduleKind::gpipe, shape), {0, 1}, 0);
  step(plan(ScheduleKind::forward_only, shape), {0, 1}, 100e3); // an evaluation
  step(plan(ScheduleKind::naive, shape), {0, 1}, 200e3);
  event(0, "F 0 0", 300e3, 1000); // the tracing ended here
  event(0, "F 1 0", 301e3, 1000);
  event(1, "F 0 0", 301e3, 1000);
  event(0, "all_reduce", 0, 1e6);
  event(0, "F 1", 0, 1e6);
  event(0, "F 1 0 2", 0, 1e6);
  EXPECT_NEAR(read().bubble, 0.5, 1e-6);
}

TEST_F(TraceTest, StagesComeFromTheRanksOwnWords) {
  // Two pipelines {0,2} and {1,3}; the second is slower, the first is read.
  const ScheduleShape shape{2, 3, 1};
  for (int rank = 0; rank < 4; ++rank) {
    event(rank, concat("stage ", rank / 2, " of 2"), 0, 0);
  }
  step(plan(ScheduleKind::one_f_one_b, shape), {0, 2}, 0);
  step(plan(ScheduleKind::naive, shape), {1, 3}, 0);
  const Timeline timeline = read();
  EXPECT_EQ(timeline.shape, shape);
  EXPECT_NEAR(timeline.bubble, 0.25, 1e-6);
}

TEST_F(TraceTest, AStageThatCannotSplitIsNotInFlightForEver) {
  for (int m = 0; m < 3; ++m) {
    event(0, concat("F ", m, " 0"), 3000 * m, 1000);
    event(0, concat("I ", m, " 0"), 3000 * m + 1000, 2000);
  }
  const Timeline timeline = read();
  EXPECT_EQ(timeline.peak_in_flight, std::vector<double>{1});
  EXPECT_NEAR(timeline.bubble, 0, 1e-9);
}

TEST_F(TraceTest, FilesThatHoldNoPipeline) {
  refused("there are no pipeline spans");
  event(0, "F 0 0", 0, 1);
  refused("no step of training was recorded to its end");
  event(0, "stage 0 of 4", 0, 0);
  refused("no spans of stage 1 of 4");
  write_file_atomically(path, "not json");
  EXPECT_THROW(from_trace(path), InputError);
  write_file_atomically(path,
                        R"({"traceEvents": [1, {"name": 3}, {"name": "F 0 0", "pid": "x", "ts": 0, "dur": 1},
    {"name": "F 999999999999 0", "pid": 0, "ts": 1, "dur": 1}, {"name": "B 0 0", "pid": 0, "ts": 1e300, "dur": 1}]})");
  EXPECT_THROW(from_trace(path), InputError);
  write_file_atomically(
      path,
      R"({"traceEvents": [{"name": "F 0 0", "pid": 1e300, "ts": 0, "dur": 1}, {"name": "B 0 0", "pid": 1e300, "ts": 1, "dur": 1}]})");
  EXPECT_THROW(from_trace(path), InputError) << "no rank has such a number";
  EXPECT_THROW(from_trace(path.string() + ".absent"), InputError);
}

} // namespace
} // namespace trireme::pipeline
