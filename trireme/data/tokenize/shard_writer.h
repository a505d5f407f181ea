#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/data/token_files/shard_format.h>
#include <trireme/data/token_files/shard_index.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct XXH3_state_s;

namespace trireme::data {

/// Writes documents as shards tokens-00000.bin, ... A shard has `shard_tokens` tokens, the last one the rest, and at
/// most 8 million beginnings of documents, whose table is in memory. So is the mask of a shard with a token that does
/// not count, 1 bit a token; others have no mask.
class ShardWriter {
 public:
  struct Options {
    std::filesystem::path folder{};
    int64_t token_bytes = 2;
    int64_t vocab_size = 0;
    uint64_t tokenizer_hash = 0;
    int64_t shard_tokens = 0;
  };
  explicit ShardWriter(Options options);
  ~ShardWriter();

  /// Adds tokens, the first of which `begins` a document. `counted`: 1 for each that counts as a target of the loss,
  /// else 0; empty: all count. Errors: Error for a full disk.
  void append(std::span<const int32_t> tokens, std::span<const uint8_t> counted, bool begins);
  /// Finishes the last shard; all are on the disk. There must be a token.
  std::vector<ShardIndex::Shard> finish();

 private:
  void open_shard();
  void finish_shard();
  void write_tokens(std::span<const int32_t> tokens);
  void mask_tokens(std::span<const uint8_t> counted);
  void pad_to(uint64_t offset);
  void write(const char* data, size_t bytes);
  void flush();
  [[noreturn]] void fail(const char* what) const;

  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  Options options_;
  std::filesystem::path path_; // of the shard that is written
  Descriptor file_;
  std::string buffer_;
  std::unique_ptr<XXH3_state_s, Free> hash_;
  int64_t num_tokens_ = 0;
  uint64_t written_ = 0; // bytes of the shard
  std::vector<uint64_t> documents_;
  std::vector<uint8_t> mask_; // of the shard; bits of tokens that do not count are 1 here
  int64_t uncounted_ = 0;
  std::vector<ShardIndex::Shard> shards_;
};

} // namespace trireme::data
