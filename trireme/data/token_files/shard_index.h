#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

inline constexpr const char* kShardIndexName = "index.json";

/// index.json of a folder of token shards: what they are and what they were made of.
struct ShardIndex {
  struct Shard {
    std::string file; ///< a name in the folder
    int64_t tokens = 0;
    int64_t documents = 0; ///< that begin in it
    uint64_t checksum = 0; ///< ShardHeader::checksum
  };
  struct Input {
    std::string file; ///< as it was named
    int64_t bytes = 0;
    int64_t documents = 0;
  };
  struct EndToken {
    std::string text;
    int32_t id = 0;
  };

  std::string tokenizer; ///< as it was named
  /// Its files, copied into the folder, which names it as a tokenizer; empty for "bytes".
  std::vector<std::string> tokenizer_files;
  uint64_t tokenizer_hash = 0;
  int64_t vocab_size = 0;
  int64_t token_bytes = 2;
  std::optional<EndToken> end_token; ///< behind every document that is no conversation
  int64_t tokens = 0;
  /// Not set: all. Those that count as targets of the loss.
  std::optional<int64_t> counted_tokens{};
  int64_t documents = 0;
  int64_t text_bytes = 0; ///< of the documents
  std::vector<Shard> shards;
  std::vector<Input> inputs;

  std::string to_text() const;
  /// Errors: InputError with line and column for anything that to_text() does not write.
  static ShardIndex parse(std::string_view text, const std::string& source);
  /// Reads `folder`/index.json. Errors: InputError; a folder without one is not finished, or no folder of shards.
  static ShardIndex read(const std::filesystem::path& folder);
};

/// Whether `path` is a folder with an index.json of token shards, whole or damaged.
bool is_shard_folder(const std::filesystem::path& path);

/// "43 %".
std::string percent_of(int64_t part, int64_t whole);

/// 16 hexadecimal digits.
std::string hex_of(uint64_t number);

} // namespace trireme::data
