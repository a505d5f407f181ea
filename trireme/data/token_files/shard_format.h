#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The format of a token shard. All numbers are little-endian.
//
//   byte 0    char[8]  "TRTOKENS"
//        8    uint32   version: 1, or 2 with a mask
//       12    uint32   bytes per token: 2 or 4
//       16    uint64   size of the vocabulary: all tokens are below
//       24    uint64   T, number of tokens
//       32    uint64   D, number of documents that begin here
//       40    uint64   offset of the document table
//       48    uint64   XXH3-64 of the tokenizer's files (tokenizer/tokenizer_files.h)
//       56    uint64   XXH3-64 of all bytes from 128 on
//       64    uint64   version 2: number of tokens that count as targets; version 1: 0
//       72    byte[48] zeros
//      120    uint64   XXH3-64 of bytes 0 to 119
//      128             T tokens, then zeros up to a multiple of 64
//    table    uint64   D numbers, ascending: the token of this shard with which a document begins
//    mask     version 2, behind zeros up to a multiple of 64: ceil(T / 8) bytes, bit i % 8 of byte i / 8 is 1 where
//             token i counts as a target of the loss. Version 1: all count
//
// A document may go on in the next shard: tokens before the first document of the table belong to the last document of
// the shard before.
namespace trireme::data {

inline constexpr std::string_view kShardMagic = "TRTOKENS";
/// Of shards with a mask; without one it is 1.
inline constexpr uint32_t kShardVersion = 2;
inline constexpr size_t kShardHeaderBytes = 128;
/// Tokens, table and mask begin at multiples of this.
inline constexpr size_t kShardAlignment = 64;

/// Ids of a larger vocabulary need 4 bytes each.
inline constexpr int64_t kMost16BitVocabulary = 65536;
inline int64_t token_bytes_of(int64_t vocab_size) {
  return vocab_size <= kMost16BitVocabulary ? 2 : 4;
}

struct ShardHeader {
  int64_t token_bytes = 2;
  int64_t vocab_size = 0;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t checksum = 0;
  /// Tokens that count as targets of the loss; has a mask if set.
  std::optional<int64_t> counted_tokens{};

  /// Where the document table begins.
  uint64_t documents_offset() const;
  /// Where the mask begins, if there is one.
  uint64_t mask_offset() const;
  /// The size of the whole file.
  uint64_t file_bytes() const;
  /// The first kShardHeaderBytes of the file.
  std::string encode() const;
};

/// Whether a file that begins with `head` is a token shard, of any version.
bool is_shard(std::string_view head);

/// Reads the header of a shard whose whole content is `file`, and compares the size and the document table with it.
/// Cost: one read of the table. Errors: InputError naming `path` for a file that is cut off, longer than its header
/// says, of another version, or with a damaged header or table. The bits of the mask are not read.
ShardHeader read_shard_header(std::span<const unsigned char> file, const std::filesystem::path& path);

/// Whether the tokens and the table are those that were written. Cost: one read of the file.
bool has_right_checksum(std::span<const unsigned char> file, uint64_t checksum);

/// Reads a little-endian number; `at` may have any alignment.
uint64_t read_u64(const unsigned char* at);

} // namespace trireme::data
