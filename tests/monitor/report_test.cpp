#include "scratch.h"

#include <trireme/base/file.h>
#include <trireme/monitor/metrics_writer.h>
#include <trireme/monitor/report.h>

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace trireme::monitor {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<StepMetrics> run_of(int64_t count) {
  std::vector<StepMetrics> steps;
  for (int64_t i = 1; i <= count; ++i) {
    StepMetrics metrics;
    metrics.step = i;
    metrics.loss = 1.4 + 4 * std::exp(-static_cast<double>(i) / 60);
    if (i % 250 == 0) {
      metrics.val_loss = *metrics.loss + 0.05;
    }
    metrics.lr = 1e-3;
    metrics.grad_norm = 0.5;
    metrics.tokens_per_s = 40000;
    metrics.step_ms = 25;
    metrics.wall_time = 1.7e9 + 0.025 * static_cast<double>(i);
    metrics.peak_rss_bytes = 400'000'000;
    metrics.comm_bytes = 1'000'000;
    steps.push_back(metrics);
  }
  return steps;
}

RunSummary full_summary() {
  RunSummary summary;
  summary.title = "GPT & novels";
  summary.status = "finished";
  summary.loss_unit = "nats/byte";
  summary.ranks = 2;
  summary.num_parameters = 842496;
  summary.device = "CPU";
  summary.unigram_entropy = 2.87;
  summary.samples = {{"Prompt", " text"}};
  summary.config = {{"model", {{"layers", 4}}}};
  summary.environment = {{"libtorch", "2.13.0"}};
  return summary;
}

/// Python's own parser: tags must nest, nothing may come from elsewhere, scripts' data must be JSON.
constexpr const char* kChecker = R"py(
import html.parser, json, sys
VOID = {"meta", "input", "br", "img", "link", "hr"}
class Checker(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.data, self.charts, self.tags, self.text = [], None, 0, set(), []
    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        for name, value in attributes:
            assert name not in ("src", "href", "srcset", "action", "onload", "onerror"), (tag, name)
            assert value is None or "http:" not in value and "https:" not in value, value
        if tag == "script" and dict(attributes).get("type") == "application/json":
            self.data = ""
        if tag not in VOID:
            self.open.append(tag)
    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.getpos())
        if tag == "script" and self.data is not None:
            json.loads(self.data, parse_constant=lambda word: sys.exit("not JSON: " + word))
            self.charts, self.data = self.charts + 1, None
    def handle_data(self, data):
        if self.data is not None:
            self.data += data
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)
page = open(sys.argv[1], encoding="utf-8").read()
checker = Checker()
checker.feed(page)
checker.close()
assert not checker.open, checker.open
assert "@import" not in page and "url(h" not in page
print(checker.charts, "charts")
print(" ".join(sorted(checker.tags)))
print("".join(checker.text))
)py";

class ReportTest : public ScratchTest {
 protected:
  /// Writes the report, has it checked and returns the text a reader sees.
  std::string check(const RunSummary& summary, const std::vector<StepMetrics>& steps) const {
    write_report(folder_ / "report.html", summary, steps);
    return python(kChecker, folder_ / "report.html");
  }
};

