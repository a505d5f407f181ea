#pragma once

#include <trireme/config/run_file.h>

#include <filesystem>

// A run keeps what a Hugging Face folder has beside its weights in RUN/model: tokenizer, chat template, config.json.
namespace trireme::generate {

inline constexpr const char* kKept = "model";

/// Copies them from the model's folder and the tokenizer's into `run_folder`/model, if there are any. A tokenizer file
/// of another name becomes tokenizer.json. Errors: Error for a file that cannot be written.
void keep_model_files(const config::RunConfig& run, const std::filesystem::path& run_folder);

/// Copies the files that a run keeps into `to`. `checkpoint`: a checkpoint in the run's folder checkpoints.
void copy_kept_files(const std::filesystem::path& checkpoint, const std::filesystem::path& to);

/// The tokenizer's path in `run`, or the run's own copy where there is no such file any more.
std::filesystem::path kept_tokenizer(const config::RunConfig& run, const std::filesystem::path& checkpoint);

} // namespace trireme::generate
