#pragma once

#include <trireme/checkpoint/safetensors.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Position of each tensor in a safetensors file to be written.
struct FileLayout {
  struct Item {
    const NamedTensor* tensor = nullptr;
    /// Unused bytes before it.
    uint64_t padding = 0;
  };
  /// Items [first, last) lie contiguously in another file exactly as they will in this one, paddings included.
  struct Run {
    size_t first = 0;
    size_t last = 0;
    /// The bytes in that file, from the first item's first byte.
    bucket::Extent source;
    /// Position of that byte, counted from the end of the header. Equals source.offset modulo
    /// `alignment`.
    uint64_t begin = 0;
  };
  /// In the order of the file: larger elements first, so that every tensor is aligned.
  std::vector<Item> items;
  std::vector<Run> runs;
  /// The length of the header is a multiple of this.
  uint64_t alignment = 8;
  /// For the header: the tensors, and paddings as tensors of bytes.
  std::vector<TensorInfo> infos;
  /// Without the header.
  uint64_t bytes = 0;
};

/// Packs the tensors without gaps. Errors of both: InputError naming `file` for a name twice, an undefined tensor, a
/// dtype without a safetensors name.
FileLayout plain_layout(const std::vector<NamedTensor>& tensors, const std::string& file);
/// Adds paddings that allow sharing blocks with the files in which tensors lie (Lender::extent), for runs of at least
/// 16 blocks of `block` bytes. Without such a run it is plain_layout().
FileLayout layout_to_share(const std::vector<NamedTensor>& tensors, const std::string& file, int64_t block);

} // namespace trireme::checkpoint
