#include "folder_fixture.h"

#include <trireme/checkpoint/folder.h>
#include <trireme/checkpoint/hash.h>
#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/strict_json.h>

#include <nlohmann/json.hpp>

#include <array>
#include <limits>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

Manifest example() {
  Manifest manifest;
  manifest.about = {1, "global_step7", 7, 3, "2026-01-02T03:04:05Z", 2, "0123abcd"};
  manifest.files = {{"rank00000.safetensors", 0, 4096, std::string(32, 'a')},
                    {"rank00001.safetensors", 1, 2048, std::string(32, 'b')}};
  manifest.tensors["w"] = {"w", "parameter", "F32", {4, 3}, {{0, "w@0", {{}, {}, 0, 5}}, {1, "w@5", {{}, {}, 5, 12}}}};
  manifest.tensors["t"] = {
      "t", "parameter", "BF16", {2, 4}, {{0, "t@0", {{0, 0}, {2, 2}, 0, 4}}, {1, "t@0", {{0, 2}, {2, 2}, 0, 4}}}};
  manifest.state = {{"sampler", {{"position", 12}, {"seed", 18446744073709551615ULL}}}, {"lr", 0.1}};
  manifest.rank_states = {json{{"rng", "00ff"}}, nullptr};
  manifest.config = {{"steps", 100}};
  return manifest;
}

// A manifest text whose hash is right, whatever its body says.
std::string sealed(const std::string& body) {
  return concat("{\"hash\":\"", hash_of(body.data(), body.size()), "\",\n", body);
}

std::string refusal_of(const std::string& text) {
  return message_of<InputError>([&] { Manifest::parse(text, "ck/manifest.json"); });
}

TEST(ManifestTest, ComesBackAsItWas) {
  const Manifest wanted = example();
  const std::string text = wanted.to_text();
  const Manifest found = Manifest::parse(text, "manifest.json");
  EXPECT_EQ(found.to_text(), text);
  EXPECT_EQ(found.about.serial, 3);
  EXPECT_EQ(found.files[1].bytes, 2048U);
  EXPECT_EQ(found.tensors.at("w").shards[1].region.begin, 5);
  EXPECT_EQ(found.tensors.at("t").shards[1].region.box_offset, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(found.state, wanted.state);
  EXPECT_EQ(found.rank_states, wanted.rank_states);
  EXPECT_EQ(found.config, wanted.config);
  EXPECT_EQ(json::parse(text)["about"]["step"], 7) << "any JSON reader understands the file";
}

TEST(ManifestTest, DoublesKeepEveryBit) {
  Manifest manifest = example();
  const double values[] = {0.1, 1.0 / 3, 5e-324, -1.7976931348623157e308, 123456789.123456789};
  manifest.state = values;
  const Manifest found = Manifest::parse(manifest.to_text(), "manifest.json");
  for (size_t i = 0; i < std::size(values); ++i) {
    EXPECT_EQ(found.state[i].get<double>(), values[i]);
  }
}

TEST(ManifestTest, EveryFlippedBitAndEveryTruncationIsNoticed) {
  const std::string text = example().to_text();
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
      ASSERT_NE(refusal_of(damaged), "") << "bit " << bit << " of byte " << at;
    }
    ASSERT_NE(refusal_of(text.substr(0, at)), "") << "length " << at;
  }
}

TEST(ManifestTest, SaysExpectedAndFoundHash) {
  std::string text = example().to_text();
  text[text.size() - 3] ^= 1;
  EXPECT_THAT(refusal_of(text),
              AllOf(HasSubstr("ck/manifest.json: hash is "), HasSubstr("must be " + text.substr(9, 32))));
}

TEST(ManifestTest, HostileBodiesAreRefusedByName) {
  const std::string good = example().to_text();
  const std::string body = good.substr(good.find('\n') + 1);
  ASSERT_EQ(refusal_of(sealed(body)), "");
  const std::vector<std::array<std::string, 3>> cases = {
      {"rank00001.safetensors", "../rank00001.safetensors", "points out of the folder"},
      {"rank00001.safetensors", "/etc/passwd", "points out of the folder"},
      {"rank00001.safetensors", "", "points out of the folder"},
      {"\"range\":[5,12]", "\"range\":[6,12]", "\"w\" lacks elements [5, 6)"},
      {"\"range\":[5,12]", "\"range\":[4,12]", "\"w\" has elements [4, 5) twice"},
      {"\"range\":[5,12]", "\"range\":[5,13]", "\"w\": elements [5, 13) lie outside"},
      {"\"range\":[5,12]", "\"range\":[-5,12]", "\"range\" must be a whole number"},
      {"\"range\":[5,12]", "\"range\":[5]", "\"range\": [begin, end]"},
      {"\"range\":[5,12]", "\"range\":[5,18446744073709551615]", "\"range\" must be a whole number"},
      {"\"range\":[5,12]", "\"range\":[5,12.0]", "\"range\" must be a whole number"},
      {"\"range\":[5,12]", "\"range\":\"all\"", "\"range\" must be an array"},
      {"\"file\":1", "\"file\":2", "number of a file"},
      {"\"file\":1", "\"file\":-1", "\"file\" must be a whole number"},
      {"\"shape\":[4,3]", "\"shape\":[4,9223372036854775807]", "too large"},
      {"\"shape\":[4,3]", "\"shape\":[4,4]", "\"w\" lacks elements [12, 16)"},
      {"\"offset\":[0,2]", "\"offset\":[0,3]", "lies outside"},
      {"\"offset\":[0,2]", "\"offset\":[0,1]", "overlap"},
      {"\"offset\":[0,2]", "\"offset\":[2]", "does not have the dims"},
      {"\"version\":1", "\"version\":2", "written in format 2"},
      {"trireme-checkpoint", "other", "not a Trireme checkpoint"},
      {"\"tensors\":", "\"tensor\":", "\"tensors\" is missing"},
      {"\"t\":{", "\"w\":{", "\"w\" appears twice"},
      {"\"tensors\":{", "\"tensors\":[{", "not valid JSON"},
  };
  for (const auto& [from, to, says] : cases) {
    std::string changed = body;
    const size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    EXPECT_THAT(refusal_of(sealed(changed)), HasSubstr(says)) << from << " -> " << to;
  }
}

