#pragma once

#include <trireme/data/tokenizer.h>
#include <trireme/models/language_model.h>
#include <trireme/parallel/tensor/ranks.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::generate {

/// A trained language model, ready to generate text.
struct Trained {
  models::LanguageModel model;
  /// nullptr for a run on raw tokens, and a folder, without a tokenizer that can be read.
  std::shared_ptr<const data::Tokenizer> tokenizer;
  /// Tokens with which a text ends: eos_token_id of generation_config.json, or else of config.json.
  std::vector<int32_t> end_tokens;
  std::optional<int64_t> step; ///< none: a Hugging Face folder
  /// Where its tokenizer's files are, such as a chat template: the folder, or what the run kept.
  std::filesystem::path files;
};

/// Reads a Hugging Face folder (config.json in it), a folder of PEFT whose base model is a folder of this machine, the
/// newest intact checkpoint of a run folder or checkpoints folder, or the given checkpoint. `adapter`: a folder of PEFT
/// for this model; empty: none. Adapters are merged into the weights. `ranks`: those that split the model; each reads
/// the files, and keeps its part. An adapter of the same shapes whose base model has another name is added with a
/// warning. Errors: InputError when there is none, its model is no language model or brings adapters already, the
/// adapter belongs to another base model, or the ranks do not divide the model's heads. Several ranks read the
/// checkpoint that rank 0 finds, and compare what they read first (check_same_files()): one that has another model, and
/// any error of one rank, is an error on all of them.
Trained load(const std::filesystem::path& path, const std::filesystem::path& adapter = {},
             const tensor::Ranks& ranks = {});

} // namespace trireme::generate
