#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/weight_files.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

// Initialises a model from the weights of a checkpoint, without its optimizer states, step and samples.
namespace trireme::models {

/// The newest checkpoint in `path` (a run folder, its `checkpoints`, or one checkpoint); nullopt if there is none, as
/// in a folder of safetensors files. Cost: one read of its files. Errors: InputError when it is damaged.
std::optional<checkpoint::Checkpoint> checkpoint_in(const std::filesystem::path& path);

/// The safetensors files of `path`. Errors: InputError for a rank's part of a checkpoint, which has neither all values
/// nor the masters.
checkpoint::WeightFiles plain_weights(const std::filesystem::path& path);

/// Fills `parameter`, called `name` in the full model, from its fp32 master if `saved` has one. Errors: InputError when
/// `saved` lacks it or has it in another shape.
void load_parameter(const checkpoint::Checkpoint& saved, const std::string& name, const at::Tensor& parameter);

/// Errors: InputError naming a parameter of `saved` that the model does not have.
void check_parameter_names(const checkpoint::Checkpoint& saved, const std::set<std::string>& of_model);

/// Fills a full parameter by its name.
using FillParameter = std::function<void(const std::string& name, const at::Tensor& parameter)>;

/// Initial values of a model whose files have its own names: from the newest checkpoint in `path`, or from its
/// safetensors files. Errors: InputError, here or in a call, for a name that is not in `of_model`, one that `path`
/// lacks, and another shape.
FillParameter values_in(const std::filesystem::path& path, std::set<std::string> of_model);

} // namespace trireme::models