TEST_F(ReportTest, AFullRunShowsItsFigures) {
  const std::string text = check(full_summary(), run_of(3000));
  EXPECT_THAT(text, HasSubstr("5 charts"));
  EXPECT_THAT(text, AllOf(HasSubstr("GPT & novels"), HasSubstr("1.450 nats/byte"), HasSubstr("1.400 nats/byte"),
                          HasSubstr("unigram entropy 2.870"), HasSubstr("40.0k tokens/s"), HasSubstr("20.0k a rank")));
  EXPECT_THAT(text, AllOf(HasSubstr("1 min 15 s"), HasSubstr("3000 steps, median 25.0 ms"), HasSubstr("842k"),
                          HasSubstr("400 MB"), HasSubstr("3.00 GB"), HasSubstr("\"layers\": 4"), HasSubstr("2.13.0")));
  EXPECT_LT(std::filesystem::file_size(folder_ / "report.html"), 400'000u);
}

TEST_F(ReportTest, ARunOnADeviceShowsItsMemoryAndWaits) {
  std::vector<StepMetrics> steps = run_of(20);
  for (StepMetrics& step : steps) {
    step.device_peak_bytes = 90'000'000 + step.step;
    step.host_syncs = step.step == 1 ? 3 : 1;
  }
  const std::string text = check(full_summary(), steps);
  EXPECT_THAT(text, AllOf(HasSubstr("Peak device memory"), HasSubstr("90.0 MB"), HasSubstr("Host waits"),
                          HasSubstr("1 a step")));
  EXPECT_THAT(check(full_summary(), run_of(20)), Not(HasSubstr("Host waits")));
}

TEST_F(ReportTest, AMillionStepsStaySmall) {
  EXPECT_LT(render_report({}, run_of(200000)).size(), 500'000u);
}

TEST_F(ReportTest, ARunThatCouldNotSayHowItEndedHasEnded) {
  RunSummary summary = full_summary();
  summary.status = "running, step 20";
  check(summary, run_of(20));
  end_report(folder_ / "report.html", "failed <&>");
  EXPECT_THAT(read_file(folder_ / "report.html"),
              HasSubstr("<span class=\"badge bad\">failed &lt;&amp;&gt;, step 20</span>"));
  EXPECT_THAT(check(full_summary(), run_of(20)), HasSubstr("finished"));
  end_report(folder_ / "report.html", "failed");
  EXPECT_THAT(read_file(folder_ / "report.html"), HasSubstr("<span class=\"badge\">finished</span>"));
  end_report(folder_ / "none.html", "failed");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none.html"));
}

TEST_F(ReportTest, OneStepAndNoneStillMakeAPage) {
  EXPECT_THAT(check({}, run_of(1)), HasSubstr("5.334"));
  EXPECT_THAT(check({}, {}), HasSubstr("No step has been recorded yet."));
}

TEST_F(ReportTest, LossesThatAreNotFiniteAreSaid) {
  auto steps = run_of(500);
  for (size_t i = 300; i < steps.size(); ++i) {
    steps[i].loss = std::numeric_limits<double>::quiet_NaN();
    steps[i].grad_norm = std::numeric_limits<double>::infinity();
    steps[i].val_loss = std::numeric_limits<double>::quiet_NaN();
    steps[i].tokens_per_s = std::numeric_limits<double>::quiet_NaN();
    steps[i].wall_time = std::numeric_limits<double>::quiet_NaN();
  }
  const std::string text = check({}, steps);
  EXPECT_THAT(text, AllOf(HasSubstr("not finite from step 301"), HasSubstr("NaN")));
  steps.back().loss = 1.0;
  EXPECT_THAT(check({}, steps), HasSubstr("first not finite at step 301"));
  for (auto& step : steps) {
    step.loss = std::numeric_limits<double>::quiet_NaN();
  }
  EXPECT_THAT(check({}, steps), HasSubstr("not finite from step 1"));
}

TEST_F(ReportTest, ClassifiersShowAccuracyAndSamples) {
  std::vector<StepMetrics> steps;
  for (int64_t i = 1; i <= 10; ++i) {
    StepMetrics metrics;
    metrics.step = i * 100;
    metrics.val_accuracy = 0.8 + 0.01 * static_cast<double>(i) - (i == 10 ? 0.05 : 0);
    metrics.samples_per_s = 5120;
    steps.push_back(metrics);
  }
  EXPECT_THAT(check({}, steps),
              AllOf(HasSubstr("85.00 %"), HasSubstr("best 89.00 % at step 900"), HasSubstr("5.12k samples/s")));
}

TEST_F(ReportTest, EveryTextIsUntrusted) {
  const std::string evil = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\xFF";
  RunSummary summary = full_summary();
  for (std::string* field : {&summary.title, &summary.status, &summary.started, &summary.loss_unit, &summary.layout,
                             &summary.model, &summary.device, &summary.device_detail, &summary.speed_unit}) {
    *field = evil;
  }
  summary.samples = {{evil, evil}};
  summary.config = {{evil, evil}, {"list", {evil}}};
  summary.environment = {{evil, evil}};
  const std::string text = check(summary, run_of(100));
  EXPECT_THAT(text, HasSubstr("</pre></script><script>alert(1)"));
  EXPECT_THAT(text.substr(0, text.find('\n', text.find('\n') + 1)), Not(HasSubstr("img")));
  const std::string page = read_file(folder_ / "report.html");
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST_F(ReportTest, ReadsTheMetricsOfACrashedRun) {
  {
    MetricsWriter writer(folder_ / "metrics.jsonl");
    for (const StepMetrics& metrics : run_of(20)) {
      writer.write(metrics);
    }
  }
  std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << "{\"step\":21,\"lo";
  write_report(folder_ / "report.html", RunSummary(), folder_ / "metrics.jsonl");
  EXPECT_THAT(read_file(folder_ / "report.html"), HasSubstr("20 steps"));
  write_report(folder_ / "report.html", RunSummary(), folder_ / "absent.jsonl");
  EXPECT_THAT(read_file(folder_ / "report.html"), HasSubstr("No step has been recorded yet."));
}

} // namespace
} // namespace trireme::monitor
