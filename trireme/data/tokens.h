#pragma once

#include <trireme/data/dataset.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

class MappedTokens;

/// One of `parts` equal shares of some work, which the ranks of a host divide.
struct Share {
  int64_t part = 0;
  int64_t parts = 1;
};

/// Reads little-endian tokens of 2 bytes (uint16) or 4 from memory-mapped files, concatenated: raw ones (nanoGPT's
/// .bin), folders of token shards or single shards (token_files/shard_format.h), and Megatron's .bin with its .idx.
///
/// Sample i is tokens [i*L, i*L + L]: int64 input and target [B, L], the target one token later. Memory: none of its
/// own; pages are read when touched and shared between ranks of a host. Errors: InputError for a file that is missing,
/// empty or without an integer number of tokens, and for fewer than L + 1 tokens. Reading throws InputError naming
/// file, position and value for a token >= vocab_size (0: not checked). A file must not be shortened while in use: the
/// system then ends the program.
class TokensDataset : public Dataset {
 public:
  /// `token_bytes` is 2 or 4, of raw files; others say their own, and all must be equal. 0: 2, with an InputError for
  /// what cannot be 16-bit tokens. That is a vocabulary above 65,536, or a file that is packed, was written by np.save,
  /// or seems to hold wider ones (suggested_token_bytes() of its first MiB). A shard says its vocabulary, which is
  /// compared with `vocab_size` at once.
  ///
  /// `pack`: samples tell apart their documents. A second input [B, L] (int64) has the position of each token in its
  /// document, or in the sample if the document began before it. A target that begins another document is
  /// kIgnoredTarget. Cost: a search among the documents for each sample. Errors: InputError for a raw file, whose
  /// documents are unknown.
  TokensDataset(const std::vector<std::filesystem::path>& files, int64_t sequence_length, int64_t vocab_size = 0,
                int64_t token_bytes = 0, bool pack = false);
  ~TokensDataset() override;

  int64_t size() const override { return size_; }
  Batch get(std::span<const int64_t> indices) const override;
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  /// True if a shard has a mask, or samples tell apart documents. Targets of which it says that they do not count are
  /// kIgnoredTarget.
  bool masks_targets() const override { return masks_targets_; }
  /// Cost: one read of the samples' bits.
  int64_t counted_targets(std::span<const int64_t> indices) const override;
  /// Of the checksums in the headers of shards; unknown for other files.
  uint64_t checksum() const override;
  std::string describe() const override;
  int64_t num_tokens() const { return num_tokens_; }
  /// Those that count as targets of the loss, whatever documents are told apart. Cost: the headers of shards.
  int64_t counted_tokens() const;
  /// Of the tokenizer that made the shards (token_files/tokenizer_hash.h); 0: unknown.
  uint64_t tokenizer_hash() const;
  /// Documents of all files, in order; none if a raw file is among them.
  std::optional<int64_t> num_documents() const;
  /// The token with which document `index` begins, counted over all files. Cost: a search among the files.
  int64_t document_start(int64_t index) const;
  /// Compares this share of the tokens with the vocabulary, if there is one. Errors: InputError naming the first token
  /// of the share outside of it. Cost: one read of the share, except what this process has already read of an unchanged
  /// file; shards cost nothing, because their headers say it. Leaves no pages in its memory.
  void check(Share share = {}) const;

 private:
  /// Calls `visit(file, first, count)` for the files that have the `count` tokens from `start` on, in order.
  template <typename Visit>
  void visit_files(int64_t start, int64_t count, const Visit& visit) const;
  void read(int64_t start, std::span<int64_t> out) const;
  void ignore_targets(std::span<const int64_t> indices, Batch& batch) const;
  /// Calls `visit(token)` for the tokens in [begin, end) with which documents begin.
  template <typename Visit>
  void visit_documents(int64_t begin, int64_t end, const Visit& visit) const;
  bool counts(int64_t token) const;
  void tell_documents_apart(std::span<const int64_t> indices, Batch& batch) const;
  [[noreturn]] void refuse(const MappedTokens& file, int64_t position, int64_t token) const;

  /// In order; each knows the number of its first token.
  std::vector<std::unique_ptr<MappedTokens>> files_;
  int64_t sequence_length_;
  int64_t vocab_size_;
  int64_t token_bytes_;
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
  int64_t size_ = 0;
  bool pack_;
  bool masks_targets_ = false;
};

} // namespace trireme::data
