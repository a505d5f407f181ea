// What the targets share. A target hands foreign bytes to a reader: whatever they are, the reader returns or throws
// InputError. Anything else is a finding: another exception, a property that does not hold, a sanitizer's report, a
// hang, memory that has nothing to do with the input's size.
#pragma once

#include <trireme/base/error.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Lets InputError pass, which is how a reader refuses.
template <typename Read>
void allow_input_error(Read&& read) {
  try {
    read();
  } catch (const InputError&) {
  }
}

/// Prints `what` and aborts unless it holds.
void require(bool holds, const char* what);

/// Calls what must succeed: an InputError from it is a finding too.
template <typename Call>
void require_no_error(const char* what, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    require(false, concat(what, ": ", error.what()).c_str());
  }
}

/// Takes the part up to `separator` off the front of `rest`.
std::string_view take_until(std::string_view& rest, char separator);

/// Bytes as a file without a name in memory, for readers that open a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const;

 private:
  int descriptor_;
};

/// An empty folder in the temporary one (TMPDIR=/dev/shm is faster), removed with the object.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

} // namespace trireme::fuzz
