#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::generate {

/// Writes trireme_export.json into a folder: the step, and names, sizes and times of change of all its files. A later
/// export replaces the folder only while it is as it was written.
void write_export_mark(const std::filesystem::path& folder, int64_t step);

struct ExportMark {
  std::optional<int64_t> step; ///< none: no export, or not a folder
  std::string changed;         ///< a file that is new, gone or changed since; empty: none
};

ExportMark read_export_mark(const std::filesystem::path& folder);

} // namespace trireme::generate
