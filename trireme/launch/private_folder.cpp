#include <trireme/launch/private_folder.h>

#include <sys/stat.h>

#include <cerrno>

namespace trireme::launch {

namespace fs = std::filesystem;

void make_private_folders(const fs::path& folder, std::error_code& error) {
  if (fs::is_directory(folder, error)) {
    return;
  }
  if (folder.has_parent_path() && folder.parent_path() != folder) {
    make_private_folders(folder.parent_path(), error);
  }
  const int code = ::mkdir(folder.c_str(), 0700) == 0 ? 0 : errno;
  std::error_code ignored;
  error = code == 0 || fs::is_directory(folder, ignored) ? std::error_code() : std::error_code(code, std::generic_category());
}

} // namespace trireme::launch
