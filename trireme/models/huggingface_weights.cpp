#include <trireme/models/huggingface_weights.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/safetensors.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";

bool is_transposed(const HuggingFaceFamily& family, const std::string& name, int64_t dims) {
  return family.transposes_blocks && dims == 2 && name.find(concat('.', family.blocks)) != std::string::npos;
}

// Some files leave out the prefix, or have old endings.
std::string name_in(const HuggingFaceFamily& family, const checkpoint::WeightFiles& files, const std::string& name) {
  if (files.has(name)) {
    return name;
  }
  const std::string plain = name.starts_with(family.prefix) ? name.substr(family.prefix.size()) : name;
  for (const auto& [ending, old] : family.old_endings) {
    for (const std::string& one : {name, plain}) {
      if (const std::string other = concat(one.substr(0, one.size() - ending.size()), old);
          one.ends_with(ending) && files.has(other)) {
        return other;
      }
    }
  }
  return plain;
}

/// Number of the block that has this parameter.
std::optional<int64_t> block_of(const HuggingFaceFamily& family, std::string_view name) {
  if (name.starts_with(family.prefix)) {
    name.remove_prefix(family.prefix.size());
  }
  int64_t block = 0;
  if (!name.starts_with(family.blocks)) {
    return std::nullopt;
  }
  name.remove_prefix(family.blocks.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), block);
  return error == std::errc() ? std::optional(block) : std::nullopt;
}

const HuggingFaceFamily::Row* row_of(const HuggingFaceFamily& family, std::string_view name) {
  const auto found =
      std::find_if(family.rows.begin(), family.rows.end(), [&](const auto& row) { return name.ends_with(row.ending); });
  return found == family.rows.end() ? nullptr : &*found;
}

std::string described(const ConfigKey& key) {
  return key.run_file == nullptr
             ? concat('"', key.config, "\" in config.json")
             : concat('"', key.config, "\" in config.json (model.", key.run_file, " in a run file)");
}

/// The key that says whether the model has `name`, of which some other blocks may have the same.
ConfigKey existence_key(const HuggingFaceFamily& family, std::string_view name, bool is_known_block) {
  const HuggingFaceFamily::Row* row = row_of(family, name);
  const bool by_row = row != nullptr && row->existence.config != nullptr;
  return by_row && (is_known_block || !block_of(family, name)) ? row->existence : family.layers;
}

// Compares values, whatever their types, by blocks of rows, without a full copy.
bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kRows = 1024;
  if (a.sizes() != b.sizes() || a.dim() == 0) {
    return false;
  }
  for (int64_t row = 0; row < a.size(0); row += kRows) {
    const auto block = [&](const at::Tensor& whole) { return whole.slice(0, row, row + kRows).to(at::kDouble); };
    if (!block(a).equal(block(b))) {
      return false;
    }
  }
  return true;
}

// A tied model has one weight for both: the file's head must equal its embedding.
void check_tied_head(const HuggingFaceFamily& family, const checkpoint::WeightFiles& files, const fs::path& path) {
  const std::string embedding = name_in(family, files, std::string(family.embedding));
  if (files.has(family.head) && files.has(embedding) &&
      !are_equal(files.tensor(family.head), files.tensor(embedding))) {
    throw InputError(
        family.where,
        concat(path.string(), ": tensor \"", family.head, "\" differs from \"", embedding,
               "\", but with model.tie_embeddings true the model has one weight for both: the head would be lost"),
        concat("Set model.tie_embeddings to false to start from both, or remove \"", family.head,
               "\" from the file to start from the embedding."));
  }
}

std::string shard_name(size_t number, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

/// Whether a file of the folder would be read as weights beside those just written.
bool is_old_weights(const fs::path& file, const std::set<std::string>& written) {
  const std::string name = file.filename().string();
  return written.count(name) == 0 &&
         (name == kIndex || name == "model.safetensors" ||
          (name.starts_with("model-") && name.find("-of-") != std::string::npos && name.ends_with(".safetensors")));
}

} // namespace

void check_names(const HuggingFaceFamily& family, const std::set<std::string>& parameters,
                 const checkpoint::WeightFiles& files, const fs::path& path) {
  std::set<std::string> places;
  int64_t blocks = 0;
  for (const std::string& parameter : parameters) {
    places.insert(name_in(family, files, parameter));
    blocks = std::max(blocks, block_of(family, parameter).value_or(-1) + 1);
  }
  for (const std::string& name : files.names()) {
    if (places.count(name) == 0 && !is_optional(family, name) && name != family.head) {
      const bool is_known_block = block_of(family, name).value_or(blocks) < blocks;
      throw InputError(family.where, concat(path.string(), ": the model has no tensor \"", name, '"'),
                       concat("This follows from ", described(existence_key(family, name, is_known_block)), '.'));
    }
  }
  if (parameters.count(std::string(family.head)) == 0) {
    check_tied_head(family, files, path);
  }
}

