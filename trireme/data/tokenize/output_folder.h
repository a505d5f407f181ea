#pragma once

#include <trireme/base/new_folder.h>

#include <filesystem>

namespace trireme::data {

/// Errors: InputError if `path` is there, unless it is an empty folder, or a folder of token shards and `replace` is
/// set.
void check_output_folder(const std::filesystem::path& path, bool replace);

/// A folder for the shards of `path`, under another name until put_in_place(). Errors: as check_output_folder().
NewFolder make_output_folder(const std::filesystem::path& path, bool replace);

/// Errors: as check_output_folder(), for what has appeared since the start; then a warning says where the shards stay.
void put_in_place(NewFolder& folder, bool replace);

} // namespace trireme::data
