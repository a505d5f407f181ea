#include "hand_made.h"

#include <trireme/checkpoint/describe.h>

#include <nlohmann/json.hpp>

namespace trireme::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class DescribeTest : public FolderTest {};

TEST_F(DescribeTest, ListsASafetensorsFile) {
  write_safetensors(folder_ / "m.safetensors",
                    {{"wte", at::ones({4, 3})}, {"bad\x1b[31m", at::ones({2}, at::kBFloat16)}}, {{"format", "pt"}});
  auto json = describe_json(folder_ / "m.safetensors");
  EXPECT_EQ(json["kind"], "safetensors");
  EXPECT_EQ(json["bytes"], fs::file_size(folder_ / "m.safetensors"));
  EXPECT_EQ(json["metadata"]["format"], "pt");
  EXPECT_EQ(json["tensors"][0].dump(), R"({"name":"wte","dtype":"F32","shape":[4,3],"bytes":48})");
  const std::string text = describe(folder_ / "m.safetensors");
  EXPECT_THAT(text, AllOf(HasSubstr("wte"), HasSubstr("F32"), HasSubstr("[4, 3]"), HasSubstr("48 B"),
                          HasSubstr("2 tensors"), HasSubstr("format = pt")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b"))) << "a name must not colour the terminal";
}

TEST_F(DescribeTest, ListsACheckpointAndItsDamage) {
  const at::Tensor w = at::arange(60, at::kFloat).view({6, 10});
  const fs::path one = folder_ / "global_step1";
  write_by_hand(
      one, {{part_of("w", w, 0, 30)}, {part_of("w", w, 30, 60), whole_of("rng", at::ones({5}, at::kByte), "rng")}}, 1);
  auto json = describe_json(one);
  EXPECT_EQ(json["kind"], "checkpoint");
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["about"]["world_size"], 2);
  EXPECT_EQ(json["tensors"][1].dump(),
            R"({"name":"w","kind":"parameter","dtype":"F32","shape":[6,10],"bytes":240,"shards":2})");
  EXPECT_EQ(json["state"]["serial"], 1);
  EXPECT_THAT(describe(one),
              AllOf(HasSubstr("step 1"), HasSubstr("2 ranks"), HasSubstr("rank00001.safetensors"), HasSubstr("rng")));
  EXPECT_EQ(describe(one / "manifest.json"), describe(one));

  std::string content = content_of(one / "rank00001.safetensors");
  content.back() ^= 1;
  put_content(one / "rank00001.safetensors", content);
  json = describe_json(one);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["files"][0]["ok"], true);
  EXPECT_EQ(json["files"][1]["ok"], false);
  EXPECT_THAT(describe(one), HasSubstr("DAMAGED: "));
  EXPECT_EQ(describe_json(one, /*verify_hashes=*/false)["ok"], true);
}

TEST_F(DescribeTest, ListsAFolderOfCheckpoints) {
  for (const int64_t step : {1, 2, 3}) {
    write_by_hand(folder_ / step_tag(step), {{whole_of("w", at::ones({3}))}}, step);
  }
  put_content(folder_ / "latest", "global_step3\n");
  put_content(folder_ / "global_step3" / "manifest.json", "{}");
  auto json = describe_json(folder_);
  EXPECT_EQ(json["kind"], "checkpoints");
  EXPECT_EQ(json["latest"], "global_step3");
  ASSERT_EQ(json["checkpoints"].size(), 3U);
  EXPECT_EQ(json["checkpoints"][0]["about"]["step"], 2);
  EXPECT_EQ(json["checkpoints"][2]["ok"], false);
  EXPECT_THAT(describe(folder_), AllOf(HasSubstr("latest global_step3"), HasSubstr("global_step3  DAMAGED: "),
                                       HasSubstr("global_step1  ok  step 1")));
  put_content(folder_ / "latest", "global_step9\n");
  EXPECT_THAT(describe(folder_), HasSubstr("latest global_step9, which is not there"));
}

// A checkpoint may come from anybody: nothing in it moves the cursor or writes a line of its own.
TEST_F(DescribeTest, WhatFilesSayCannotSteerATerminal) {
  const std::string evil =
      "\x1b[2J\x1b]0;title\a\r\xc2\x9b"
      "31m\x7f\nglobal_step9  ok";
  const fs::path one = folder_ / ("global_step1" + evil);
  Manifest manifest = write_by_hand(one, {{whole_of("w" + evil, at::ones({3}))}}, 1);
  manifest.about.created = evil;
  put_content(one / "manifest.json", manifest.to_text());
  const fs::path damaged = folder_ / ("global_step0" + evil);
  fs::create_directory(damaged);
  put_content(damaged / "manifest.json", "{}");
  write_safetensors(folder_ / ("x" + evil), {{"v" + evil, at::ones({2})}}, {{"key" + evil, "value" + evil}});
  for (const fs::path& path : {one, folder_, folder_ / ("x" + evil)}) {
    const std::string text = describe(path);
    EXPECT_THAT(text, HasSubstr("?[2J?]0;title??"));
    EXPECT_THAT(text, testing::Not(testing::ContainsRegex("\nglobal_step9")));
    EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos) << "a control sequence in UTF-8";
    EXPECT_TRUE(std::none_of(text.begin(), text.end(), [](unsigned char c) {
      return (c < 0x20 && c != '\n') || c == 0x7f;
    })) << text;
  }
}

TEST_F(DescribeTest, WhatIsNeitherIsRefused) {
  EXPECT_THAT(message_of<InputError>([&] { describe_json(folder_ / "absent"); }), HasSubstr("does not exist"));
  EXPECT_THROW(describe_json(folder_), InputError);
  put_content(folder_ / "x.txt", "hello world");
  EXPECT_THROW(describe_json(folder_ / "x.txt"), InputError);
}

} // namespace
} // namespace trireme::checkpoint
