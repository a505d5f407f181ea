#include <trireme/base/private_folder.h>

#include <sys/stat.h>

#include <cerrno>

namespace trireme {

void create_private_folders(const std::filesystem::path& folder, std::error_code& error) {
  error.clear();
  std::filesystem::path path;
  for (const auto& part : folder) {
    path /= part;
    // A folder that is there may also be one that nobody may write to (EROFS, EACCES); only the last one has to exist.
    if (!part.empty() && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      const int code = errno;
      if (!std::filesystem::is_directory(path, error)) {
        error = std::error_code(code, std::generic_category());
        return;
      }
    }
  }
  if (!std::filesystem::is_directory(folder, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
}

} // namespace trireme
