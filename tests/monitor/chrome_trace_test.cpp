#include "scratch.h"

#include <trireme/monitor/chrome_trace.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <map>
#include <thread>

namespace trireme::monitor {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ChromeTraceTest : public ScratchTest {
 protected:
  json load(const std::string& name) const { return json::parse(read_file(folder_ / name)); }
  std::string part(int rank, int64_t offset_ns, int64_t begin_ns) const {
    Tracer tracer;
    tracer.start(rank);
    tracer.set_clock_offset_ns(offset_ns);
    tracer.add(Lane::compute, "forward", begin_ns, begin_ns + 2000);
    const auto path = folder_ / trace_part_name(rank);
    tracer.write(path);
    return path;
  }
};

std::vector<json> spans_of(const json& trace) {
  std::vector<json> spans;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      spans.push_back(event);
    }
  }
  return spans;
}

TEST_F(ChromeTraceTest, RecordsOnlyWhileOn) {
  {
    Span ignored("before");
  }
  tracer().start(0);
  {
    Span outer("step");
    Span inner("all_reduce", Lane::communication, 4096);
  }
  tracer().stop();
  {
    Span ignored("after");
  }
  ASSERT_EQ(tracer().num_events(), 2u);
  tracer().write(folder_ / "t.json");
  const auto spans = spans_of(load("t.json"));
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "step");
  EXPECT_EQ(spans[1]["args"]["bytes"], 4096);
  EXPECT_NE(spans[0]["tid"], spans[1]["tid"]);
  EXPECT_LE(spans[0]["ts"].get<double>(), spans[1]["ts"].get<double>());
}

TEST_F(ChromeTraceTest, NamesRanksAndLanes) {
  part(3, 0, 1000);
  std::map<std::string, json> names;
  const json trace = load("trace.rank3.json");
  for (const json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 3);
    if (event["ph"] == "M") {
      names[event["name"]] = event["args"];
    }
  }
  EXPECT_EQ(names["process_name"]["name"], "rank 3");
  EXPECT_EQ(names["thread_name"]["name"], "compute");
}

TEST_F(ChromeTraceTest, SpansThatCrossGetRowsOfTheirOwn) {
  Tracer tracer;
  tracer.start(0);
  tracer.add(Lane::communication, "b", 50, 150);
  tracer.add(Lane::communication, "a", 0, 100);
  tracer.add(Lane::communication, "inside a", 10, 20);
  tracer.add(Lane::communication, "after a", 100, 120);
  tracer.write(folder_ / "t.json");
  std::map<std::string, int> row;
  for (const json& span : spans_of(load("t.json"))) {
    row[span["name"]] = span["tid"];
  }
  EXPECT_EQ(row["inside a"], row["a"]);
  EXPECT_EQ(row["after a"], row["a"]);
  EXPECT_EQ(row["b"], row["a"] + 1);
}

TEST_F(ChromeTraceTest, MergingAppliesClocksAndStartsAtZero) {
  // Rank 1's clock is 5 us behind: its 4000 ns are rank 0's 9000 ns.
  const std::string second = part(1, 5000, 4000);
  const std::string first = part(0, 0, 8000);
  merge_traces({second, first}, folder_ / "trace.json");
  const auto spans = spans_of(load("trace.json"));
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["pid"], 0);
  EXPECT_DOUBLE_EQ(spans[0]["ts"], 0);
  EXPECT_EQ(spans[1]["pid"], 1);
  EXPECT_DOUBLE_EQ(spans[1]["ts"], 1);
  EXPECT_DOUBLE_EQ(spans[1]["dur"], 2);
}

TEST_F(ChromeTraceTest, RefusesWhatIsNoPart) {
  const std::string good = part(0, 0, 0);
  const std::string whole = read_file(good);
  put("cut.json", whole.substr(0, whole.size() / 2));
  put("other.json", "{\"traceEvents\":[]}");
  put("list.json", "[1,2]");
  put("odd.json", R"({"otherData":{"rank":0,"clock_offset_us":0},"traceEvents":[{"ts":"x"}]})");
  put("odd2.json", R"({"otherData":{"rank":0,"clock_offset_us":0},"traceEvents":{"a":1}})");
  for (const char* name : {"cut.json", "other.json", "list.json", "odd.json", "odd2.json", "absent.json"}) {
    try {
      merge_traces({good, folder_ / name}, folder_ / "trace.json");
      ADD_FAILURE() << name << " must be refused";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "trace.json"));
  merge_traces({}, folder_ / "trace.json");
  EXPECT_TRUE(spans_of(load("trace.json")).empty());
}

TEST_F(ChromeTraceTest, ThreadsLoseNothingAndTheLimitHolds) {
  Tracer tracer;
  tracer.start(0, /*max_events=*/3000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&tracer] {
      for (int i = 0; i < 1000; ++i) {
        tracer.add(Lane::data, "load \"\xFF\"", i, i + 1);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(tracer.num_events(), 3000u);
  EXPECT_EQ(tracer.num_dropped(), 1000u);
  tracer.write(folder_ / "t.json");
  EXPECT_EQ(load("t.json")["otherData"]["dropped_events"], 1000);
  tracer.start(0);
  EXPECT_EQ(tracer.num_events(), 0u);
}

TEST(ClockOffsetTest, TakesTheShortestRoundTrip) {
  // True offset 1000; the slow exchange lost 400 on one way only.
  EXPECT_EQ(clock_offset_ns({{0, 1410, 420}, {1000, 2010, 1020}, {2000, 3100, 2300}}), 1000);
  EXPECT_EQ(clock_offset_ns({}), 0);
  EXPECT_EQ(clock_offset_ns({{100, 50, 90}}), 0) << "a clock that ran backwards says nothing";
}

} // namespace
} // namespace trireme::monitor
