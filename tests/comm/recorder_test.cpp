#include <trireme/comm/recorder.h>
#include <trireme/comm/world.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

TEST(RecorderTest, KeepsTheLast1024InOrder) {
  Recorder recorder;
  std::vector<uint64_t> tickets;
  for (int64_t number = 1; number <= 1500; ++number) {
    tickets.push_back(recorder.add("data", number, "all_reduce", number * 4, torch::kFloat32, "bucket"));
  }
  recorder.change(tickets[10], OpState::failed); // overwritten long ago
  recorder.change(tickets[1499], OpState::done);
  const auto records = recorder.records();
  ASSERT_EQ(records.size(), 1024U);
  EXPECT_EQ(records.front().number, 477);
  EXPECT_EQ(records.back().number, 1500);
  EXPECT_EQ(records.back().state, OpState::done);
  EXPECT_GE(records.back().finished_us, records.back().queued_us);
  EXPECT_TRUE(std::none_of(records.begin(), records.end(),
                           [](const Record& record) { return record.state == OpState::failed; }));
}

TEST(RecorderTest, WritesJsonThatSaysEverything) {
  Recorder recorder;
  recorder.add("pipe", 3, "send", 128, torch::kBFloat16, "activations", 1);
  const auto json = recorder.json();
  const auto& op = json.at("operations").at(0);
  EXPECT_EQ(op.at("group"), "pipe");
  EXPECT_EQ(op.at("number"), 3);
  EXPECT_EQ(op.at("op"), "send");
  EXPECT_EQ(op.at("bytes"), 128);
  EXPECT_EQ(op.at("dtype"), "BFloat16");
  EXPECT_EQ(op.at("what"), "activations");
  EXPECT_EQ(op.at("peer"), 1);
  EXPECT_EQ(op.at("state"), "queued");
}

TEST(RecorderTest, GroupsRecordTheirOperations) {
  const Group group;
  group.all_reduce(torch::ones({5}), ReduceOp::sum, "loss").wait();
  const auto record = Recorder::process().records().back();
  EXPECT_EQ(record.group, "self");
  EXPECT_STREQ(record.op, "all_reduce");
  EXPECT_EQ(record.what, "loss");
  EXPECT_EQ(record.bytes, 20);
  EXPECT_EQ(record.state, OpState::done);
}

} // namespace
} // namespace trireme::comm
