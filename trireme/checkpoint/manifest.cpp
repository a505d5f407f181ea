#include <trireme/checkpoint/manifest.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/hash.h>
#include <trireme/checkpoint/strict_json.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormatName = "trireme-checkpoint";
constexpr std::string_view kHashStart = "{\"hash\":\"";
constexpr std::string_view kHashEnd = "\",\n";
constexpr std::string_view kAboutStart = "\"about\":";
constexpr size_t kHashDigits = 32;
constexpr size_t kAboutMaxBytes = 8192;
constexpr size_t kMostShown = 60; // bytes of the path to a value that is too deep

json about_json(const About& about) {
  return {{"format", kFormatName},
          {"version", about.version},
          {"tag", about.tag},
          {"step", about.step},
          {"serial", about.serial},
          {"created", about.created},
          {"world_size", about.world_size},
          {"save_id", about.save_id}};
}

json shard_json(const StoredShard& shard) {
  json out = {{"file", shard.file}, {"key", shard.key}, {"range", {shard.region.begin, shard.region.end}}};
  if (!shard.region.box_size.empty()) {
    out["box"] = {{"offset", shard.region.box_offset}, {"size", shard.region.box_size}};
  }
  return out;
}

// Reads members; errors name the member and the file.
class Reader {
 public:
  Reader(const json& node, std::string where) : node_(node), where_(std::move(where)) {
    if (!node.is_object()) {
      fail("must be an object");
    }
  }
  [[noreturn]] void fail(const std::string& happened) const {
    throw InputError("checkpoint", concat(where_, ": ", happened),
                     "The checkpoint is damaged or from another program.");
  }
  const json& member(const char* key) const {
    const auto found = node_.find(key);
    if (found == node_.end()) {
      fail(concat("\"", key, "\" is missing"));
    }
    return *found;
  }
  std::string text(const char* key) const {
    const json& value = member(key);
    if (!value.is_string()) {
      fail(concat("\"", key, "\" must be text"));
    }
    return value.get<std::string>();
  }
  int64_t whole(const char* key, int64_t least = 0) const { return whole(member(key), key, least); }
  int64_t whole(const json& value, const char* key, int64_t least = 0) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) ||
        value.get<int64_t>() < least) {
      fail(concat("\"", key, "\" must be a whole number of at least ", least));
    }
    return value.get<int64_t>();
  }
  const json& array(const char* key) const {
    const json& value = member(key);
    if (!value.is_array()) {
      fail(concat("\"", key, "\" must be an array"));
    }
    return value;
  }
  std::vector<int64_t> wholes(const char* key) const {
    std::vector<int64_t> numbers;
    for (const json& value : array(key)) {
      numbers.push_back(whole(value, key));
    }
    return numbers;
  }

 private:
  const json& node_;
  std::string where_;
};

About about_from(const json& node, const std::string& where) {
  const Reader reader(node, where);
  if (reader.text("format") != kFormatName) {
    reader.fail("this is not a Trireme checkpoint");
  }
  About about;
  about.version = reader.whole("version", 1);
  if (about.version > kFormatVersion) {
    throw InputError(
        "checkpoint",
        concat(where, ": written in format ", about.version, ", this program reads up to ", kFormatVersion),
        "Update Trireme.");
  }
  about.tag = reader.text("tag");
  about.step = reader.whole("step", -1);
  about.serial = reader.whole("serial");
  about.created = reader.text("created");
  about.world_size = reader.whole("world_size", 1);
  about.save_id = reader.text("save_id");
  return about;
}

ShardFile file_from(const json& node, const std::string& where) {
  const Reader reader(node, where);
  ShardFile file;
  file.name = reader.text("name");
  file.rank = static_cast<int>(reader.whole("rank"));
  file.bytes = static_cast<uint64_t>(reader.whole("bytes"));
  file.hash = reader.text("hash");
  if (file.name.empty() || file.name[0] == '.' ||
      file.name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
    reader.fail(concat("the file name \"", file.name, "\" points out of the folder"));
  }
  return file;
}

TensorEntry tensor_from(const std::string& name, const json& node, size_t num_files, const std::string& where) {
  const Reader reader(node, concat(where, ": tensor \"", name, '"'));
  TensorEntry tensor{name, reader.text("kind"), reader.text("dtype"), reader.wholes("shape"), {}};
  for (const json& shard_node : reader.array("shards")) {
    const Reader shard_reader(shard_node, concat(where, ": tensor \"", name, "\", shard ", tensor.shards.size()));
    StoredShard shard;
    shard.file = static_cast<size_t>(shard_reader.whole("file"));
    shard.key = shard_reader.text("key");
    const std::vector<int64_t> range = shard_reader.wholes("range");
    if (range.size() != 2 || shard.file >= num_files) {
      shard_reader.fail("needs \"range\": [begin, end] and the number of a file");
    }
    shard.region.begin = range[0];
    shard.region.end = range[1];
    if (const auto box = shard_node.find("box"); box != shard_node.end()) {
      const Reader box_reader(*box, concat(where, ": tensor \"", name, "\", box"));
      shard.region.box_offset = box_reader.wholes("offset");
      shard.region.box_size = box_reader.wholes("size");
    }
    tensor.shards.push_back(std::move(shard));
  }
  check_coverage(tensor, where);
  return tensor;
}

} // namespace

int64_t TensorEntry::numel() const {
  return checked_numel(shape).value_or(0);
}

