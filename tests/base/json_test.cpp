#include <trireme/base/error.h>
#include <trireme/base/json.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    JsonNode::parse(text, "run.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonTest, KnowsWhereEachValueStands) {
  const auto root = JsonNode::parse("{\n  \"a\": 12,\n  \"b\": {\"c\\\"d\": [true, \"x\\\\\", 1.5]}\n}", "run.json");
  EXPECT_EQ(root.where(), "run.json:1:1");
  EXPECT_EQ(root.find("a")->where(), "run.json:2:8");
  const JsonNode& list = *root.find("b")->find("c\"d");
  EXPECT_EQ(list.where(), "run.json:3:17");
  EXPECT_EQ(list.elements()[0].where(), "run.json:3:18");
  EXPECT_EQ(list.elements()[1].where(), "run.json:3:24");
  EXPECT_EQ(list.elements()[1].as_string(), "x\\");
  EXPECT_EQ(list.elements()[2].where(), "run.json:3:31");
  EXPECT_EQ(list.elements()[2].path(), "b.c\"d[2]");
}

TEST(JsonTest, AcceptsComments) {
  const auto root = JsonNode::parse("// DeepSpeed's files have them\n{\"a\": /* here too */ 5e8}", "run.json");
  EXPECT_EQ(root.find("a")->as_integer(), 500000000);
}

