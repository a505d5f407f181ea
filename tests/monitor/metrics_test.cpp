#include "scratch.h"

#include <trireme/monitor/metrics_writer.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <sys/resource.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

namespace trireme::monitor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

StepMetrics step_with_loss(int64_t step, double loss) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = loss;
  return metrics;
}

std::vector<int64_t> steps_of(const std::vector<StepMetrics>& all) {
  std::vector<int64_t> steps;
  for (const StepMetrics& metrics : all) {
    steps.push_back(metrics.step);
  }
  return steps;
}

TEST(MetricsLineTest, HasTheKeysOfTheDesignInOrder) {
  StepMetrics metrics;
  metrics.step = 12;
  metrics.loss = 1.5;
  metrics.val_loss = 1.25;
  metrics.val_accuracy = 0.5;
  metrics.lr = 0.003;
  metrics.grad_norm = 0.75;
  metrics.loss_scale = 65536;
  metrics.tokens_per_s = 43200;
  metrics.samples_per_s = 337.5;
  metrics.mfu = 0.45;
  metrics.step_ms = 76;
  metrics.wall_time = 1700000000.5;
  metrics.peak_rss_bytes = 412'000'000'000;
  metrics.device_peak_bytes = 96'000'000;
  metrics.activation_bytes = 17'000'000;
  metrics.comm_bytes = 3'400'000;
  metrics.offload_read_bytes = 8192;
  metrics.offload_write_bytes = 4096;
  metrics.host_syncs = 1;
  EXPECT_EQ(
      metrics_line(metrics),
      R"({"step":12,"loss":1.5,"val_loss":1.25,"val_accuracy":0.5,"lr":0.003,"grad_norm":0.75,)"
      R"("loss_scale":65536.0,"tokens_per_s":43200.0,"samples_per_s":337.5,"mfu":0.45,"step_ms":76.0,)"
      R"("wall_time":1700000000.5,"peak_rss_bytes":412000000000,"device_peak_bytes":96000000,"activation_bytes":17000000,"comm_bytes":3400000,"offload_read_bytes":8192,"offload_write_bytes":4096,"host_syncs":1})");
}

TEST(MetricsLineTest, WhatWasNotMeasuredIsNotThere) {
  EXPECT_EQ(metrics_line(step_with_loss(3, 0.1)), R"({"step":3,"loss":0.1})");
}

TEST(MetricsLineTest, ValuesThatAreNotFiniteStayValidJsonAndComeBack) {
  StepMetrics metrics = step_with_loss(1, std::numeric_limits<double>::quiet_NaN());
  metrics.grad_norm = kInfinity;
  metrics.val_loss = -kInfinity;
  const std::string line = metrics_line(metrics);
  EXPECT_TRUE(nlohmann::json::accept(line));
  EXPECT_THAT(line, HasSubstr(R"("loss":null,"loss_text":"NaN")"));
  const auto back = parse_metrics_line(line);
  ASSERT_TRUE(back);
  EXPECT_TRUE(std::isnan(back->loss.value()));
  EXPECT_EQ(back->grad_norm, kInfinity);
  EXPECT_EQ(back->val_loss, -kInfinity);
}

TEST(MetricsLineTest, ComesBackBitForBit) {
  for (const double value : {1.0 / 3, 5e-324, 1.7976931348623157e308, -0.1}) {
    EXPECT_EQ(parse_metrics_line(metrics_line(step_with_loss(1, value)))->loss, value);
  }
}

TEST(MetricsLineTest, BrokenLinesAreNotStepsAndUnknownKeysAreFine) {
  for (const char* line : {"", "{", "[]", "null", R"({"loss":1})", R"({"step":1.5})", R"({"step":"1"})",
                           R"({"step":-1})", R"({"step":1,"loss":"low"})", R"({"step":1,"comm_bytes":1e300})",
                           R"({"step":18446744073709551615})", R"({"step":1,"loss":1.)"}) {
    EXPECT_FALSE(parse_metrics_line(line)) << line;
  }
  EXPECT_EQ(parse_metrics_line(R"({"step":4,"of_a_later_version":{"x":[1]},"loss":null})")->loss, std::nullopt);
  EXPECT_FALSE(parse_metrics_line(std::string(200000, '[')));
}

class MetricsWriterTest : public ScratchTest {
 protected:
  std::filesystem::path path() const { return folder_ / "run" / "metrics.jsonl"; }
};

