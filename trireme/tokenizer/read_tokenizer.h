#pragma once

#include <trireme/tokenizer/tokenizer.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace trireme::tokenizer {

/// Reads a tokenizer.json of Hugging Face's tokenizers: normalizer.h, pre_tokenizer.h, model.h, post_processor.h and
/// decoder.h say which parts are supported, docs/tokenizers.md has them in one table. Ignored: truncation and padding.
/// Errors: InputError with file, line and column for damage, and by name for what is not supported.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& file);

/// Reads GPT-2's pair of files: {"token": id, ...} and one merge "a b" per line. Adds no space before the text.
/// "<|endoftext|>" in the vocabulary is a special token, as in Hugging Face's GPT2TokenizerFast. Errors: InputError
/// with file and line.
std::unique_ptr<Tokenizer> read_vocab_and_merges(const std::filesystem::path& vocab,
                                                 const std::filesystem::path& merges);

/// The two files of "VOCAB,MERGES", if both are there.
std::optional<std::pair<std::filesystem::path, std::filesystem::path>> vocab_and_merges_in(const std::string& spec);

} // namespace trireme::tokenizer
