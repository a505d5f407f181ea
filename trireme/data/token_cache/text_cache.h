#pragma once

#include <trireme/data/token_cache/token_cache.h>
#include <trireme/tokenizer/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

using MakeTokenizer = std::function<std::shared_ptr<const tokenizer::Tokenizer>()>;

/// The texts of a run and what they become tokens with.
struct TextFiles {
  std::vector<std::filesystem::path> train{};
  /// Empty: the last `validation_fraction` of `train`.
  std::vector<std::filesystem::path> validation{};
  double validation_fraction = 0;
  /// As make_tokenizer().
  std::string tokenizer = "bytes";
};

/// Their tokens, as token shards (token_files/shard_format.h).
struct CachedText {
  struct Split {
    std::vector<std::filesystem::path> shards;
    int64_t tokens = 0;
    TextBytes bytes; ///< zeros for JSON lines
  };
  Split train;
  std::optional<Split> validation;
  /// CachedTokens::in_use.
  std::shared_ptr<const Descriptor> in_use;

  /// An entry whose splits have these names.
  static constexpr const char* kTrain = "train";
  static constexpr const char* kValidation = "validation";
  static CachedText of(const CachedTokens& found);
};

/// TokenCache::find() and find_or_make() for texts. Both texts are encoded as TextDataset does it, each in one piece,
/// with `threads` threads; `tokenizer` is only called for that. Cost of making: one pass over the texts, with
/// validation_fraction another one to count their bytes; memory as encode_text(). Errors: InputError for texts that
/// cannot be read or encoded in parts.
std::optional<CachedText> find_text(const TokenCache& cache, const TextFiles& texts);
CachedText find_or_make_text(const TokenCache& cache, const TextFiles& texts, const MakeTokenizer& tokenizer,
                             int threads);

} // namespace trireme::data
