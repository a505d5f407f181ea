#pragma once

#include <trireme/data/token_files/file_map.h>
#include <trireme/data/token_files/megatron_index.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::data {

/// A file of tokens: where they lie in it, and what is known of them before they are read.
struct TokenFile {
  /// raw: tokens alone; shard: shard_format.h; megatron: a .bin with its .idx.
  enum class Kind { raw, shard, megatron };
  Kind kind = Kind::raw;
  std::filesystem::path path;
  std::shared_ptr<const FileMap> map;
  /// The byte of the first token.
  size_t begin = 0;
  /// raw: 0, for the reader to decide; and all bytes of the file.
  int64_t token_bytes = 0;
  int64_t num_tokens = 0;
  /// All tokens are below; 0: unknown.
  int64_t vocab_size = 0;
  /// 0: unknown.
  uint64_t tokenizer_hash = 0;
  /// Of a shard with a mask: tokens that count as targets of the loss, and their bits (shard_format.h).
  std::optional<int64_t> counted_tokens{};
  const unsigned char* mask = nullptr;
  /// ShardHeader::checksum.
  uint64_t checksum = 0;

  /// Documents that begin in the file, in order. Zero for raw files, whose documents are unknown.
  int64_t num_documents = 0;
  /// The token of this file with which document `index` begins.
  int64_t document_start(int64_t index) const;

  // The document table of a shard, or Megatron's index.
  const unsigned char* table = nullptr;
  std::shared_ptr<const FileMap> index_map = nullptr;
  MegatronIndex index{};
};

/// Opens files and folders of tokens, in order: a folder stands for the shards of its index.json, a Megatron .idx or
/// .bin for both. Cost: the tables of documents are read. Errors: InputError naming what is missing, damaged, or
/// differs: a shard from its index, the bytes per token of the files from one another and from `token_bytes` (0: not
/// set, raw files have 2), their tokenizers.
std::vector<TokenFile> open_token_files(const std::vector<std::filesystem::path>& paths, int64_t token_bytes);

/// The .idx of Megatron's pair that `path` belongs to; empty if it is none.
std::filesystem::path megatron_index_of(const std::filesystem::path& path);

/// Whether `path` is a folder of shards, a shard, or one of Megatron's pair.
bool is_token_data(const std::filesystem::path& path);

} // namespace trireme::data
