#pragma once

#include <trireme/data/dataset.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// Reads raw little-endian uint16 tokens (nanoGPT's .bin) from memory-mapped files, several as one.
///
/// Sample i is tokens [i*L, i*L + L]: int64 input and target [B, L], the target one token later.
/// Cost: no memory of its own; pages are read when touched and shared between ranks of a host.
/// Errors: InputError for a file that is missing, empty or of odd length, and for fewer than L + 1
/// tokens; `get` throws InputError naming file, position and value for a token >= vocab_size
/// (0: not checked). A file must not be shortened while in use: the system then ends the program.
class TokensDataset : public Dataset {
 public:
  TokensDataset(const std::vector<std::filesystem::path>& files, int64_t sequence_length, int64_t vocab_size = 0);
  ~TokensDataset() override;

  int64_t size() const override {
    return size_;
  }
  Batch get(std::span<const int64_t> indices) const override;
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  std::string describe() const override;
  int64_t num_tokens() const {
    return num_tokens_;
  }
  /// Reads everything once, if there is a vocabulary. Errors: InputError naming the first token that is not in the vocabulary.
  void check() const;

 private:
  class MappedFile;
  void read(int64_t start, std::span<int64_t> out) const;

  /// In order; each knows the number of its first token.
  std::vector<std::unique_ptr<MappedFile>> files_;
  int64_t sequence_length_;
  int64_t vocab_size_;
  int64_t num_tokens_ = 0;
  int64_t size_ = 0;
};

} // namespace trireme::data
