#include <trireme/monitor/progress.h>

#include <trireme/base/log.h>
#include <trireme/monitor/resources.h>

#include <gmock/gmock.h>

#include <limits>
#include <thread>

namespace trireme::monitor {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kClear = "\r\x1b[2K";

/// A screen and a clock in the test's hand.
struct Stage {
  std::vector<std::string> writes;
  double now = 100;
  int columns = 100;

  ProgressOptions options(bool live, int64_t total_steps = 3000, bool colour = false, bool unicode = false) {
    ProgressOptions options;
    options.total_steps = total_steps;
    options.write = [this](std::string_view text) { writes.emplace_back(text); };
    options.clock = [this] { return now; };
    options.terminal = Terminal{live, colour, unicode, [this] { return columns; }};
    return options;
  }
  std::string all() const {
    std::string text;
    for (const auto& one : writes) {
      text += one;
    }
    return text;
  }
};

StepMetrics at_step(int64_t step, double loss = 1.8123) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = loss;
  metrics.tokens_per_s = 43211;
  return metrics;
}

/// What a terminal shows on its last line: text after the last return, without escape codes, in columns.
size_t shown_columns(const std::string& written) {
  size_t columns = 0;
  for (size_t i = written.rfind('\r') + 1; i < written.size(); ++i) {
    if (written[i] == '\x1b') {
      i = written.find_first_of("mK", i);
    } else if ((written[i] & 0xC0) != 0x80) {
      ++columns;
    }
  }
  return columns;
}

TEST(ProgressTest, DrawsOneLineWithEverything) {
  Stage stage;
  Progress progress(stage.options(/*live=*/true));
  progress.update(at_step(1));
  stage.now += 100;
  StepMetrics metrics = at_step(1501);
  metrics.val_loss = 1.79;
  progress.update(metrics);
  EXPECT_EQ(
      stage.writes.back(),
      kClear + "###############...............  step 1501/3000  loss 1.812  val 1.790  43.2k tok/s  1 min 40 s left");
}

TEST(ProgressTest, ValidationStaysAndAccuracyReadsInPercent) {
  Stage stage;
  Progress progress(stage.options(true));
  StepMetrics metrics = at_step(1);
  metrics.val_accuracy = 0.8844;
  metrics.tokens_per_s.reset();
  metrics.samples_per_s = 512;
  progress.update(metrics);
  stage.now += 1;
  progress.update(at_step(2));
  EXPECT_THAT(stage.writes.back(), AllOf(HasSubstr("accuracy 88.4 %"), HasSubstr("43.2k tok/s")));
  EXPECT_THAT(stage.writes.front(), HasSubstr("512 samples/s"));
}

TEST(ProgressTest, RedrawsAtMostTenTimesASecond) {
  Stage stage;
  Progress progress(stage.options(true));
  for (int64_t step = 1; step <= 1000; ++step) { // 1 ms a step
    progress.update(at_step(step));
    stage.now += 0.001;
  }
  EXPECT_GE(stage.writes.size(), 9u);
  EXPECT_LE(stage.writes.size(), 11u);
}

TEST(ProgressTest, NeverTouchesTheLastColumn) {
  for (const bool fancy : {false, true}) {
    for (int columns = 1; columns <= 160; ++columns) {
      Stage stage;
      stage.columns = columns;
      Progress progress(stage.options(true, 3000, fancy, fancy));
      progress.update(at_step(1));
      stage.now += 100;
      StepMetrics metrics = at_step(1501, 1e9);
      metrics.val_loss = 1.79;
      metrics.val_accuracy = 0.5;
      progress.update(metrics);
      progress.status("saving checkpoint é");
      ASSERT_LE(shown_columns(stage.writes.back()), static_cast<size_t>(std::max(1, columns - 1)))
          << columns << ": " << stage.writes.back();
    }
  }
}

TEST(ProgressTest, GivesUpTheLeastImportantFirst) {
  Stage stage;
  Progress progress(stage.options(true));
  progress.update(at_step(1));
  stage.now += 100;
  stage.columns = 45;
  StepMetrics metrics = at_step(1501);
  metrics.val_loss = 1.79;
  progress.update(metrics);
  EXPECT_EQ(stage.writes.back(), kClear + "step 1501/3000  loss 1.812  1 min 40 s left");
}

TEST(ProgressTest, FollowsTheWindow) {
  Stage stage;
  Progress progress(stage.options(true));
  progress.update(at_step(1));
  const size_t wide = shown_columns(stage.writes.back());
  stage.columns = 40;
  stage.now += 1;
  progress.update(at_step(2));
  EXPECT_GT(wide, 60u);
  EXPECT_LT(shown_columns(stage.writes.back()), 40u);
}

