#include <trireme/memory/aio/memory.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace trireme::aio {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

} // namespace

Memory::Memory(int64_t bytes) {
  if (bytes < 0) {
    throw Error("aio", concat("cannot allocate ", bytes, " bytes"));
  }
  const int64_t size = round_up(bytes);
  if (size == 0) {
    return;
  }
  // Pages before and after the aligned range are unmapped below.
  const int64_t extra = size >= kHugePage ? kHugePage : 0;
  void* mapped =
      ::mmap(nullptr, static_cast<size_t>(size + extra), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error("aio", concat("no memory of ", format_bytes(size), " for transfers: ", std::strerror(errno)),
                "Use fewer or smaller buffers (buffer_count, buffer_size), or a machine with more memory.");
  }
  auto* first = static_cast<std::byte*>(mapped);
  if (extra > 0) {
    const int64_t before =
        (kHugePage - static_cast<int64_t>(reinterpret_cast<uintptr_t>(mapped) % kHugePage)) % kHugePage;
    if (before > 0) {
      ::munmap(first, static_cast<size_t>(before));
    }
    if (extra > before) {
      ::munmap(first + before + size, static_cast<size_t>(extra - before));
    }
    first += before;
    ::madvise(first, static_cast<size_t>(size), MADV_HUGEPAGE); // a hint: kernels without huge pages refuse
  }
  // Pages being written by the disk during a fork could end up in the child: open(2), O_DIRECT.
  ::madvise(first, static_cast<size_t>(size), MADV_DONTFORK);
  data_ = first;
  size_ = size;
}

Memory::~Memory() {
  if (data_ != nullptr) {
    ::munmap(data_, static_cast<size_t>(size_));
  }
}

} // namespace trireme::aio
