#pragma once

#include <trireme/checkpoint/safetensors.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct Header {
  /// Sorted by offset.
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  /// Offset of the first tensor byte in the file.
  uint64_t data_start = 0;
};

/// Reads and checks the header at the start of a file's content. Errors: see Safetensors.
Header parse_header(std::string_view file, const std::string& path);

/// Length, JSON and padding; the tensors' bytes follow, from a multiple of `alignment` on.
/// `tensors` must have their offsets. Errors: InputError for a name or a value that is not
/// UTF-8.
std::string header_text(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata,
                        uint64_t alignment = 8);

/// Bytes of one element, 0 for a dtype that is unknown.
uint64_t dtype_bytes(std::string_view dtype);

} // namespace trireme::checkpoint
