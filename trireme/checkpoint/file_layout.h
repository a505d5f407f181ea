#pragma once

#include <trireme/checkpoint/safetensors.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// Where each tensor lies in a safetensors file that is to be written.
struct FileLayout {
  struct Item {
    const NamedTensor* tensor = nullptr;
    /// Bytes in front of it that are nobody's.
    uint64_t padding = 0;
  };
  /// Items [first, last) lie in another file as they will lie in this one, paddings between them included.
  struct Run {
    size_t first = 0;
    size_t last = 0;
    /// From the first byte of the first item on.
    bucket::Extent source;
    /// Place of that byte, counted from the end of the header. It has the same remainder by `alignment` as
    /// source.offset.
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

/// One behind the other.
/// Errors of both: InputError naming `file` for a name twice, an undefined tensor, a dtype without a safetensors name.
FileLayout plain_layout(const std::vector<NamedTensor>& tensors, const std::string& file);
/// With paddings that make shared blocks possible: of tensors that lie in files (Lender::extent), as long as a run of
/// them is of at least 16 blocks of `block` bytes. Where there is no such run it is plain_layout().
FileLayout layout_to_share(const std::vector<NamedTensor>& tensors, const std::string& file, int64_t block);

} // namespace trireme::checkpoint
