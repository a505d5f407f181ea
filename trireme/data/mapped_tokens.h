#pragma once

#include <trireme/data/token_files/token_files.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace trireme::data {

/// The little-endian tokens, of 2 or 4 bytes, of a memory-mapped file.
class MappedTokens {
 public:
  /// As TokensDataset; the file's first token has number `first_token` in the data set, its first document number
  /// `first_document`. `token_bytes` is for raw files.
  MappedTokens(TokenFile file, int64_t first_token, int64_t first_document, int64_t token_bytes);
  MappedTokens(const MappedTokens&) = delete;
  MappedTokens& operator=(const MappedTokens&) = delete;

  const TokenFile& file() const { return file_; }
  const std::filesystem::path& path() const { return file_.path; }
  int64_t first_token() const { return first_token_; }
  int64_t first_document() const { return first_document_; }
  int64_t num_tokens() const { return static_cast<int64_t>(bytes_) / token_bytes_; }
  void read(int64_t start, std::span<int64_t> out) const;
  /// How many of `count` tokens from `start` on count as targets. Cost: a bit of the mask each, if there is one.
  int64_t count_targets(int64_t start, int64_t count) const;
  /// Replaces those of `targets`, the tokens from `start` on, that do not count by kIgnoredTarget.
  void ignore_targets(int64_t start, std::span<int64_t> targets) const;

  /// Tokens per block of largest_in(); the last block has the remainder.
  int64_t tokens_per_block() const { return kBlockBytes / token_bytes_; }
  int64_t num_blocks() const { return (static_cast<int64_t>(bytes_) + kBlockBytes - 1) / kBlockBytes; }
  /// The largest token of a block. Reads the block once per process, unless the file changes; prefetches block `next`
  /// (past the end: none).
  int64_t largest_in(int64_t block, int64_t next) const;

 private:
  static constexpr int64_t kBlockBytes = 8 << 20;

  void refuse_other_formats() const;
  std::span<const unsigned char> block(int64_t index) const;
  bool counts(int64_t token) const { return (file_.mask[token / 8] >> token % 8 & 1) != 0; }

  TokenFile file_;
  int64_t first_token_;
  int64_t first_document_;
  int64_t token_bytes_;
  /// The tokens, in file_.map.
  const unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
  /// The largest tokens of its blocks; -1: not read yet. Shared by all objects of this file.
  std::shared_ptr<std::vector<std::atomic<int64_t>>> largest_;
};

} // namespace trireme::data
