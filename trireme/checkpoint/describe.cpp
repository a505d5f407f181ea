#include <trireme/checkpoint/describe.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/checkpoint/safetensors_header.h>
#include <trireme/checkpoint/weight_files.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json weights_json(const fs::path& path) {
  const WeightFiles weights = WeightFiles::open(path);
  const bool is_one = weights.files().size() == 1;
  Json out = {{"kind", is_one ? "safetensors" : "weights"}, {"path", path.string()}, {"bytes", 0}};
  uint64_t bytes = 0;
  Json tensors = Json::array();
  Json metadata = Json::object();
  Json files = Json::array();
  for (const Safetensors& file : weights.files()) {
    bytes += file.file_bytes();
    files.push_back({{"name", file.path().filename().string()}, {"bytes", file.file_bytes()}});
    for (const auto& [key, value] : file.metadata()) {
      metadata[key] = value;
    }
    for (const TensorInfo& tensor : file.tensors()) {
      tensors.push_back({{"name", tensor.name},
                         {"dtype", tensor.dtype},
                         {"shape", tensor.shape},
                         {"bytes", tensor.end - tensor.begin}});
    }
  }
  out["bytes"] = bytes;
  out["files"] = files;
  out["metadata"] = metadata;
  out["tensors"] = tensors;
  return out;
}

Json about_json(const About& about) {
  return {{"tag", about.tag},
          {"step", about.step},
          {"created", about.created},
          {"world_size", about.world_size},
          {"version", about.version}};
}

Json checkpoint_json(const fs::path& folder, bool verify_hashes) {
  const Manifest manifest = Manifest::read(folder);
  Json out = {{"kind", "checkpoint"},
              {"path", folder.string()},
              {"bytes", 0},
              {"ok", true},
              {"about", about_json(manifest.about)}};
  uint64_t bytes = 0;
  bool is_ok = true;
  Json files = Json::array();
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ShardFile& file = manifest.files[i];
    const std::string problem = file_problem(folder, manifest, i, verify_hashes);
    Json line = {
        {"name", file.name}, {"rank", file.rank}, {"bytes", file.bytes}, {"hash", file.hash}, {"ok", problem.empty()}};
    if (!problem.empty()) {
      line["problem"] = problem;
      is_ok = false;
    }
    files.push_back(line);
    bytes += file.bytes;
  }
  Json tensors = Json::array();
  for (const auto& [name, tensor] : manifest.tensors) {
    tensors.push_back({{"name", name},
                       {"kind", tensor.kind},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"bytes", static_cast<uint64_t>(tensor.numel()) * dtype_bytes(tensor.dtype)},
                       {"shards", tensor.shards.size()}});
  }
  out["bytes"] = bytes;
  out["ok"] = is_ok;
  out["files"] = files;
  out["tensors"] = tensors;
  out["state"] = manifest.state;
  out["config"] = manifest.config;
  return out;
}

Json checkpoints_json(const fs::path& root, bool verify_hashes) {
  Json out = {
      {"kind", "checkpoints"}, {"path", root.string()}, {"latest", read_latest(root)}, {"checkpoints", Json::array()}};
  for (const FoundCheckpoint& one : list_checkpoints(root)) {
    Json found;
    try {
      found = checkpoint_json(one.folder, verify_hashes);
    } catch (const InputError& error) {
      found = {{"kind", "checkpoint"}, {"path", one.folder.string()}, {"ok", false}, {"problem", error.what()}};
    }
    if (found["ok"] || is_there(one.folder)) { // a running job may have removed it
      out["checkpoints"].push_back(std::move(found));
    }
  }
  return out;
}

std::string padded(std::string text, size_t width, bool right = false) {
  if (text.size() < width) {
    text.insert(right ? 0 : text.size(), width - text.size(), ' ');
  }
  return text;
}

// Printable form of names and values from files.
std::string shown(const Json& of_file) {
  return printable(of_file.get<std::string>());
}