void check_coverage(const TensorEntry& tensor, const std::string& where) {
  std::vector<Region> regions;
  if (!checked_numel(tensor.shape)) {
    throw InputError("checkpoint", concat(where, ": tensor \"", tensor.name, "\" has a shape that is too large"));
  }
  for (const StoredShard& shard : tensor.shards) {
    if (const std::string problem = region_problem(shard.region, tensor.shape); !problem.empty()) {
      throw InputError("checkpoint", concat(where, ": tensor \"", tensor.name, "\": ", problem));
    }
    regions.push_back(shard.region);
  }
  if (const std::string problem = coverage_problem(regions, tensor.shape); !problem.empty()) {
    throw InputError("checkpoint", concat(where, ": tensor \"", tensor.name, "\" ", problem),
                     "Every element must come from exactly one rank.");
  }
}

namespace {

// All of a checkpoint can be read again: state, config and rank states are two levels below the top.
constexpr size_t kMostLevels = kMaxDepth - 2;

void check_storable(const json& value, const std::string& what, size_t levels) {
  if (value.is_structured() && ++levels > kMostLevels) {
    throw InputError("checkpoint",
                     concat(what.substr(0, kMostShown), what.size() > kMostShown ? "..." : "",
                            " is nested deeper than the ", kMostLevels, " levels that a checkpoint holds"),
                     "Save it flat, or as text: dump() of a JSON, read again by parse().");
  }
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    throw InputError("checkpoint", concat(what, " is ", value.get<double>(), ", which JSON cannot hold"),
                     "Save it as text or leave it out.");
  }
  if (value.is_string()) {
    try {
      value.dump();
    } catch (const json::exception&) {
      throw InputError("checkpoint", concat(what, " is text that is not UTF-8"), "Save bytes as a U8 tensor.");
    }
  }
  if (value.is_binary() || value.is_discarded()) {
    throw InputError("checkpoint", concat(what, " is binary"), "Save bytes as a U8 tensor.");
  }
  if (value.is_structured()) {
    for (const auto& [key, member] : value.items()) {
      check_storable(json(key), concat("a key of ", what), levels);
      check_storable(member, concat(what, '.', key), levels);
    }
  }
}

} // namespace

void check_storable(const json& value, const std::string& what) {
  check_storable(value, what, 0);
}

std::string Manifest::to_text() const {
  check_storable(state, "state");
  check_storable(config, "config");
  check_storable(rank_states, "rank state");
  std::string body = concat(kAboutStart, about_json(about).dump(), ",\n\"files\":[");
  const char* separator = "\n";
  for (const ShardFile& file : files) {
    body += std::exchange(separator, ",\n");
    body += json{{"name", file.name}, {"rank", file.rank}, {"bytes", file.bytes}, {"hash", file.hash}}.dump();
  }
  body += "],\n\"tensors\":{";
  separator = "\n";
  for (const auto& [name, tensor] : tensors) {
    json shards = json::array();
    for (const StoredShard& shard : tensor.shards) {
      shards.push_back(shard_json(shard));
    }
    body += std::exchange(separator, ",\n");
    body += json(name).dump() + ":" +
            json{{"kind", tensor.kind}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"shards", std::move(shards)}}
                .dump();
  }
  body += concat("},\n\"state\":", state.dump(), ",\n\"ranks\":", json(rank_states).dump(),
                 ",\n\"config\":", config.dump(), "}\n");
  return concat(kHashStart, hash_of(body.data(), body.size()), kHashEnd, body);
}

Manifest Manifest::parse(const std::string& text, const fs::path& path) {
  const std::string where = path.string();
  const size_t body_at = kHashStart.size() + kHashDigits + kHashEnd.size();
  const std::string_view view = text;
  if (view.size() < body_at || view.substr(0, kHashStart.size()) != kHashStart ||
      view.substr(body_at - kHashEnd.size(), kHashEnd.size()) != kHashEnd) {
    throw InputError("checkpoint", concat(where, " does not start with its hash"),
                     "The file is truncated, edited or from another program.");
  }
  const std::string_view expected = view.substr(kHashStart.size(), kHashDigits);
  const std::string found = hash_of(view.data() + body_at, view.size() - body_at);
  if (found != expected) {
    throw InputError("checkpoint", concat(where, ": hash is ", found, ", must be ", expected),
                     "The file is damaged or was edited.");
  }
  const json root = parse_strict_json(view, where);
  const Reader reader(root, where);
  Manifest manifest;
  manifest.about = about_from(reader.member("about"), where);
  for (const json& file : reader.array("files")) {
    manifest.files.push_back(file_from(file, concat(where, ": file ", manifest.files.size())));
  }
  const json& tensors = reader.member("tensors");
  if (!tensors.is_object()) {
    reader.fail("\"tensors\" must be an object");
  }
  for (const auto& [name, node] : tensors.items()) {
    manifest.tensors.emplace(name, tensor_from(name, node, manifest.files.size(), where));
  }
  manifest.state = reader.member("state");
  manifest.rank_states = reader.array("ranks").get<std::vector<json>>();
  manifest.config = reader.member("config");
  return manifest;
}

Manifest Manifest::read(const fs::path& folder) {
  return parse(read_file(folder / kManifestName), folder / kManifestName);
}

std::optional<About> read_about(const fs::path& folder) {
  std::ifstream in(folder / kManifestName, std::ios::binary);
  std::string start(kAboutMaxBytes, '\0');
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(in.gcount()));
  const size_t begin = start.find('\n') + 1; // 0 when there is no line end
  const size_t end = start.find(",\n", begin);
  if (begin == 0 || end == std::string::npos || start.compare(begin, kAboutStart.size(), kAboutStart) != 0) {
    return std::nullopt;
  }
  try {
    const std::string text = start.substr(begin + kAboutStart.size(), end - begin - kAboutStart.size());
    return about_from(parse_strict_json(text, kManifestName), kManifestName);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

} // namespace trireme::checkpoint
