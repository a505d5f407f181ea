#pragma once

#include <tests/support/folders.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <initializer_list>
#include <string>

namespace trireme::test {

/// Expects each line of C++ on a page of the documentation to stand in one of the tests, which run it; returns how many
/// there are. Paths start at the source folder. White space does not count. A line "..." stands for code of the
/// reader's.
inline int code_lines_of(const std::filesystem::path& page, std::initializer_list<const char*> sources) {
  const std::filesystem::path root = test::source_dir();
  const auto without_space = [](std::string text) {
    std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
    return text;
  };
  std::string here;
  for (const char* source : sources) {
    here += without_space(read_file(root / source)) + '\n';
  }
  bool code = false;
  int lines = 0;
  for (const std::string& line : split(read_file(root / page), '\n')) {
    if (line.starts_with("```")) {
      code = line == "```cpp";
    } else if (code && line != "...") {
      ++lines;
      EXPECT_NE(here.find(without_space(line)), std::string::npos) << line;
    }
  }
  return lines;
}

} // namespace trireme::test