TEST_F(MetricsWriterTest, EachLineIsInTheFileAtOnce) {
  MetricsWriter writer(path());
  writer.write(step_with_loss(1, 5));
  EXPECT_THAT(steps_of(read_metrics(path())), ElementsAre(1));
  writer.write(step_with_loss(2, 4));
  const auto steps = read_metrics(path());
  EXPECT_THAT(steps_of(steps), ElementsAre(1, 2));
  EXPECT_GT(steps[0].wall_time.value(), 1.7e9);
}

TEST_F(MetricsWriterTest, AResumedRunRepeatsNoStep) {
  {
    MetricsWriter writer(path());
    for (int64_t step = 1; step <= 10; ++step) {
      writer.write(step_with_loss(step, 10));
    }
  }
  MetricsWriter writer(path(), /*resumed_step=*/6);
  EXPECT_EQ(writer.last_step(), 6);
  writer.write(step_with_loss(7, 1));
  const auto steps = read_metrics(path());
  EXPECT_THAT(steps_of(steps), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(steps.back().loss, 1);
  const std::string content = read_file(path());
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), 7);
}

TEST_F(MetricsWriterTest, ResumingDropsACutLineAndKeepsUnknownKeys) {
  std::filesystem::create_directories(folder_ / "run");
  put("run/metrics.jsonl", "{\"step\":1,\"loss\":2,\"note\":\"kept\"}\n{\"step\":2,\"lo");
  MetricsWriter writer(path(), 2);
  EXPECT_EQ(writer.last_step(), 1);
  writer.write(step_with_loss(3, 1));
  const std::string content = read_file(path());
  EXPECT_THAT(content, HasSubstr("\"note\":\"kept\""));
  EXPECT_THAT(steps_of(read_metrics(path())), ElementsAre(1, 3));
}

TEST_F(MetricsWriterTest, AFreshRunKeepsTheEarlierFileAside) {
  MetricsWriter(path()).write(step_with_loss(1, 5));
  MetricsWriter writer(path());
  EXPECT_EQ(writer.last_step(), -1);
  writer.write(step_with_loss(1, 3));
  EXPECT_EQ(read_metrics(path()).at(0).loss, 3);
  EXPECT_EQ(read_metrics(folder_ / "run" / "metrics.previous.jsonl").at(0).loss, 5);
}

TEST_F(MetricsWriterTest, RefusesToGoBack) {
  MetricsWriter writer(path());
  writer.write(step_with_loss(5, 1));
  EXPECT_THROW(writer.write(step_with_loss(5, 1)), Error);
  EXPECT_THROW(writer.write(step_with_loss(4, 1)), Error);
  writer.write(step_with_loss(6, 1));
  EXPECT_THAT(steps_of(read_metrics(path())), ElementsAre(5, 6));
}

TEST_F(MetricsWriterTest, AFullDiskLeavesWholeLines) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  MetricsWriter writer(path());
  writer.write(step_with_loss(1, 5));
  const rlimit tight{std::filesystem::file_size(path()) + 10, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  try {
    writer.write(step_with_loss(2, 4));
    ADD_FAILURE() << "the write must fail";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 2"));
    EXPECT_EQ(error.exit_code(), 1);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  writer.write(step_with_loss(2, 3));
  const std::string content = read_file(path());
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), 2);
  EXPECT_THAT(steps_of(read_metrics(path())), ElementsAre(1, 2));
}

using ReadMetricsTest = MetricsWriterTest;

TEST_F(ReadMetricsTest, SkipsWhatACrashLeft) {
  put("m.jsonl",
      "{\"step\":1,\"loss\":3}\n\n" + std::string(10, '\0') + "\n{\"step\":2,\"loss\":2}\r\n{\"step\":3,\"loss\":1");
  EXPECT_THAT(steps_of(read_metrics(folder_ / "m.jsonl")), ElementsAre(1, 2));
}

TEST_F(ReadMetricsTest, TheLaterLineOfAStepCounts) {
  put("m.jsonl", "{\"step\":1}\n{\"step\":2,\"loss\":9}\n{\"step\":3}\n{\"step\":2,\"loss\":8}\n");
  const auto steps = read_metrics(folder_ / "m.jsonl");
  EXPECT_THAT(steps_of(steps), ElementsAre(1, 2));
  EXPECT_EQ(steps[1].loss, 8);
}

TEST_F(ReadMetricsTest, AMissingFileIsTheUsersInput) {
  EXPECT_THROW(read_metrics(folder_ / "absent.jsonl"), InputError);
}

} // namespace
} // namespace trireme::monitor
