#pragma once

#include <filesystem>
#include <system_error>

namespace trireme::launch {

/// As mkdir -p, but what is made here is for this user only (0700); folders that are there stay as they are.
void make_private_folders(const std::filesystem::path& folder, std::error_code& error);

} // namespace trireme::launch
