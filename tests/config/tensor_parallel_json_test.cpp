#include <trireme/base/error.h>
#include <trireme/config/deepspeed_json.h>

#include <gmock/gmock.h>

namespace trireme::config {
namespace {

using Kind = tensor::SplitRule::Kind;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

EngineConfig engine_of(const std::string& text) {
  return read_deepspeed(JsonNode::parse(text, "ds.json"));
}

TEST(TensorParallelJson, ReadsDeepSpeedsSpecsIntoRules) {
  const EngineConfig config = engine_of(
      R"({"train_batch_size": 8, "tensor_parallel": {"autotp_size": 4, "tp_grain_size": 16, "dtype": "fp16", "partition_config": {
    "use_default_specs": false,
    "layer_specs": [
      {"patterns": [".*\\.gate$"], "partition_type": "skip"},
      {"patterns": [".*\\.qkv\\.weight$", ".*\\.gate_up$"], "shape": [3, -1], "partition_dim": 0},
      {"patterns": ".*\\.o_proj$", "partition_type": "row", "partition_dim": 1},
      {"patterns": ["wte"], "partition_type": "vocabulary"},
      {"patterns": ["lm_head"], "partition_type": "column", "gather_output": true}]}}})");
  const tensor::TensorParallelKeys& keys = config.tensor_parallel;
  EXPECT_EQ(keys.size, 4);
  ASSERT_EQ(keys.rules.size(), 6u);
  EXPECT_EQ(keys.rules[0].kind, Kind::skip);
  EXPECT_EQ(keys.rules[1].kind, Kind::column);
  EXPECT_EQ(keys.rules[1].pattern, ".*\\.qkv\\.weight$");
  EXPECT_EQ(keys.rules[1].blocks, 3);
  EXPECT_EQ(keys.rules[1].grain, 16);
  EXPECT_EQ(keys.rules[2].pattern, ".*\\.gate_up$");
  EXPECT_EQ(keys.rules[3].kind, Kind::row);
  EXPECT_EQ(keys.rules[3].blocks, 1);
  EXPECT_EQ(keys.rules[4].kind, Kind::vocabulary);
  EXPECT_EQ(keys.rules[5].kind, Kind::column_gathered);
  EXPECT_EQ(to_json(config)["tensor_parallel"]["partition_config"]["layer_specs"][1].dump(),
            R"({"patterns":[".*\\.qkv\\.weight$"],"partition_type":"column","gather_output":false,"shape":[3,-1]})");
}

TEST(TensorParallelJson, IsOffByDefault) {
  for (const char* text : {R"({})", R"({"tensor_parallel": {}})", R"({"tensor_parallel": {"autotp_size": 0}})",
                           R"({"tensor_parallel": {"autotp_size": 1, "tp_size": 1}})"}) {
    EXPECT_EQ(engine_of(text).tensor_parallel.size, 1) << text;
  }
  EXPECT_EQ(
      engine_of(
          R"({"tensor_parallel": {"tp_size": 2, "partition_config": {"layer_specs": {"patterns": "a", "partition_type": "row"}}}})")
          .tensor_parallel.size,
      2);
}

TEST(TensorParallelJson, SaysWhatIsWrongAndWhere) {
  const auto specs = [](const std::string& spec) {
    return concat(R"({"tensor_parallel": {"autotp_size": 2, "partition_config": {"layer_specs": [)", spec, "]}}}");
  };
  const std::vector<std::vector<std::string>> cases = {
      {R"({"tensor_parallel": {"autotp_size": 2}})",
       "1:37: tensor_parallel.autotp_size:", "nothing says which weights are split", "parallel.tensor"},
      {R"({"tensor_parallel": {"autotp_size": 2, "tp_size": 4}})", "tensor_parallel.tp_size:", "autotp_size is 2",
       "Keep one"},
      {specs(R"({"partition_type": "row"})"), "layer_specs[0]:", "\"patterns\" is missing", ""},
      {specs(R"({"patterns": "a", "partition_typ": "row"})"), "layer_specs[0]", "unknown key", "partition_type"},
      {specs(R"({"patterns": "a", "partition_type": "rows"})"),
       "layer_specs[0].partition_type:", "\"rows\" is not one of the choices", "\"row\""},
      {specs(R"({"patterns": "h.(0"})"), "layer_specs[0].patterns:", "is not a regular expression", ""},
      {specs(concat(R"({"patterns": ")", std::string(1001, '('), "\"}")),
       "layer_specs[0].patterns:", "more than 1000 characters", ""},
      {specs(R"({"patterns": "a", "partition_type": "row", "gather_output": true})"),
       "gather_output:", "belongs to partition_type \"column\", not \"row\"", ""},
      {specs(R"({"patterns": "a", "partition_type": "row", "shape": [3, -1]})"), "shape:", "belongs to partition_type",
       ""},
      {specs(R"({"patterns": "a", "shape": [3, 4]})"), "shape:", "is not understood", "[N, -1]"},
      {specs(R"({"patterns": "a", "shape": [2.5, -1]})"), "shape:", "is not understood", "[N, -1]"},
      {specs(R"({"patterns": "a", "shape": []})"), "shape:", "is not understood", ""},
      {specs(R"({"patterns": "a", "shape": [[1, 2], -1]})"), "shape", "number", ""},
      {specs(R"({"patterns": "a", "partition_dim": 1})"), "partition_dim:", "splits dim 0", ""},
      {specs(R"({"patterns": "a", "model_types": ["llama"]})"), "model_types:", "not yet", ""},
      {specs("3"), "layer_specs[0]", "must be an object", ""},
  };
  for (const std::vector<std::string>& c : cases) {
    EXPECT_THAT([&] { engine_of(c[0]); },
                ThrowsMessage<InputError>(AllOf(HasSubstr(c[1]), HasSubstr(c[2]), HasSubstr(c[3]))))
        << c[0];
  }
}

} // namespace
} // namespace trireme::config
