#include <trireme/checkpoint/shard_report.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>

#include <nlohmann/json.hpp>

#include <utility>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

} // namespace

void check_shard(const TensorShard& shard) {
  const auto fail = [&](const std::string& happened) {
    throw InputError("checkpoint", concat("tensor \"", shard.name, "\": ", happened));
  };
  check_storable(json(shard.name), "a tensor's name");
  check_storable(json(shard.kind), "a tensor's kind");
  if (!shard.data.defined() || shard.name.empty()) {
    fail(shard.name.empty() ? "a tensor needs a name" : "is undefined");
  }
  const Region region{shard.box_offset, shard.box_size, shard.begin, shard.begin + shard.data.numel()};
  if (const std::string problem = region_problem(region, shard.global_shape); !problem.empty()) {
    fail(problem);
  }
}

json report_of(const TensorShard& shard, const std::string& key) {
  return {{"name", shard.name},
          {"kind", shard.kind},
          {"dtype", dtype_name(shard.data.scalar_type())},
          {"shape", shard.global_shape},
          {"key", key},
          {"range", {shard.begin, shard.begin + shard.data.numel()}},
          {"offset", shard.box_offset},
          {"size", shard.box_size}};
}

void add_shard(TensorEntries& tensors, const json& report, size_t file, size_t rank) {
  const std::string name = report.at("name");
  const auto [at, is_new] = tensors.try_emplace(name);
  TensorEntry& tensor = at->second;
  TensorEntry given{name, report.at("kind"), report.at("dtype"), report.at("shape").get<std::vector<int64_t>>(), {}};
  if (is_new) {
    tensor = given;
  } else if (tensor.kind != given.kind || tensor.dtype != given.dtype || tensor.shape != given.shape) {
    const auto text = [](const TensorEntry& one) {
      return concat(one.kind, ' ', one.dtype, ' ', json(one.shape).dump());
    };
    throw InputError("checkpoint", concat("tensor \"", name, "\" is ", text(tensor), " on one rank and ", text(given),
                                          " on rank ", rank));
  }
  StoredShard stored;
  stored.file = file;
  stored.key = report.at("key");
  stored.region = {report.at("offset"), report.at("size"), report.at("range").at(0), report.at("range").at(1)};
  tensor.shards.push_back(std::move(stored));
}

} // namespace trireme::checkpoint
