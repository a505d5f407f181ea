#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme::generate {

struct Exported {
  int64_t step = 0;
  int64_t parameters = 0;
  at::ScalarType dtype = at::kFloat;
};

/// Writes a checkpoint (one, a folder of them, or a run's folder) of a gpt, llama or bert as a Hugging Face folder:
/// config.json, weights, and the files that the run kept. `dtype`: of the weights; by default that of the folder the
/// run began with, else fp32. Values are the fp32 masters, where the checkpoint has them. Memory: one file of weights
/// (5 GB at most, or the largest parameter). Errors: InputError for a checkpoint of another model, and for `folder` if
/// it holds something that is no such export.
Exported export_model(const std::filesystem::path& from, const std::filesystem::path& folder,
                      std::optional<at::ScalarType> dtype = std::nullopt);

} // namespace trireme::generate
