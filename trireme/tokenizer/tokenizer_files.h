#pragma once

#include <trireme/tokenizer/tokenizer.h>

#include <cstdint>
#include <filesystem>
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

/// The files that decide the ids of make_tokenizer(`spec`), and beside them, if they are there, tokenizer_config.json,
/// special_tokens_map.json, generation_config.json and chat_template.jinja. None for "bytes".
std::vector<TokenizerFile> tokenizer_files(const std::string& spec);

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
