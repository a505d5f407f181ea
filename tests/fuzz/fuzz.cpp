#include "fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

namespace trireme::fuzz {

void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
    std::abort();
  }
}

std::string_view take_until(std::string_view& rest, char separator) {
  const size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

MemoryFile::MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  require(descriptor_ >= 0 && ::write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
          "a memory file can be written");
}

MemoryFile::~MemoryFile() {
  ::close(descriptor_);
}

std::filesystem::path MemoryFile::path() const {
  return concat("/proc/self/fd/", descriptor_);
}

ScratchFolder::ScratchFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "trireme_fuzz_XXXXXX";
  require(::mkdtemp(pattern.data()) != nullptr, "a folder can be made");
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

} // namespace trireme::fuzz
