#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/hash.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/safetensors_header.h>
#include <trireme/checkpoint/size_signal.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{1} << 20; // hashed while it is still in cache, then written
constexpr int64_t kDevicePieceBytes = int64_t{64} << 20;

// A file that is removed again unless it is committed.
class NewFile {
 public:
  NewFile(const fs::path& path, uint64_t total_bytes)
      : path_(path), total_bytes_(total_bytes), temporary_(temporary_name(path)),
        fd_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
    if (fd_ < 0) {
      fail("create");
    }
    // Finds a full disk before gigabytes are written; file systems without fallocate() report it at write().
    if (total_bytes > 0 && ::fallocate(fd_, 0, 0, static_cast<off_t>(total_bytes)) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
      fail("write");
    }
  }
  ~NewFile() {
    discard();
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const char* data, size_t bytes) {
    while (bytes > 0) {
      const size_t piece = std::min(bytes, kPieceBytes);
      hasher_.update(data, piece);
      for (size_t done = 0; done < piece;) {
        const ssize_t n = ::write(fd_, data + done, piece - done);
        if (n < 0 && errno != EINTR) {
          fail("write");
        }
        done += n > 0 ? static_cast<size_t>(n) : 0;
      }
      data += piece;
      bytes -= piece;
    }
  }

  WrittenFile commit() {
    if (::fsync(fd_) != 0) {
      fail("sync");
    }
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
      fail("finish");
    }
    temporary_.clear();
    sync_folder(path_.parent_path());
    return {total_bytes_, hasher_.hex()};
  }

 private:
  void discard() {
    if (fd_ >= 0) {
      ::close(std::exchange(fd_, -1));
    }
    if (!temporary_.empty()) {
      ::unlink(temporary_.c_str());
    }
  }
  // Removes the partial file first, so that "free" is right for the next attempt.
  [[noreturn]] void fail(const char* what) {
    const int code = errno;
    discard();
    throw Error("safetensors", concat("cannot ", what, ' ', path_.string(), ": ", describe_write_failure(code, path_, total_bytes_)),
                "Nothing that was there before is changed.");
  }

  fs::path path_;
  uint64_t total_bytes_;
  fs::path temporary_;
  int fd_;
  Hasher hasher_;
};

void write_tensor(NewFile& out, const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  const auto element = static_cast<int64_t>(tensor.element_size());
  const at::Tensor flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view({-1});
  const int64_t piece = tensor.device().is_cpu() ? flat.numel() : std::max<int64_t>(1, kDevicePieceBytes / element);
  for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
    const at::Tensor part = flat.narrow(0, begin, std::min(piece, flat.numel() - begin)).cpu();
    out.write(static_cast<const char*>(part.data_ptr()), static_cast<size_t>(part.numel() * element));
  }
}

} // namespace

WrittenFile write_safetensors(const fs::path& file,
                              const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> order;
  std::set<std::string_view> names{"__metadata__"};
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw InputError("safetensors", concat("cannot write ", file.string(), ": the name \"", tensor.name, "\" is used twice or reserved"));
    }
    if (!tensor.tensor.defined()) {
      throw InputError("safetensors", concat("cannot write ", file.string(), ": tensor \"", tensor.name, "\" is undefined"));
    }
    order.push_back(&tensor);
  }
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return a->tensor.element_size() > b->tensor.element_size();
  });
  std::vector<TensorInfo> infos;
  uint64_t at = 0;
  for (const NamedTensor* tensor : order) {
    const uint64_t end = at + static_cast<uint64_t>(tensor->tensor.numel()) * tensor->tensor.element_size();
    infos.push_back({tensor->name, dtype_name(tensor->tensor.scalar_type()), tensor->tensor.sizes().vec(), at, end});
    at = end;
  }
  const std::string header = header_text(infos, metadata);
  const SizeSignalBlock block;
  NewFile out(file, header.size() + at);
  out.write(header.data(), header.size());
  for (const NamedTensor* tensor : order) {
    write_tensor(out, tensor->tensor);
  }
  return out.commit();
}

} // namespace trireme::checkpoint
