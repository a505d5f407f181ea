#pragma once

#include <trireme/data/token_files/shard_index.h>
#include <trireme/data/tokenize/line_encoder.h>
#include <trireme/data/tokenize/stop.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

struct TokenizeProgress {
  int64_t bytes_read = 0;
  int64_t bytes_total = 0; ///< of the files on the disk
  int64_t documents = 0;
  int64_t tokens = 0;
};

struct TokenizeOptions {
  /// Text files, one document each, and .jsonl files, one document a line; each also as .gz.
  std::vector<std::filesystem::path> inputs{};
  /// As make_tokenizer().
  std::string tokenizer{};
  /// The folder to make.
  std::filesystem::path out{};
  int64_t shard_tokens = int64_t{1} << 30;
  int threads = 1;
  /// How JSON lines are read.
  LineOptions lines{};
  /// The token behind each document that is no conversation: its text, or "none". Not set: the one that the tokenizer's
  /// files name, if any.
  std::optional<std::string> end_token{};
  /// Replace a finished folder.
  bool force = false;
  /// Called by the calling thread now and then.
  std::function<void(const TokenizeProgress&)> progress{};
  /// Asked as often; tokenize_files() throws Error once it returns true.
  Stop stop{};
};

struct TokenizeResult {
  ShardIndex index;
  std::filesystem::path folder; ///< absolute
  /// Documents without a token, which are left out.
  int64_t empty_documents = 0;
  /// Parts of long documents that were encoded again with the part before (part_joiner.h): each costs time.
  int64_t joined_parts = 0;
  double seconds = 0;
};

/// Encodes the documents of `inputs`, in order, into a folder of token shards (token_files/shard_format.h) with an
/// index.json and a copy of the tokenizer's files. The tokens of a document are those of its whole text, whatever its
/// size and the number of threads; special tokens are not added, except the end token. Which tokens count as targets is
/// what LineEncoder says; an end token counts. The folder appears whole or not at all.
///
/// Memory: about 1 MB for each block under way, of which there are twice as many as threads; what long JSON lines need
/// one at a time (up to 22 times their bytes); the tokenizer, with a cache of words for each thread; a bit for each
/// token of a shard in which not all count. Cost: one pass; reading and unpacking is one thread's.
///
/// Errors: InputError naming the file (and line) for input that cannot be read, files without any token, an output
/// folder that has other content or an input in it; Error for a full disk, and if `stop` ended the work, a block (some
/// 256 KiB, or a longer JSON line) after it was asked.
TokenizeResult tokenize_files(const TokenizeOptions& options);

} // namespace trireme::data
