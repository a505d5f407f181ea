#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

Finished schedule(const std::string& arguments) {
  return sh(concat(kTrireme, " schedule ", arguments), 20);
}

TEST(ScheduleCommandTest, DrawsThePlan) {
  const Finished drawn = schedule("--kind 1f1b --stages 2 --micro-batches 2");
  EXPECT_EQ(drawn.status, 0);
  EXPECT_THAT(drawn.output, StartsWith("1f1b: 2 stages, 2 micro-batches\n\nstage 0 |0 1 . . (0) . (1) |\n"));
  EXPECT_THAT(drawn.output, HasSubstr("bubble 33.3 %"));
}

// Scripts rely on these names.
TEST(ScheduleCommandTest, SaysTheFiguresAsJson) {
  const auto json = nlohmann::json::parse(schedule("--kind 1f1b --stages 4 --micro-batches 8 --json").output);
  EXPECT_EQ(json.at("kind"), "1f1b");
  EXPECT_EQ(json.at("stages"), 4);
  EXPECT_EQ(json.at("micro_batches"), 8);
  EXPECT_EQ(json.at("chunks"), 1);
  EXPECT_NEAR(json.at("bubble").get<double>(), 3.0 / 11, 1e-12);
  EXPECT_EQ(json.at("peak_in_flight"), (nlohmann::json{4, 3, 2, 1}));
  EXPECT_EQ(json.at("total"), 33);
  const auto bubble = [](const std::string& arguments) {
    return nlohmann::json::parse(schedule(arguments + " --stages 4 --micro-batches 8 --json").output)
        .at("bubble")
        .get<double>();
  };
  EXPECT_NEAR(bubble("--kind naive"), 0.75, 1e-12);
  EXPECT_NEAR(bubble("--kind gpipe"), 3.0 / 11, 1e-12);
  EXPECT_NEAR(bubble("--kind interleaved"), 3.0 / 19, 1e-12);
  EXPECT_NEAR(bubble("--kind interleaved --chunks 4"), 3.0 / 35, 1e-12);
  EXPECT_NEAR(bubble("--kind zero-bubble"), 3.0 / 27, 1e-12);
}

TEST(ScheduleCommandTest, PrintsPrograms) {
  EXPECT_THAT(schedule("--kind gpipe --stages 2 --micro-batches 1 --program").output,
              HasSubstr("  1 forward of micro-batch 0, chunk 0, buffer 0\n"));
  const auto json =
      nlohmann::json::parse(schedule("--kind gpipe --stages 2 --micro-batches 1 --program --json").output);
  EXPECT_EQ(json.at("programs").at(1).at(0),
            (nlohmann::json{{"op", "recv_activation"}, {"micro_batch", 0}, {"chunk", 0}, {"buffer", 0}}));
}

TEST(ScheduleCommandTest, WritesAnImageAndReadsATrace) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_schedule_", ::getpid());
  fs::create_directories(folder);
  const std::string trace = (folder / "trace.json").string();
  const std::string image = (folder / "trace.svg").string();
  write_file_atomically(trace, R"({"traceEvents": [{"ph": "X", "name": "F 0 0", "pid": 0, "ts": 0, "dur": 1000},
    {"ph": "X", "name": "F 0 0", "pid": 1, "ts": 1000, "dur": 1000}, {"ph": "X", "name": "B 0 0", "pid": 1, "ts": 2000, "dur": 1000},
    {"ph": "X", "name": "B 0 0", "pid": 0, "ts": 3000, "dur": 1000}]})");
  const Finished drawn = schedule(concat("--trace ", trace, " --kind 1f1b --svg ", image));
  EXPECT_EQ(drawn.status, 0) << drawn.output;
  EXPECT_THAT(drawn.output, HasSubstr("bubble 50.0 %, 4 ms"));
  EXPECT_THAT(drawn.output, HasSubstr("1f1b on paper: bubble 50 %"));
  EXPECT_THAT(read_file(image), StartsWith("<svg"));
  const auto json = nlohmann::json::parse(schedule(concat("--json --trace ", trace)).output);
  EXPECT_TRUE(json.at("measured").get<bool>());
  EXPECT_TRUE(json.at("kind").is_null());
  EXPECT_EQ(json.at("total"), 4);
  fs::remove_all(folder);
}

TEST(ScheduleCommandTest, RefusesWhatMakesNoSense) {
  const auto refused = [](const std::string& arguments, const std::string& words) {
    const Finished finished = schedule(arguments);
    EXPECT_EQ(finished.status, 2) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr(words));
  };
  refused("", "--kind, --stages and --micro-batches are needed");
  refused("--kind 1f2b --stages 4 --micro-batches 8", "Did you mean \"1f1b\"?");
  refused("--kind 1f1b --stages 0 --micro-batches 8", "--stages");
  refused("--kind 1f1b --stages -2 --micro-batches 8", "--stages");
  refused("--kind 1f1b --stages four --micro-batches 8", "--stages");
  refused("--kind 1f1b --stages 99999999999 --micro-batches 8", "31 bits");
  refused("--kind zero-bubble --stages 4096 --micro-batches 4096", "forwards in a step");
  refused("--kind 1f1b --stages 2 --micro-batches 8 --chunks 2", "Use interleaved");
  refused("--trace /nowhere/trace.json", "/nowhere/trace.json");
  refused("--trace /nowhere/trace.json --stages 2", "Remove --stages");
  refused("--trace /nowhere/trace.json --micro-batchs 2", "--micro-batchs");
}

} // namespace
} // namespace trireme::tools
