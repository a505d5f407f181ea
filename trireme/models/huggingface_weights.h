#pragma once

#include <trireme/checkpoint/weight_files.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Weights in Hugging Face's folders, for any family of models. Names of parameters are Hugging Face's already.
namespace trireme::models {

/// A key of config.json, and its name in a run file's "model".
struct ConfigKey {
  const char* config = nullptr;
  const char* run_file = nullptr;
};

/// What the files of one family of models have of their own. Families: huggingface_families.h.
struct HuggingFaceFamily {
  /// Where errors are: "gpt".
  const char* where;
  /// Part of parameters' names that some files leave out: "transformer.".
  std::string_view prefix;
  /// The embedding's weight, which a tied head shares, and the head's own.
  std::string_view embedding;
  std::string_view head;
  /// Between prefix and the number of a block: "h.".
  std::string_view blocks;
  /// Keys from which follows whether there are parameters whose name ends so, and each of their sizes. The first row
  /// that fits counts.
  struct Row {
    std::string_view ending;
    ConfigKey existence;
    std::vector<ConfigKey> sizes;
  };
  std::vector<Row> rows;
  ConfigKey layers;
  /// Endings of tensors of files and checkpoints that a model may do without: constant masks, and heads of other tasks.
  std::vector<std::string_view> optional = {};
  /// Beginnings of parameters that are random if files or checkpoints lack them: the head of a new task.
  std::vector<std::string_view> may_be_new = {};
  /// Endings of names, and other endings that old files have for them.
  std::vector<std::pair<std::string_view, std::string_view>> old_endings = {};
  /// Whether files have matrices of blocks as [in, out].
  bool transposes_blocks = false;
};

/// Checks the names in `files`, read from `path`, against `parameters`. Errors: InputError naming a tensor that is not
/// in `parameters`, with the key of config.json; a head that differs from the embedding if the model has none. Cost:
/// one read of head and embedding in that case.
void check_names(const HuggingFaceFamily& family, const std::set<std::string>& parameters,
                 const checkpoint::WeightFiles& files, const std::filesystem::path& path);

/// Whether the files have this parameter, under whatever name.
bool has_parameter(const HuggingFaceFamily& family, const std::string& name, const checkpoint::WeightFiles& files);
/// Whether a model may do without this tensor of its files.
bool is_optional(const HuggingFaceFamily& family, std::string_view name);
/// Whether a model may begin with random values of it.
bool may_be_new(const HuggingFaceFamily& family, const std::string& name);

/// Fills one full parameter from the files, in its own type. Errors: InputError when it is missing or has another
/// shape, with the key of config.json that this follows from.
void load_parameter(const HuggingFaceFamily& family, const std::string& name, const at::Tensor& parameter,
                    const checkpoint::WeightFiles& files, const std::filesystem::path& path);

/// A parameter to be saved. `value` is called once, when its file is written.
struct SavedParameter {
  std::string name;
  std::vector<int64_t> sizes;
  std::function<at::Tensor()> value;
};

struct SaveOptions {
  /// Type of the values in the files.
  at::ScalarType dtype = at::kFloat;
  /// Beyond this, several files and an index.
  int64_t max_shard_bytes = 5'000'000'000;
};

/// Writes model.safetensors into `folder`, or model-00001-of-0000N.safetensors and so on with an index; a larger
/// parameter is a file by itself. Makes missing folders and removes the weights of a save of another number of files.
/// Memory: the parameters of one file, converted. Errors: InputError for a name twice.
void save_huggingface(const HuggingFaceFamily& family, const std::vector<SavedParameter>& parameters,
                      const std::filesystem::path& folder, const SaveOptions& options = {});

/// The tensor of a file for a parameter.
at::Tensor as_in_files(const HuggingFaceFamily& family, const std::string& name, const at::Tensor& value);

} // namespace trireme::models
