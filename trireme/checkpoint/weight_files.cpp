#include <trireme/checkpoint/weight_files.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/strict_json.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <regex>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

// One of several: model-00001-of-00002.safetensors.
bool is_part(const std::string& name) {
  static const std::regex part(R"(.*-\d{5}-of-\d{5}\.safetensors)");
  return std::regex_match(name, part) && !name.ends_with("-of-00001.safetensors");
}

fs::path choose(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return path;
  }
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(path / name, error)) {
      return path / name;
    }
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".safetensors") {
      files.push_back(entry.path());
    }
  }
  if (files.empty()) {
    throw InputError(
        "safetensors",
        concat(path.string(),
               " has neither model.safetensors nor model.safetensors.index.json, nor any "
               "other .safetensors file"),
        "Download the weights, or convert a pytorch_model.bin with transformers: save_pretrained(FOLDER).");
  }
  const auto part = std::ranges::find_if(files, [](const fs::path& file) { return is_part(file.filename().string()); });
  if (part != files.end()) {
    throw InputError(
        "safetensors",
        concat(path.string(), " has ", files.size(), files.size() == 1 ? " part, " : " parts such as ",
               part->filename().string(), ", and no model.safetensors.index.json, which says what is in which"),
        "Download that file too.");
  }
  if (files.size() != 1) {
    throw InputError("safetensors",
                     concat(path.string(), " has neither model.safetensors nor model.safetensors.index.json, and ",
                            files.size(), " other .safetensors files"),
                     "Name the file.");
  }
  return files.front();
}

// Accepts plain file names only: an index comes from the network and must not reach other folders.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

} // namespace

WeightFiles WeightFiles::open(const fs::path& path) {
  WeightFiles weights;
  weights.path_ = choose(path);
  if (weights.path_.extension() != ".json") {
    weights.files_.push_back(Safetensors::open(weights.path_));
    for (const TensorInfo& tensor : weights.files_[0].tensors()) {
      weights.file_of_.emplace(tensor.name, 0);
    }
    return weights;
  }
  const std::string where = weights.path_.string();
  const nlohmann::json index = parse_strict_json(read_file(weights.path_), where);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw InputError("safetensors", concat(where, " has no \"weight_map\" object"),
                     "Give a model.safetensors.index.json.");
  }
  std::map<std::string, size_t> opened;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      throw InputError("safetensors",
                       concat(where, ": tensor \"", name, "\" must be in a file of the same folder, found ",
                              file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)));
    }
    const auto [at, is_new] = opened.emplace(file.get<std::string>(), weights.files_.size());
    if (is_new) {
      std::error_code ignored;
      if (!fs::exists(weights.path_.parent_path() / at->first, ignored)) {
        throw InputError("safetensors", concat(where, " names ", at->first, ", which is not beside it"),
                         "The download is incomplete: fetch that file too.");
      }
      weights.files_.push_back(Safetensors::open(weights.path_.parent_path() / at->first));
    }
    if (!weights.files_[at->second].has(name)) {
      throw InputError("safetensors", concat(where, " maps \"", name, "\" to ", at->first, ", which lacks it"),
                       "Index and files do not match; fetch them again.");
    }
    weights.file_of_.emplace(name, at->second);
  }
  return weights;
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : file_of_) {
    all.push_back(name);
  }
  return all;
}

bool WeightFiles::has(std::string_view name) const {
  return file_of_.find(name) != file_of_.end();
}

const Safetensors& WeightFiles::file_of(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    const std::string like = nearest(name, names());
    throw InputError("safetensors", concat(path_.string(), " has no tensor \"", name, '"'),
                     like.empty() ? "List them with: trireme inspect FILE" : concat("Did you mean \"", like, "\"?"));
  }
  return files_[found->second];
}

at::Tensor WeightFiles::tensor(std::string_view name) const {
  return file_of(name).tensor(name);
}

} // namespace trireme::checkpoint
