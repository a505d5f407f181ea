#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

// Megatron-LM's indexed dataset: PREFIX.bin has the tokens, PREFIX.idx (little-endian) says where sequences and
// documents begin:
//
//   char[9]  "MMIDIDX\0\0"
//   uint64   version, 1
//   uint8    type of the tokens: 4 int32, 8 uint16 (and others, which are refused)
//   uint64   S, number of sequences
//   uint64   N, length of the document index
//   int32    S lengths of sequences, in tokens
//   int64    S offsets of sequences in PREFIX.bin, in bytes
//   int64    N numbers of sequences: document d has the sequences [index[d], index[d + 1])
//   int8     S modes (only of multimodal data; not read)
//
// Source: megatron/core/datasets/indexed_dataset.py of github.com/NVIDIA/Megatron-LM.
namespace trireme::data {

/// What a PREFIX.idx says. Refers to the bytes it was read from.
struct MegatronIndex {
  int64_t token_bytes = 0;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;

  /// The token with which document `index` begins; num_tokens for `index` == num_documents.
  int64_t document_start(int64_t index) const;

  int64_t num_sequences = 0;
  const unsigned char* offsets = nullptr;
  const unsigned char* document_index = nullptr;
};

bool is_megatron_index(std::string_view head);

/// Reads the content of `path`. Cost: one read. Errors: InputError naming `path` for another version or type of tokens,
/// a file that is cut off, sequences that do not follow one another, and documents that are not in order.
MegatronIndex read_megatron_index(std::span<const unsigned char> file, const std::filesystem::path& path);

} // namespace trireme::data
