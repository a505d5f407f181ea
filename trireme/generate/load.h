#pragma once

#include <trireme/config/run_file.h>
#include <trireme/data/tokenizer.h>
#include <trireme/models/language_model.h>

#include <filesystem>
#include <memory>

namespace trireme::generate {

/// A trained language model, ready to generate text.
struct Trained {
  models::LanguageModel model;
  /// nullptr for a run on raw tokens without a tokenizer.
  std::shared_ptr<const data::Tokenizer> tokenizer;
  config::RunConfig run;
  int64_t step = 0;
};

/// Reads the newest intact checkpoint of a run folder or checkpoints folder, or the given checkpoint.
/// Errors: InputError when there is none, or its model is no language model.
Trained load(const std::filesystem::path& path);

} // namespace trireme::generate
