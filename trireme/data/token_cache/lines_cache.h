#pragma once

#include <trireme/data/loss_on.h>
#include <trireme/data/token_cache/text_cache.h>
#include <trireme/data/token_cache/token_cache.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// JSON lines of a run and what they become tokens with.
struct LineFiles {
  std::vector<std::filesystem::path> train{};
  std::vector<std::filesystem::path> validation{};
  /// As make_tokenizer().
  std::string tokenizer = "bytes";
  LossOn loss_on = LossOn::response;
  /// As LineOptions::chat_template and place.
  std::string chat_template{};
  std::string place{};
};

/// TokenCache::find() and find_or_make() for JSON lines, whose tokens and masks are those of write_shards(). What
/// decides them beside the tokenizer, chat templates and end tokens in its folder, belongs to the files of the entry:
/// another template makes it again. Cost of making: one pass over the files; memory as tokenize_files(). Errors: those
/// of write_shards().
std::optional<CachedText> find_lines(const TokenCache& cache, const LineFiles& lines);
CachedText find_or_make_lines(const TokenCache& cache, const LineFiles& lines, const MakeTokenizer& tokenizer,
                              int threads);

} // namespace trireme::data
