#include <trireme/memory/aio/probe.h>

#include <trireme/base/error.h>
#include <trireme/memory/aio/transfers.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <fstream>
#include <random>
#include <sstream>

namespace trireme::aio {
namespace {

namespace fs = std::filesystem;

using Clock = std::chrono::steady_clock;

constexpr double kSecondsOfAPass = 2;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Zeros would be too fast on disks that compress.
void fill_with_noise(const Memory& memory) {
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < memory.size(); i += static_cast<int64_t>(sizeof(uint64_t))) {
    const uint64_t word = random();
    std::memcpy(memory.data() + i, &word, sizeof(word));
  }
}

/// Writes or reads the file's blocks in order through a ring of blocks in memory, twice queue_depth.
class Passes {
 public:
  Passes(const File& file, const Options& options)
      : file_(file),
        block_(options.block_size),
        places_(std::min(2 * options.queue_depth, file.size() / block_)),
        memory_(places_ * block_),
        transfers_(options) {
    fill_with_noise(memory_);
    transfers_.add_buffer(memory_.data(), memory_.size());
  }
  /// Returns bytes per second; runs until the end of the file, or for two seconds. Reads only what was written: the
  /// rest is not on the disk.
  double run(bool write) {
    const int64_t end = write ? file_.size() : written_;
    std::deque<Transfers::Id> out;
    const auto start = Clock::now();
    int64_t begun = 0;
    for (; begun < end && seconds_since(start) < kSecondsOfAPass; begun += block_) {
      if (std::ssize(out) == places_) {
        transfers_.wait(out.front());
        out.pop_front();
      }
      std::byte* place = memory_.data() + begun / block_ % places_ * block_;
      out.push_back(write ? transfers_.write(file_, begun, place, block_)
                          : transfers_.read(file_, begun, place, block_));
    }
    for (const auto id : out) {
      transfers_.wait(id);
    }
    if (write) {
      written_ = std::max(written_, begun);
    }
    if (write && !file_.direct()) {
      file_.sync();
    }
    return static_cast<double>(begun) / seconds_since(start);
  }
  const char* engine() const { return transfers_.engine(); }

 private:
  const File file_;
  const int64_t block_;
  const int64_t places_;
  const Memory memory_;
  int64_t written_ = 0;
  Transfers transfers_; // destroyed before the memory
};

// In /proc/self/mountinfo "\040" is a space.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool lies_in(const std::string& path, const std::string& mount) {
  return mount == "/" || path == mount || path.starts_with(mount + "/");
}

// For paths that the list of mounts lacks: under chroot() it has no entry for the new root.
std::string name_by_number(const fs::path& path) {
  constexpr unsigned kXfs = 0x58465342; // not in linux/magic.h
  struct statfs about = {};
  if (::statfs(path.c_str(), &about) != 0) {
    return "";
  }
  switch (static_cast<unsigned>(about.f_type)) {
    case EXT4_SUPER_MAGIC:
      return "ext4"; // ext2 and ext3 too
    case BTRFS_SUPER_MAGIC:
      return "btrfs";
    case F2FS_SUPER_MAGIC:
      return "f2fs";
    case NFS_SUPER_MAGIC:
      return "nfs";
    case OVERLAYFS_SUPER_MAGIC:
      return "overlay";
    case RAMFS_MAGIC:
      return "ramfs";
    case TMPFS_MAGIC:
      return "tmpfs";
    case kXfs:
      return "xfs";
    default:
      return "";
  }
}

} // namespace

bool is_memory(const std::string& filesystem) {
  return filesystem == "tmpfs" || filesystem == "ramfs";
}

std::string filesystem_of(const fs::path& path) {
  std::error_code unknown;
  const std::string whole = fs::canonical(path, unknown).string();
  std::ifstream mounts("/proc/self/mountinfo");
  std::string found;
  size_t longest = 0;
  for (std::string line; !unknown && std::getline(mounts, line);) {
    // ID PARENT DEVICE ROOT MOUNT OPTIONS [TAGS...] - TYPE SOURCE OPTIONS
    std::istringstream words(line);
    std::string skipped;
    std::string mount;
    words >> skipped >> skipped >> skipped >> skipped >> mount;
    mount = unescaped(mount);
    const size_t separator = line.find(" - ");
    if (separator != std::string::npos && mount.size() >= longest &&
        lies_in(whole, mount)) { // of several at one path the last is visible
      longest = mount.size();
      std::istringstream(line.substr(separator + 3)) >> found;
    }
  }
  return found.empty() ? name_by_number(path) : found;
}

Probe probe(const fs::path& folder, const Options& options, int64_t bytes) {
  check(options);
  Probe found;
  std::error_code unknown;
  const auto space = fs::space(folder, unknown);
  found.free_bytes = unknown ? 0 : static_cast<int64_t>(space.available);
  const fs::path path = folder / concat(".trireme-probe.", ::getpid(), '.', std::random_device()());
  const File file = File::create_unnamed(path, std::max<int64_t>(1, bytes / options.block_size) * options.block_size);
  found.filesystem = filesystem_of(folder);
  found.direct = file.direct() && !is_memory(found.filesystem);
  const int64_t alignment = direct_alignment(concat("/proc/self/fd/", file.descriptor()));
  found.alignment = !found.direct ? 1 : alignment > 0 ? alignment : kAlignment;
  Passes passes(file, options);
  found.engine = passes.engine();
  passes.run(true);
  found.write_bytes_per_s = passes.run(true);
  if (!found.direct) {
    ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  }
  found.read_bytes_per_s = passes.run(false);
  return found;
}

} // namespace trireme::aio
