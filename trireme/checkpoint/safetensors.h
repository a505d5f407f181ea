#pragma once

#include <trireme/checkpoint/lender.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

/// One line of a safetensors header.
struct TensorInfo {
  std::string name;
  /// "F32", "BF16", ... as in the file; some dtypes of the format have no tensor type here.
  std::string dtype;
  std::vector<int64_t> shape;
  /// Bytes [begin, end) counted from the end of the header.
  uint64_t begin = 0;
  uint64_t end = 0;

  /// Product of the shape; 1 for a scalar.
  int64_t numel() const;
};

/// Reads a safetensors file without copying it.
///
/// open() maps the file and checks the header: at most 100 MB, an object, UTF-8, no key twice, known
/// dtypes. Sizes must not overflow and must agree with the offsets, which are contiguous from 0 to the end
/// of the file. Nothing in a file can run code or make this allocate more than a small multiple of the
/// header.
/// Cost:   O(header); 10,000 tensors take about 10 ms. Tensor bytes are read when touched.
/// Errors: InputError naming file and tensor, also for a tensor whose end another process has cut off since open(). One
/// cut after tensor() returned raises SIGBUS when touched, as with every memory map.
/// Source: github.com/huggingface/safetensors, format description.
class Safetensors {
 public:
  static Safetensors open(const std::filesystem::path& file);

  const std::filesystem::path& path() const;
  uint64_t file_bytes() const;
  /// In the order of their bytes in the file.
  const std::vector<TensorInfo>& tensors() const;
  /// The header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const;

  bool has(std::string_view name) const;
  /// Errors: InputError with the nearest name if there is no such tensor.
  const TensorInfo& info(std::string_view name) const;

  /// The tensor as a view of the mapped file; it keeps the mapping alive. Writing to it
  /// changes private memory, never the file. Copies only where the bytes lie unaligned.
  at::Tensor tensor(std::string_view name) const;
  /// Elements [begin, end) of the row-major tensor as a 1-D view; touches only their pages.
  at::Tensor range(std::string_view name, int64_t begin, int64_t end) const;

 private:
  struct File;
  explicit Safetensors(std::shared_ptr<const File> file);
  std::shared_ptr<const File> file_;
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  /// Source of the values of a tensor on the meta device.
  Lent lent = {};
};

struct WrittenFile {
  uint64_t bytes = 0;
  /// XXH3-128 of the file, 32 hexadecimal digits.
  std::string hash = {};
  /// The part of `bytes` whose blocks this file shares with the files that they come from.
  uint64_t shared_bytes = 0;
};

/// Writes a safetensors file beside `file` under a temporary name, fsyncs it and renames it
/// over `file`: `file` always has either the old or the new content, and tensors that
/// view the old file stay valid.
///
/// Tensors may be on any device and need not be contiguous; larger elements come first so that every view is
/// aligned. Memory: no copy of contiguous CPU tensors; 64 MiB at a time of contiguous GPU tensors; the tensor
/// otherwise; for lent tensors, those of one lender at a time. Tensors that already lie in a file
/// (Lender::extent) share their blocks if the file system can. Shared bytes are read once and compared with the
/// lender's values: bytes that the disk has changed are rewritten, with a warning. Sharing needs a longer
/// header and tensors "padding@N" of bytes; without it the file is the same as for tensors in memory. A save
/// needs free space for a full copy, because the owner's next write of shared blocks takes new ones. Errors:
/// InputError for a name twice, a dtype without a safetensors name, or a tensor on the meta device without a
/// lender. Error naming the file, the reason and, for a full disk, bytes needed and free. Exceptions of
/// lenders.
WrittenFile write_safetensors(const std::filesystem::path& file, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// "F32" for at::kFloat and so on. Errors: InputError for a type that the format does not have.
const char* dtype_name(at::ScalarType type);
/// Errors: InputError naming `where` for a dtype that has no tensor type here.
at::ScalarType scalar_type(std::string_view dtype, const std::string& where);

} // namespace trireme::checkpoint
