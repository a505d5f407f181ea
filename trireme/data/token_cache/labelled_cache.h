#pragma once

#include <trireme/data/token_cache/token_cache.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// Texts with a label each, as tokens.
struct LabelledTokens {
  std::vector<int32_t> tokens; ///< of all texts, one after the other
  std::vector<int64_t> ends;   ///< of each text in tokens
  std::vector<int64_t> labels;
};

/// Those of a run.
struct LabelledSplits {
  LabelledTokens train;
  std::optional<LabelledTokens> validation;
  std::vector<std::string> names; ///< of labels; empty if these are numbers
};

/// What decides them.
struct LabelledFiles {
  std::vector<std::filesystem::path> train{};
  std::vector<std::filesystem::path> validation{};
  std::string tokenizer = "bytes";
  int64_t sequence_length = 0;
  int64_t classes = 0;
};

/// TokenCache::find() and find_or_make() for texts with labels: a document of the shards is a text, and labels are
/// shards of their own. `encode` makes what is not there, of tokens below `vocab_size`. Memory: all of them.
std::optional<LabelledSplits> find_labelled(const TokenCache& cache, const LabelledFiles& files);
void find_or_make_labelled(const TokenCache& cache, const LabelledFiles& files, int64_t vocab_size,
                           const std::function<LabelledSplits()>& encode);

} // namespace trireme::data
