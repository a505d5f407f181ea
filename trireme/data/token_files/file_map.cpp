#include <trireme/data/token_files/file_map.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace trireme::data {

void refuse_token_file(const std::filesystem::path& path, const std::string& why, const std::string& next) {
  throw InputError("data", concat("cannot read tokens from ", path.string(), ": ", why), next);
}

FileMap::FileMap(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)); // a pipe is refused, not waited for
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) {
    refuse_token_file(path, std::strerror(errno), "Check the path.");
  }
  if (!S_ISREG(status.st_mode)) {
    refuse_token_file(path, "not a file", "Name files, or a folder that \"trireme data tokenize\" has written.");
  }
  if (status.st_size == 0) {
    refuse_token_file(path, "it is empty");
  }
  size_ = static_cast<size_t>(status.st_size);
  void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    refuse_token_file(path, concat("mmap: ", std::strerror(errno)));
  }
  data_ = static_cast<const unsigned char*>(address);
  stamp_ = {static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino),
            static_cast<int64_t>(status.st_size), status.st_mtim, status.st_ctim};
}

FileMap::~FileMap() {
  ::munmap(const_cast<unsigned char*>(data_), size_);
}

} // namespace trireme::data
