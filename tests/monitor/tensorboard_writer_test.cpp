#include "scratch.h"

#include <trireme/monitor/crc32c.h>
#include <trireme/monitor/tensorboard_writer.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace trireme::monitor {
namespace {

using nlohmann::json;
using testing::MatchesRegex;

TEST(Crc32cTest, MatchesTheVectorsOfRfc3720) {
  std::string rising;
  std::string falling;
  for (int i = 0; i < 32; ++i) {
    rising.push_back(static_cast<char>(i));
    falling.push_back(static_cast<char>(31 - i));
  }
  const std::string read_command(
      "\x01\xc0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\0\0\x04\0\0\0\0\x14\0\0\0\x18\x28\0\0\0\0\0\0\0\x02\0\0\0\0\0\0"
      "\0",
      48);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
  EXPECT_EQ(crc32c(falling), 0x113FDB5Cu);
  EXPECT_EQ(crc32c(read_command), 0xD9963A56u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

/// PyPI tensorboard prints what it finds in the folder, as JSON.
constexpr const char* kReader = R"py(
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
scalars = {t: [[e.step, repr(e.value), e.wall_time] for e in events.Scalars(t)] for t in tags["scalars"]}
texts = {t: [[e.step, [s.decode() for s in tensor_util.make_ndarray(e.tensor_proto).tolist()]] for e in events.Tensors(t)]
         for t in tags["tensors"]}
plugins = {t: events.SummaryMetadata(t).plugin_data.plugin_name for t in tags["tensors"]}
print("JSON" + json.dumps({"scalars": scalars, "texts": texts, "plugins": plugins, "version": events.file_version}))
)py";

class TensorBoardWriterTest : public ScratchTest {
 protected:
  json read_back() const {
    const std::string output = python(kReader, folder_ / "tensorboard");
    const size_t at = output.rfind("JSON{");
    return at == std::string::npos ? json() : json::parse(output.substr(at + 4));
  }
};

TEST_F(TensorBoardWriterTest, TensorboardReadsScalarsAndTexts) {
  {
    TensorBoardWriter writer(folder_ / "tensorboard");
    EXPECT_THAT(writer.path().filename().string(), MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..+"));
    for (int64_t step = 1; step <= 300; ++step) {
      writer.scalar("loss/train", 1.0 / static_cast<double>(step), step);
    }
    writer.scalar("big", 3e9, int64_t{5'000'000'000});
    writer.scalar("odd", std::numeric_limits<double>::quiet_NaN(), 7);
    writer.text("config", "# é\n\n    {\"a\": 1}", 0);
    writer.text("sample", std::string(100000, 'x'), 300);
    writer.text("broken", "a\xFF", 1);
  }
  const json found = read_back();
  ASSERT_TRUE(found.is_object());
  EXPECT_EQ(found["version"], 2.0);
  const json& loss = found["scalars"]["loss/train"];
  ASSERT_EQ(loss.size(), 300u);
  for (int64_t step = 1; step <= 300; ++step) {
    const json& point = loss[static_cast<size_t>(step - 1)];
    ASSERT_EQ(point[0], step);
    ASSERT_EQ(std::stof(point[1].get<std::string>()), static_cast<float>(1.0 / static_cast<double>(step)));
    ASSERT_GT(point[2].get<double>(), 1.7e9);
  }
  EXPECT_EQ(found["scalars"]["big"][0][0], int64_t{5'000'000'000});
  EXPECT_EQ(found["scalars"]["odd"][0][1], "nan");
  EXPECT_EQ(found["texts"]["config"], json({{0, {"# é\n\n    {\"a\": 1}"}}}));
  EXPECT_EQ(found["texts"]["sample"][0][1][0].get<std::string>().size(), 100000u);
  EXPECT_EQ(found["texts"]["broken"][0][1][0], "a\xEF\xBF\xBD");
  EXPECT_EQ(found["plugins"]["config"], "text");
}

TEST_F(TensorBoardWriterTest, StepsBecomeTagsAndAResumedRunReplacesLaterPoints) {
  StepMetrics metrics;
  {
    TensorBoardWriter writer(folder_ / "tensorboard");
    for (metrics.step = 1; metrics.step <= 5; ++metrics.step) {
      metrics.loss = 10.0;
      metrics.comm_bytes = 4096;
      metrics.device_peak_bytes = 512;
      metrics.host_syncs = 1;
      writer.step(metrics);
    }
  }
  {
    TensorBoardWriter writer(folder_ / "tensorboard", /*resumed_step=*/3);
    metrics.step = 4;
    metrics.loss = 20.0;
    metrics.val_loss = 2.5;
    writer.step(metrics);
  }
  const json found = read_back();
  ASSERT_TRUE(found.is_object());
  json loss = json::array();
  for (const json& point : found["scalars"]["loss/train"]) {
    loss.push_back({point[0], point[1]});
  }
  EXPECT_EQ(loss, json({{1, "10.0"}, {2, "10.0"}, {3, "10.0"}, {4, "20.0"}}));
  EXPECT_EQ(found["scalars"]["traffic/comm_bytes"].size(), 4u);
  EXPECT_EQ(found["scalars"]["memory/device_peak_bytes"][0][1], "512.0");
  EXPECT_EQ(found["scalars"]["speed/host_syncs"][0][1], "1.0");
  EXPECT_EQ(found["scalars"]["loss/validation"][0][1], "2.5");
  EXPECT_FALSE(found["scalars"].contains("lr"));
}

TEST_F(TensorBoardWriterTest, FramesCarryTheirChecksums) {
  std::filesystem::path path;
  {
    TensorBoardWriter writer(folder_ / "tensorboard");
    writer.scalar("a", 1, 1);
    path = writer.path();
  }
  const std::string content = read_file(path);
  const auto number = [&](size_t at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; --i) {
      value = value << 8 | static_cast<uint8_t>(content.at(at + static_cast<size_t>(i)));
    }
    return value;
  };
  size_t at = 0;
  int frames = 0;
  for (; at < content.size(); ++frames) {
    const uint64_t length = number(at, 8);
    ASSERT_EQ(number(at + 8, 4), masked_crc32c(std::string_view(content).substr(at, 8)));
    ASSERT_EQ(number(at + 12 + length, 4), masked_crc32c(std::string_view(content).substr(at + 12, length)));
    at += 16 + length;
  }
  EXPECT_EQ(at, content.size());
  EXPECT_EQ(frames, 2);
}

TEST_F(TensorBoardWriterTest, AFolderThatCannotBeMadeIsNamed) {
  put("tensorboard", "a file");
  try {
    TensorBoardWriter writer(folder_ / "tensorboard");
    ADD_FAILURE() << "must throw";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cannot create"));
  }
}

} // namespace
} // namespace trireme::monitor
