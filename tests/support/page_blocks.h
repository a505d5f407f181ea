#pragma once

#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::test {

/// A block between ``` of a page.
struct PageBlock {
  std::string where;    ///< "docs/zero.md:6"
  std::string language; ///< "" for a shell and its output
  std::string text;
};

/// The path starts at the source folder.
inline std::vector<PageBlock> blocks_of(const std::filesystem::path& page) {
  std::vector<PageBlock> out;
  bool inside = false;
  int number = 0;
  for (const std::string& line : split(read_file(std::filesystem::path(source_dir()) / page), '\n')) {
    ++number;
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) {
        out.push_back({concat(page.string(), ':', number), line.substr(3), ""});
      }
    } else if (inside) {
      out.back().text += line + "\n";
    }
  }
  return out;
}

/// Lines of a shell's block, without "$ " and without what follows " #".
inline std::vector<std::string> commands_of(const PageBlock& block) {
  std::vector<std::string> out;
  for (const std::string& line : split(block.text, '\n')) {
    std::string command = line.substr(0, line.find(" #"));
    command.erase(command.find_last_not_of(' ') + 1);
    out.push_back(command.starts_with("$ ") ? command.substr(2) : command);
  }
  return out;
}

} // namespace trireme::test
