#include <trireme/config/tensor_parallel_json.h>

#include <algorithm>

namespace trireme::config {
namespace {

using Kind = tensor::SplitRule::Kind;

// [blocks, -1]
int64_t read_blocks(const JsonNode& node) {
  const auto number = [&](size_t i) { return node.elements().at(i).as_real(); };
  if (node.elements().size() != 2 || number(0) < 1 ||
      number(0) != static_cast<double>(static_cast<int64_t>(std::clamp(number(0), 1.0, 1e6))) || number(1) != -1) {
    node.fail("this shape is not understood",
              "Write [N, -1] for rows that are N equal blocks. Blocks that differ (grouped-query attention) need a "
              "layer each.");
  }
  return static_cast<int64_t>(number(0));
}

void read_spec(const JsonNode& node, int64_t grain, std::vector<tensor::SplitRule>& out) {
  const Values values(&node, "engine.tensor_parallel.partition_config.layer_specs");
  const auto type = values.get<std::string>("partition_type", "column");
  tensor::SplitRule rule;
  rule.kind = type == "row"          ? Kind::row
              : type == "vocabulary" ? Kind::vocabulary
              : type == "skip"       ? Kind::skip
                                     : Kind::column;
  rule.grain = grain;
  const auto only_of_columns = [&](const char* key) {
    if (rule.kind != Kind::column) {
      values.find(key)->fail(concat("belongs to partition_type \"column\", not \"", type, '"'), "Leave it out.");
    }
  };
  if (values.get("gather_output", false)) {
    only_of_columns("gather_output");
    rule.kind = Kind::column_gathered;
  }
  if (const JsonNode* shape = values.find("shape")) {
    only_of_columns("shape");
    rule.blocks = read_blocks(*shape);
  }
  if (const JsonNode* dim = values.find("partition_dim");
      dim != nullptr && dim->as_integer() != (rule.kind == Kind::row ? 1 : 0)) {
    dim->fail(
        concat("partition_type \"", type, "\" splits dim ", rule.kind == Kind::row ? 1 : 0, " of a weight [out, in]"),
        "Leave it out.");
  }
  for (const std::string& pattern : values.patterns("patterns")) {
    rule.pattern = pattern;
    out.push_back(rule);
  }
}

} // namespace

tensor::TensorParallelKeys read_tensor_parallel(const Values& values) {
  tensor::TensorParallelKeys out;
  const auto autotp = values.get<int64_t>("autotp_size", 0);
  const auto tp = values.get<int64_t>("tp_size", 1);
  if (autotp > 1 && tp > 1 && autotp != tp) {
    values.find("tp_size")->fail(
        concat("autotp_size is ", autotp, ", which means the same, at ", values.find("autotp_size")->where()),
        "Keep one of the two.");
  }
  out.size = std::max({autotp, tp, int64_t{1}});
  const Values partition = values.section("partition_config");
  if (const JsonNode* specs = partition.find("layer_specs")) {
    const auto grain = values.get<int64_t>("tp_grain_size", 1);
    if (specs->is_object()) {
      read_spec(*specs, grain, out.rules);
    } else {
      for (const JsonNode& spec : specs->elements()) {
        read_spec(spec, grain, out.rules);
      }
    }
  }
  if (out.size > 1 && out.rules.empty()) {
    values.find(autotp > 1 ? "autotp_size" : "tp_size")
        ->fail("nothing says which weights are split",
               "Write partition_config.layer_specs for a model of your own; the gpt of a run file is split by "
               "parallel.tensor.");
  }
  return out;
}

} // namespace trireme::config
