#include <trireme/checkpoint/share_blocks.h>

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>

#include <algorithm>

namespace trireme::checkpoint {

bool share_blocks(int from, int64_t from_offset, int to, int64_t to_offset, int64_t bytes) {
  file_clone_range range{};
  range.src_fd = from;
  range.src_offset = static_cast<uint64_t>(from_offset);
  range.src_length = static_cast<uint64_t>(bytes);
  range.dest_offset = static_cast<uint64_t>(to_offset);
  return ::ioctl(to, FICLONERANGE, &range) == 0;
}

// Network file systems report their preferred transfer size, which may be large.
int64_t block_bytes(int file) {
  constexpr int64_t kUsual = 4096;
  struct statvfs disk{};
  if (::fstatvfs(file, &disk) != 0) {
    return kUsual;
  }
  return std::clamp<int64_t>(static_cast<int64_t>(disk.f_bsize), kUsual, int64_t{64} << 10);
}

} // namespace trireme::checkpoint