TEST(ProgressTest, ColourAndUnicodeOnlyWhereWelcome) {
  Stage plain;
  Progress(plain.options(true)).update(at_step(1500));
  EXPECT_THAT(plain.all(), AllOf(Not(HasSubstr("\x1b[3")), Not(HasSubstr("━"))));
  Stage fancy;
  Progress(fancy.options(true, 3000, true, true)).update(at_step(1500));
  EXPECT_THAT(fancy.all(), AllOf(HasSubstr("\x1b[36m"), HasSubstr("━"), HasSubstr("─")));
}

TEST(ProgressTest, LogLinesStandAboveTheLine) {
  Stage stage;
  Progress progress(stage.options(true));
  log::info("before the first step");
  EXPECT_EQ(stage.writes.back(), "before the first step\n");
  progress.update(at_step(1));
  log::warning("the scale fell");
  EXPECT_THAT(stage.writes.back(),
              AllOf(StartsWith(kClear + "warning: the scale fell\n"), HasSubstr("step    1/3000")));
  progress.finish();
  const size_t count = stage.writes.size();
  log::info("goes to stderr: the progress line is over");
  EXPECT_EQ(stage.writes.size(), count);
}

TEST(ProgressTest, LinesOfManyThreadsStayWhole) {
  Stage stage;
  {
    Progress progress(stage.options(true));
    std::thread other([] {
      for (int i = 0; i < 200; ++i) {
        log::info("line ", i);
      }
    });
    for (int64_t step = 1; step <= 200; ++step) {
      progress.update(at_step(step));
    }
    other.join();
  }
  size_t lines = 0;
  for (const auto& text : stage.writes) {
    lines += text.find("line ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(lines, 200u);
}

TEST(ProgressTest, EndsWithTheLastStateAndALineEnd) {
  Stage stage;
  Progress progress(stage.options(true));
  progress.update(at_step(1));
  progress.update(at_step(2)); // too early to be drawn
  progress.finish();
  progress.finish();
  progress.update(at_step(3));
  EXPECT_THAT(stage.all(), AllOf(HasSubstr("step    2/3000"), EndsWith("\n"), Not(HasSubstr("step    3/3000"))));
  EXPECT_EQ(std::count(stage.writes.begin(), stage.writes.end(), "\n"), 1);
}

TEST(ProgressTest, WithoutAStepNothingIsDrawn) {
  Stage stage;
  {
    Progress progress(stage.options(true));
  }
  EXPECT_EQ(stage.all(), "");
}

TEST(ProgressTest, PlainLinesAreFirstLastAndEveryFiveSeconds) {
  Stage stage;
  {
    Progress progress(stage.options(/*live=*/false, 170));
    for (int64_t step = 1; step <= 170; ++step) {
      progress.update(at_step(step));
      stage.now += 0.125;
    }
  }
  ASSERT_EQ(stage.writes.size(), 6u) << stage.all();
  EXPECT_EQ(stage.writes[1], "step  41/170  loss 1.812  43.2k tok/s  17 s left\n");
  EXPECT_THAT(stage.writes[0], StartsWith("step   1/170"));
  EXPECT_THAT(stage.writes[5], StartsWith("step 170/170"));
  EXPECT_THAT(stage.all(), AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\r"))));
}

TEST(ProgressTest, PlainRunsEndWithTheLastStateOnce) {
  Stage stage;
  {
    Progress progress(stage.options(false));
    progress.update(at_step(1));
    progress.update(at_step(2));
    progress.status("evaluating");
    progress.say("a line");
  }
  ASSERT_EQ(stage.writes.size(), 3u) << stage.all();
  EXPECT_EQ(stage.writes[1], "a line\n");
  EXPECT_THAT(stage.writes[2], StartsWith("step    2/3000"));
}

TEST(ProgressTest, TimeLeftCountsFromTheResumedStep) {
  Stage stage;
  ProgressOptions options = stage.options(false, 1000);
  options.first_step = 900;
  Progress progress(options);
  progress.update(at_step(901));
  stage.now += 9; // a second a step
  progress.update(at_step(910));
  EXPECT_THAT(stage.writes.back(), HasSubstr("1 min 30 s left"));
}

TEST(ProgressTest, SurvivesOddNumbers) {
  Stage stage;
  Progress progress(stage.options(true, /*total_steps=*/0));
  progress.update(at_step(1, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(stage.writes.back(), kClear + "step 1  loss NaN  43.2k tok/s  0 s");
  stage.now += 1;
  progress.update(at_step(5'000'000'000, std::numeric_limits<double>::infinity()));
  EXPECT_THAT(stage.writes.back(), HasSubstr("step 5000000000  loss inf"));
  Stage past;
  Progress beyond(past.options(true, 10));
  beyond.update(at_step(11));
  EXPECT_THAT(past.writes.back(), HasSubstr("################  step 11/10"));
}

} // namespace
} // namespace trireme::monitor