TEST(ManifestTest, WhatJsonCannotHoldIsRefusedWithItsPlace) {
  Manifest manifest = example();
  manifest.state["schedule"]["best_loss"] = std::numeric_limits<double>::infinity();
  EXPECT_THAT(message_of<InputError>([&] { manifest.to_text(); }), HasSubstr("state.schedule.best_loss is inf"));
  manifest = example();
  manifest.rank_states[1] = {{"name", "\xff"}};
  EXPECT_THAT(message_of<InputError>([&] { manifest.to_text(); }),
              HasSubstr("rank state.1.name is text that is not UTF-8"));
}

class FolderListTest : public FolderTest {};

TEST_F(FolderListTest, AboutIsReadWithoutTheRest) {
  put_content(folder_ / kManifestName, example().to_text());
  EXPECT_EQ(read_about(folder_)->tag, "global_step7");
  put_content(folder_ / kManifestName, "{}");
  EXPECT_FALSE(read_about(folder_).has_value());
  EXPECT_FALSE(read_about(folder_ / "absent").has_value());
}

TEST_F(FolderListTest, NewestIsTheLastSavedNotTheHighestStep) {
  for (const auto& [tag, serial] :
       {std::pair<const char*, int64_t>{"global_step9", 1}, {"global_step10", 2}, {"global_step5", 3}, {".old-x", 0}}) {
    Manifest manifest = example();
    manifest.about.serial = serial;
    fs::create_directories(folder_ / tag);
    put_content(folder_ / tag / kManifestName, manifest.to_text());
  }
  fs::create_directories(folder_ / ".tmp-global_step11");
  fs::create_directories(folder_ / "global_step12"); // no manifest: damaged, last
  fs::create_directories(folder_ / "notes");         // somebody else's
  std::vector<std::string> names;
  for (const FoundCheckpoint& one : list_checkpoints(folder_)) {
    names.push_back(one.folder.filename().string());
  }
  EXPECT_THAT(names, testing::ElementsAre("global_step5", "global_step10", "global_step9", ".old-x", "global_step12"));
}

TEST(TagTest, TagsAreFolderNames) {
  for (const char* good : {"global_step10", "best", "epoch-3_loss=1.2"}) {
    EXPECT_EQ(tag_problem(good), "") << good;
  }
  for (const std::string& bad : {std::string(), std::string(".."), std::string(".hidden"), std::string("a/b"),
                                 std::string("a b"), std::string("a\nb"), std::string("latest"), std::string(201, 'x'),
                                 std::string("\0x", 2), std::string("caf\u00e9")}) {
    EXPECT_NE(tag_problem(bad), "") << bad;
  }
  EXPECT_EQ(step_of("global_step120"), 120);
  EXPECT_EQ(step_of("best"), -1);
  EXPECT_EQ(step_of("12"), 12);
  EXPECT_EQ(step_of("x99999999999999999999999"), -1);
}

TEST(StrictJsonTest, RefusesWhatNlohmannLetsPass) {
  const auto refusal = [](const std::string& text) {
    return message_of<InputError>([&] { parse_strict_json(text, "x.json"); });
  };
  EXPECT_THAT(refusal(R"({"a":1,"b":{"c":1,"c":2}})"), HasSubstr("x.json: the key \"c\" appears twice"));
  EXPECT_THAT(refusal(std::string("{}\0{", 4)), HasSubstr("at byte 3: a zero byte"));
  EXPECT_THAT(refusal(std::string(101, '[')), HasSubstr("nested deeper than 100"));
  EXPECT_THAT(refusal("{} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[1e999]"), HasSubstr("not valid JSON"));
}

TEST(StrictJsonTest, EqualsNlohmannOnWhatIsRight) {
  const std::string text =
      R"({"a":[1,-2,3.5,true,null,"x",[],{}],"b":{"c":{"d":[[[{"e":18446744073709551615}]]]}},"":"\u00e9"})";
  EXPECT_EQ(parse_strict_json(text, "x"), json::parse(text));
  EXPECT_EQ(parse_strict_json("3", "x"), json(3));
}

} // namespace
} // namespace trireme::checkpoint