TEST(JsonTest, RefusesDuplicateKeysWithBothPlaces) {
  EXPECT_THAT(error_of("{\"lr\": 1,\n \"lr\": 2}"),
              AllOf(HasSubstr("run.json:2:2"), HasSubstr("\"lr\" appears twice"), HasSubstr("run.json:1:8")));
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  EXPECT_THAT(error_of("{\"a\": 1,}"), HasSubstr("run.json:1:9: this is not JSON"));
  EXPECT_THAT(error_of("{\"a\": 1"), HasSubstr("ends too early"));
  EXPECT_THAT(error_of(""), HasSubstr("ends too early"));
  EXPECT_THAT(error_of("{} {}"), HasSubstr("run.json:1:4"));
  EXPECT_THAT(error_of("{\"a\": tru}"), HasSubstr("not JSON"));
  EXPECT_THAT(error_of("\"\xff\""), HasSubstr("not JSON"));
  EXPECT_THAT(error_of(std::string(5000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(error_of("{\"a\": 18446744073709551615}"), HasSubstr("too large"));
}

// nlohmann's parser takes a NUL for the end of the text.
TEST(JsonTest, RefusesWhatFollowsANul) {
  const auto with_nul = [](std::string text) {
    std::replace(text.begin(), text.end(), '@', '\0');
    return text;
  };
  EXPECT_THAT(error_of(with_nul("{\"a\": 1}\n@{\"a\": 2}")),
              AllOf(HasSubstr("run.json:2:1: this is not JSON"), HasSubstr("NUL")));
  EXPECT_THAT(error_of(with_nul("{\"a\": 1}@")), HasSubstr("NUL"));
  EXPECT_THAT(error_of(with_nul("{\"a\": 1} // a comment@ that goes on")), HasSubstr("NUL"));
  EXPECT_THAT(error_of(with_nul("{\"a\": 1} /* a comment@ */")), HasSubstr("not JSON"));
  EXPECT_THAT(error_of(with_nul("{\"a\"@: 1}")), HasSubstr("not JSON"));
  EXPECT_THAT(error_of(with_nul("{\"a\": \"x@y\"}")), HasSubstr("not JSON"));
  EXPECT_EQ(error_of("{\"a\": \"x\\u0000y\"}"), "") << "an escaped one is a character of a string";
}

TEST(JsonTest, ReaderRefusesUnknownKeys) {
  const auto root = JsonNode::parse("{\"gradient_clipp1ng\": 1.0, \"_comment\": \"fine\"}", "ds.json");
  ObjectReader reader(root);
  reader.get("gradient_clipping", 1.0);
  try {
    reader.finish();
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ds.json:1:23: gradient_clipp1ng: unknown key"),
                                    HasSubstr("Did you mean \"gradient_clipping\"?")));
  }
}

TEST(JsonTest, ReaderNamesTheWrongKind) {
  const auto root = JsonNode::parse("{\"steps\": \"many\", \"n\": 1.5, \"list\": [1, 2.0]}", "run.json");
  ObjectReader reader(root);
  EXPECT_THROW(reader.get<int64_t>("steps", 0), InputError);
  EXPECT_THROW(reader.get<int64_t>("n", 0), InputError);
  EXPECT_EQ(reader.get<std::vector<int64_t>>("list", {}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(reader.maybe<bool>("absent"), std::nullopt);
  EXPECT_THROW(reader.require("absent"), InputError);
}

TEST(JsonTest, SetReplacesAndCreates) {
  auto root = JsonNode::parse("{\"training\": {\"steps\": 10}}", "run.json");
  root.set("training.steps", "20");
  root.set("engine.optimizer.type", "Adam");
  EXPECT_EQ(root.find("training")->find("steps")->as_integer(), 20);
  EXPECT_EQ(root.find("engine")->find("optimizer")->find("type")->as_string(), "Adam");
  EXPECT_EQ(root.find("training")->find("steps")->where(), "--set training.steps");
  EXPECT_THROW(root.set("training.steps.more", "1"), InputError);
  EXPECT_THROW(root.set("training..steps", "1"), InputError);
  EXPECT_EQ(root.plain().dump(), R"({"training":{"steps":20},"engine":{"optimizer":{"type":"Adam"}}})");
}

TEST(JsonTest, SetNumbersElements) {
  auto root = JsonNode::parse(R"({"sets": [{"weight": 1}, {"weight": 2}], "list": [[3]]})", "run.json");
  root.set("sets.1.weight", "0.5");
  root.set("sets.0.name", "a");
  root.set("list.0.0", "4");
  EXPECT_EQ(root.plain().dump(), R"({"sets":[{"weight":1,"name":"a"},{"weight":0.5}],"list":[[4]]})");
  EXPECT_EQ(root.at("sets")->elements()[1].find("weight")->path(), "sets[1].weight");
  for (const char* path : {"sets.2.weight", "sets.-1", "sets.1x", "sets.weight", "sets.99999999999999999999"}) {
    try {
      root.set(path, "1");
      ADD_FAILURE() << path;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("sets is an array of 2 elements and has no \"")) << path;
    }
  }
}

TEST(JsonTest, SetTakesOnlyUtf8) {
  auto root = JsonNode::parse("{}", "run.json");
  EXPECT_THROW(root.set("data.train", "caf\xe9.txt"), InputError);
  EXPECT_THROW(root.set("caf\xe9", "1"), InputError);
  root.set("data.train", "caf\xc3\xa9.txt");
  EXPECT_EQ(root.plain().dump(), "{\"data\":{\"train\":\"caf\xc3\xa9.txt\"}}");
}

TEST(JsonTest, ReplaceKeepsThePlace) {
  auto root = JsonNode::parse("{\"params\":\n  {\"lr\": \"auto\", \"betas\": [0.5]}}", "ds.json");
  ASSERT_NE(root.at("params.lr"), nullptr);
  root.at("params.lr")->replace("5e-05");
  root.at("params.betas")->replace("null");
  EXPECT_EQ(root.find("params")->find("lr")->as_real(), 5e-5);
  EXPECT_EQ(root.find("params")->find("lr")->where(), "ds.json:2:10");
  EXPECT_EQ(root.find("params")->find("lr")->path(), "params.lr");
  EXPECT_TRUE(root.at("params.betas")->is_null());
  EXPECT_EQ(root.at("params.eps"), nullptr);
  EXPECT_EQ(root.at("params.lr.more"), nullptr);
  root.at("params")->erase("betas");
  root.at("params")->erase("never there");
  EXPECT_EQ(root.plain().dump(), R"({"params":{"lr":5e-05}})");
}

} // namespace
} // namespace trireme
