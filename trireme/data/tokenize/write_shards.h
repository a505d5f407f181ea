#pragma once

#include <trireme/data/tokenize/tokenize.h>
#include <trireme/tokenizer/tokenizer.h>

#include <filesystem>
#include <functional>

namespace trireme::data {

/// The part of tokenize_files() that makes shards; the options' `out` and `force` are not read. `folder` returns the
/// folder for them, which is there: it is called when options and inputs are known to be good. The result's index lacks
/// tokenizer_files. `tokenizer` is the one that the options name. Memory, cost and errors as tokenize_files();
/// ChangedInput (input_stamp.h) for an input that changes while it is read.
TokenizeResult write_shards(const TokenizeOptions& options, const tokenizer::Tokenizer& tokenizer,
                            const std::function<std::filesystem::path()>& folder);

} // namespace trireme::data
