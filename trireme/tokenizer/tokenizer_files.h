#pragma once

#include <trireme/tokenizer/tokenizer.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tokenizer {

/// A file of a tokenizer, and the name under which a folder that has a copy of it is a tokenizer too.
struct TokenizerFile {
  std::filesystem::path path;
  std::string name;
  bool decides = true; ///< its ids
};

/// The files that decide the ids of make_tokenizer(`spec`): a tokenizer.json, or a vocabulary and its merges. None for
/// "bytes". Errors: InputError if `spec` names no tokenizer, or one of the pair is missing.
std::vector<TokenizerFile> deciding_files(const std::string& spec);

/// The same, and those of kBesideTokenizer that are in their folder. None for "bytes". Errors: as deciding_files().
std::vector<TokenizerFile> tokenizer_files(const std::string& spec);

/// What Hugging Face's libraries read beside the files that decide.
inline constexpr std::array kBesideTokenizer = {"tokenizer_config.json",
                                                "special_tokens_map.json",
                                                "added_tokens.json",
                                                "generation_config.json",
                                                "chat_template.jinja",
                                                "chat_template.json",
                                                "vocab.json",
                                                "merges.txt",
                                                "vocab.txt",
                                                "tokenizer.model"};

/// "eos_token_id" of generation_config.json in `folder`, or else of config.json: a number or a list. Empty if neither
/// says one. Errors: InputError with its place for an id outside of [0, vocab_size).
std::vector<int32_t> end_token_ids_in(const std::filesystem::path& folder,
                                      int64_t vocab_size = std::numeric_limits<int32_t>::max());

/// A token with which a text ends.
struct EndToken {
  std::string text;
  int32_t id = 0;
};

/// The end token that the tokenizer's files name: "eos_token" of tokenizer_config.json, else "eos_token_id" of
/// generation_config.json or config.json beside it (the first of several), else "<|endoftext|>" of GPT-2's pair of
/// files. Errors: InputError for one that is not in the vocabulary.
std::optional<EndToken> end_token_of(const std::string& spec, const Tokenizer& tokenizer);

/// The token that `text` is. Errors: InputError if it is not exactly one.
EndToken end_token_named(const std::string& text, const Tokenizer& tokenizer);

} // namespace trireme::tokenizer