bool has_parameter(const HuggingFaceFamily& family, const std::string& name, const checkpoint::WeightFiles& files) {
  return files.has(name_in(family, files, name));
}

bool is_optional(const HuggingFaceFamily& family, std::string_view name) {
  return std::any_of(family.optional.begin(), family.optional.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool may_be_new(const HuggingFaceFamily& family, const std::string& name) {
  return std::any_of(family.may_be_new.begin(), family.may_be_new.end(),
                     [&](std::string_view beginning) { return name.starts_with(beginning); });
}

void load_parameter(const HuggingFaceFamily& family, const std::string& name, const at::Tensor& parameter,
                    const checkpoint::WeightFiles& files, const fs::path& path) {
  const torch::NoGradGuard no_grad;
  const std::string stored = name_in(family, files, name);
  if (!files.has(stored)) {
    // Another tensor of the block tells whether the block or only this tensor is missing.
    const std::vector<std::string> names = files.names();
    const bool is_known_block = std::any_of(names.begin(), names.end(), [&](const std::string& other) {
      return block_of(family, other) == block_of(family, stored);
    });
    throw InputError(family.where, concat(path.string(), " has no tensor \"", name, '"'),
                     name == family.head
                         ? "Set model.tie_embeddings to true (\"tie_word_embeddings\" in config.json) if the file has "
                           "tied embeddings."
                         : concat("This follows from ", described(existence_key(family, name, is_known_block)),
                                  "; names must be Hugging Face's."));
  }
  const at::Tensor source = files.tensor(stored);
  const bool transposed = is_transposed(family, name, parameter.dim());
  const at::Tensor wanted = transposed ? parameter.detach().t() : parameter.detach();
  if (source.sizes() != wanted.sizes()) {
    std::string next = "Set the sizes in \"model\" to those of the file.";
    const HuggingFaceFamily::Row* row = row_of(family, name);
    if (row != nullptr && source.dim() == wanted.dim()) {
      for (int64_t dim = 0; dim < std::min<int64_t>(wanted.dim(), std::ssize(row->sizes)); ++dim) {
        if (source.size(dim) != wanted.size(dim)) {
          const int64_t place = transposed ? wanted.dim() - 1 - dim : dim;
          next = concat("Its size ", wanted.size(dim), " follows from ",
                        described(row->sizes[static_cast<size_t>(place)]), '.');
          break;
        }
      }
    }
    throw InputError(family.where,
                     concat(path.string(), ": tensor \"", stored, "\" has shape ", source.sizes(), ", the model needs ",
                            wanted.sizes()),
                     next);
  }
  wanted.copy_(source);
}

at::Tensor as_in_files(const HuggingFaceFamily& family, const std::string& name, const at::Tensor& value) {
  const at::Tensor plain = value.detach();
  return is_transposed(family, name, plain.dim()) ? plain.t().contiguous() : plain;
}

void save_huggingface(const HuggingFaceFamily& family, const std::vector<SavedParameter>& parameters,
                      const fs::path& folder, const SaveOptions& options) {
  make_private_folders(folder);
  const auto element = static_cast<int64_t>(c10::elementSize(options.dtype));
  std::vector<std::vector<const SavedParameter*>> shards(1);
  int64_t in_shard = 0, total = 0;
  for (const SavedParameter& parameter : parameters) {
    const int64_t bytes = c10::multiply_integers(parameter.sizes) * element;
    if (!shards.back().empty() && in_shard + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(&parameter);
    in_shard += bytes;
    total += bytes;
  }
  std::set<std::string> written;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shards.size() == 1 ? "model.safetensors" : shard_name(i + 1, shards.size());
    std::vector<checkpoint::NamedTensor> tensors;
    for (const SavedParameter* parameter : shards[i]) {
      tensors.push_back(
          {parameter->name, as_in_files(family, parameter->name, parameter->value().detach().to(options.dtype))});
      map[parameter->name] = file;
    }
    checkpoint::write_safetensors(folder / file, tensors, {{"format", "pt"}});
    written.insert(file);
  }
  if (shards.size() > 1) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    write_file_atomically(folder / kIndex, index.dump(2) + "\n");
    written.insert(kIndex);
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (is_old_weights(entry.path(), written)) {
      fs::remove(entry.path());
    }
  }
}

} // namespace trireme::models
