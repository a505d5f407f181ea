#pragma once

#include <filesystem>

namespace trireme {

/// "runs/a" for "runs/a/", so that filename() and parent_path() are those of the folder.
inline std::filesystem::path without_end_slash(const std::filesystem::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

} // namespace trireme
