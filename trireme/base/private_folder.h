#pragma once

#include <filesystem>
#include <system_error>

namespace trireme {

/// Makes the folder and those above it that are missing, each for this user alone (mode 0700), from the moment it exists.
/// Folders that are there already stay as they are. `error` says what went wrong, if anything.
void create_private_folders(const std::filesystem::path& folder, std::error_code& error);

} // namespace trireme
