#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

// The format of a token shard. All numbers are little-endian.
//
//   byte 0    char[8]  "TRTOKENS"
//        8    uint32   version, 1
//       12    uint32   bytes per token: 2 or 4
//       16    uint64   size of the vocabulary: all tokens are below
//       24    uint64   T, number of tokens
//       32    uint64   D, number of documents that begin here
//       40    uint64   offset of the document table
//       48    uint64   XXH3-64 of the tokenizer's files (tokenizer/tokenizer_files.h)
//       56    uint64   XXH3-64 of all bytes from 128 on
//       64    byte[56] zeros
//      120    uint64   XXH3-64 of bytes 0 to 119
//      128             T tokens, then zeros up to a multiple of 64
//    table    uint64   D numbers, ascending: the token of this shard with which a document begins
//
// A document may go on in the next shard: tokens before the first document of the table belong to the last document of
// the shard before.
namespace trireme::data {

inline constexpr std::string_view kShardMagic = "TRTOKENS";
inline constexpr uint32_t kShardVersion = 1;
inline constexpr size_t kShardHeaderBytes = 128;
/// Tokens and table begin at multiples of this.
inline constexpr size_t kShardAlignment = 64;

struct ShardHeader {
  int64_t token_bytes = 2;
  int64_t vocab_size = 0;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t checksum = 0;

  /// Where the document table begins.
  uint64_t documents_offset() const;
  /// The size of the whole file.
  uint64_t file_bytes() const;
  /// The first kShardHeaderBytes of the file.
  std::string encode() const;
};

/// Whether a file that begins with `head` is a token shard, of any version.
bool is_shard(std::string_view head);

/// Reads the header of a shard whose whole content is `file`, and compares the size and the document table with it.
/// Cost: one read of the table. Errors: InputError naming `path` for a file that is cut off, longer than its header
/// says, of another version, or with a damaged header or table.
ShardHeader read_shard_header(std::span<const unsigned char> file, const std::filesystem::path& path);

/// Whether the tokens and the table are those that were written. Cost: one read of the file.
bool has_right_checksum(std::span<const unsigned char> file, uint64_t checksum);

/// Reads a little-endian number; `at` may have any alignment.
uint64_t read_u64(const unsigned char* at);

} // namespace trireme::data