std::string table(const Json& tensors) {
  std::vector<std::vector<std::string>> rows;
  double numel = 0;
  double bytes = 0;
  for (const Json& tensor : tensors) {
    std::vector<std::string> shape;
    double product = 1;
    for (const Json& size : tensor["shape"]) {
      shape.push_back(std::to_string(size.get<int64_t>()));
      product *= size.get<double>();
    }
    numel += product;
    bytes += tensor["bytes"].get<double>();
    rows.push_back({shown(tensor["name"]), printable(tensor.value("kind", "")), shown(tensor["dtype"]),
                    concat("[", join(shape, ", "), "]"), format_bytes(tensor["bytes"].get<double>())});
  }
  std::vector<size_t> widths(5, 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string out;
  for (const auto& row : rows) {
    out += "  " + padded(row[0], widths[0]);
    for (size_t i = 1; i < row.size(); ++i) {
      out += widths[i] == 0 ? "" : "  " + padded(row[i], widths[i], i == 4);
    }
    out += "\n";
  }
  return out + concat("  ", rows.size(), " tensors, ", format_count(numel), " elements, ", format_bytes(bytes), "\n");
}

std::string first_problem(const Json& damaged) {
  if (damaged.contains("problem")) {
    return shown(damaged["problem"]);
  }
  const auto file = std::ranges::find_if(damaged["files"], [](const Json& one) { return !one["ok"].get<bool>(); });
  return shown((*file)["problem"]);
}

std::string checkpoint_text(const Json& one) {
  const std::string path = shown(one["path"]);
  if (one.contains("problem")) {
    return concat(path, ": DAMAGED: ", shown(one["problem"]), "\n");
  }
  const Json& about = one["about"];
  std::string out =
      concat("checkpoint ", path, "\n  tag ", shown(about["tag"]), ", step ", about["step"].get<int64_t>(), ", saved ",
             shown(about["created"]), " by ", about["world_size"].get<int64_t>(), " rank",
             about["world_size"] == 1 ? "" : "s", ", ", format_bytes(one["bytes"].get<double>()), "\n");
  for (const Json& file : one["files"]) {
    out += concat("  ", shown(file["name"]), "  ", format_bytes(file["bytes"].get<double>()), "  ",
                  file["ok"].get<bool>() ? std::string("ok") : concat("DAMAGED: ", shown(file["problem"])), "\n");
  }
  return out + table(one["tensors"]);
}

} // namespace

Json describe_json(const fs::path& given, bool verify_hashes) {
  std::error_code error;
  const fs::path path = checkpoints_of(given);
  if (!is_there(path)) {
    throw InputError("inspect", concat(path.string(), " does not exist"), "Check the path.");
  }
  if (fs::is_directory(path, error)) {
    if (fs::exists(path / kManifestName, error)) {
      return checkpoint_json(path, verify_hashes);
    }
    if (!list_checkpoints(path).empty()) {
      return checkpoints_json(path, verify_hashes);
    }
  }
  return path.filename() == kManifestName ? checkpoint_json(path.parent_path(), verify_hashes) : weights_json(path);
}

std::string describe(const fs::path& path, bool verify_hashes) {
  return text_of(describe_json(path, verify_hashes));
}

bool has_damage(const Json& found) {
  const auto is_damaged = [](const Json& one) { return !one.value("ok", true); };
  return found.contains("checkpoints") ? std::ranges::any_of(found["checkpoints"], is_damaged) : is_damaged(found);
}

std::string text_of(const Json& found) {
  const std::string path = shown(found["path"]);
  const std::string kind = found["kind"];
  if (kind == "checkpoint") {
    return checkpoint_text(found);
  }
  if (kind == "checkpoints") {
    const std::string latest = found["latest"];
    const bool latest_exists = std::ranges::any_of(found["checkpoints"], [&](const Json& one) {
      return fs::path(one["path"].get<std::string>()).filename() == latest;
    });
    std::string out = concat(path, ": ", found["checkpoints"].size(),
                             found["checkpoints"].size() == 1 ? " checkpoint, latest " : " checkpoints, latest ",
                             latest.empty() ? "missing" : latest,
                             latest.empty() || latest_exists ? "" : ", which is not there", "\n");
    bool is_first = true;
    for (const Json& one : found["checkpoints"]) {
      const bool is_whole = one["ok"];
      if (is_whole && std::exchange(is_first, false)) {
        out += checkpoint_text(one);
        continue;
      }
      out += concat(shown(one["path"]), "  ", is_whole ? "ok" : "DAMAGED",
                    one.contains("about") ? concat("  step ", one["about"]["step"].get<int64_t>(), "  ",
                                                   format_bytes(one["bytes"].get<double>()))
                                          : "",
                    is_whole ? "" : concat(": ", first_problem(one)), "\n");
    }
    return out;
  }
  std::string out = concat(kind, " ", path, ", ", format_bytes(found["bytes"].get<double>()), "\n");
  for (const Json& file : found["files"]) {
    out += kind == "weights" ? concat("  ", shown(file["name"]), "  ", format_bytes(file["bytes"].get<double>()), "\n")
                             : "";
  }
  for (const auto& [key, value] : found["metadata"].items()) {
    out += concat("  ", printable(key), " = ", shown(value), "\n");
  }
  return out + table(found["tensors"]);
}

} // namespace trireme::checkpoint
