#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme::generate {

/// Checks that export_model() may write `folder`: a new one, an empty one, or an earlier export whose files nobody has
/// changed since, nor added others; it is replaced. Returns the step of such an export.
/// `source`: the folder the model began with, which must stay. Errors: InputError.
std::optional<int64_t> check_export_folder(const std::filesystem::path& folder,
                                           const std::filesystem::path& source = {});

struct Exported {
  int64_t step = 0;
  int64_t parameters = 0;
  at::ScalarType dtype = at::kFloat;
  bool is_adapter = false;         ///< a folder of PEFT
  std::optional<int64_t> replaced; ///< step of the earlier export that was there
};

/// Writes a checkpoint (one, a folder of them, or a run's folder) of a gpt, llama or bert as a Hugging Face folder:
/// config.json, weights, and the files that the run kept. `dtype`: of the weights; by default that of the folder the
/// run began with, else fp32. A run with adapters: its adapters alone, as a folder of PEFT, in fp32 by default; or, if
/// `merge`, the model with the adapters added to its weights. Values are the fp32 masters, where the checkpoint has
/// them. Memory: one file of weights (5 GB at most, or the largest parameter). The folder is made beside `folder` and
/// takes its place at once; one that fails leaves the earlier one. Errors: InputError for a checkpoint of another
/// model, for `merge` without adapters, for adapters without a Hugging Face folder that the run began with, and as
/// check_export_folder().
Exported export_model(const std::filesystem::path& from, const std::filesystem::path& folder,
                      std::optional<at::ScalarType> dtype = std::nullopt, bool merge = false);

} // namespace trireme::generate
