// The house rules that a compiler does not know: which folder may include which, as ARCHITECTURE.md's table says.
#include <tests/support/folders.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// What a folder may include besides itself.
struct Row {
  std::set<std::string> folders;
  /// options.h of any folder.
  bool option_headers = false;
};
using Rules = std::map<std::string, Row>;

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" `");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" `") + 1 - first);
}

/// The table of ARCHITECTURE.md: "| `trireme/FOLDER` | what it is | FOLDER, FOLDER |". A row names rows above it, "all
/// above", or "option headers".
Rules rules() {
  Rules rules;
  std::set<std::string> above;
  for (const std::string& line : split(read_file(fs::path(test::source_dir()) / "ARCHITECTURE.md"), '\n')) {
    const std::vector<std::string> cells = split(line, '|');
    const std::string start = "trireme/";
    if (cells.size() != 5 || trimmed(cells[1]).rfind(start, 0) != 0) {
      continue;
    }
    const std::string folder = trimmed(cells[1]).substr(start.size());
    Row row;
    for (const std::string& word : split(cells[3], ',')) {
      const std::string name = trimmed(word);
      if (name == "all above") {
        row.folders = above;
      } else if (name == "option headers") {
        row.option_headers = true;
      } else if (!name.empty()) {
        EXPECT_EQ(above.count(name), 1u) << "ARCHITECTURE.md, row of " << folder << ": " << name
                                         << " is no row above it";
        row.folders.insert(name);
      }
    }
    EXPECT_TRUE(rules.emplace(folder, row).second) << "ARCHITECTURE.md has two rows of " << folder;
    above.insert(folder);
  }
  return rules;
}

std::string folder_of(const fs::path& file, const fs::path& root) {
  return fs::relative(file.parent_path(), root).string();
}

// comm/gloo belongs to comm; shards/bucket is a folder of its own.
std::string owner(const std::string& folder, const Rules& rules) {
  std::string name = folder;
  while (rules.count(name) == 0 && name.find('/') != std::string::npos) {
    name = name.substr(0, name.rfind('/'));
  }
  return name;
}

TEST(IncludesTest, PointOnlyDown) {
  const Rules allowed = rules();
  const fs::path root = fs::path(test::source_dir()) / "trireme";
  const std::regex include("#include [<\"]trireme/([a-z0-9_/]+)/([a-z0-9_]+)\\.h[>\"]");
  int seen = 0;
  std::set<std::string> folders;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu") {
      continue;
    }
    const std::string here = owner(folder_of(entry.path(), root), allowed);
    if (here == ".") {
      continue; // trireme.h is the public surface of everything
    }
    folders.insert(here);
    if (allowed.count(here) == 0) {
      continue; // told below, once
    }
    const Row& row = allowed.at(here);
    const std::string text = read_file(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
      const std::string there = owner((*it)[1], allowed);
      ++seen;
      EXPECT_TRUE(there == here || row.folders.count(there) == 1 || (row.option_headers && (*it)[2] == "options"))
          << entry.path() << " in " << here << "/ includes " << (*it)[0]
          << ", which ARCHITECTURE.md's table does not allow";
    }
  }
  EXPECT_GT(seen, 100) << "the pattern no longer finds the includes";
  for (const std::string& folder : folders) {
    EXPECT_EQ(allowed.count(folder), 1u) << "ARCHITECTURE.md's table has no row for trireme/" << folder;
  }
  for (const auto& [folder, row] : allowed) {
    EXPECT_EQ(folders.count(folder), 1u) << "ARCHITECTURE.md's table has a row for trireme/" << folder
                                         << ", which does not exist";
  }
}

// -DTRIREME_EXTENSIONS=OFF builds everything but these.
TEST(IncludesTest, TheCoreNeedsNoExtension) {
  const fs::path root = test::source_dir();
  const std::set<fs::path> with_extensions = {
      "trireme/horovod.h",        "trireme/train/server_roles.cpp", "benchmarks/raw_loop.cpp",
      "benchmarks/rpc.cpp",       "tests/tools/run_observers.cpp",  "tests/fuzz/grpc_frames.cpp",
      "tests/fuzz/rpc_frames.cpp"};
  const std::regex include("#include [<\"](trireme|tests)/(extensions/|horovod\\.h)");
  for (const char* top : {"trireme", "tools", "tests", "examples", "benchmarks"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const fs::path file = fs::relative(entry.path(), root);
      if (!entry.is_regular_file() || (file.extension() != ".h" && file.extension() != ".cpp") ||
          file.string().find("/extensions/") != std::string::npos) {
        continue;
      }
      EXPECT_EQ(std::regex_search(read_file(entry.path()), include), with_extensions.count(file) == 1) << file;
    }
  }
}

// <torch/torch.h> in a header costs every user 10 seconds a file.
TEST(IncludesTest, HeadersStayNarrow) {
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(test::source_dir()) / "trireme")) {
    if (entry.path().extension() == ".h") {
      EXPECT_EQ(read_file(entry.path()).find("#include <torch/torch.h>"), std::string::npos) << entry.path();
    }
  }
}

// What must start in milliseconds has no libtorch in it.
TEST(IncludesTest, SomeFoldersHaveNoTorch) {
  for (const char* folder :
       {"base", "chat", "store", "kernels", "launch", "monitor", "plan", "config", "extensions/server/rpc"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(test::source_dir()) / "trireme" / folder)) {
      if (entry.is_regular_file()) {
        const std::string text = read_file(entry.path());
        EXPECT_EQ(text.find("#include <torch/"), std::string::npos) << entry.path();
        EXPECT_EQ(text.find("#include <ATen/"), std::string::npos) << entry.path();
      }
    }
  }
}

} // namespace
} // namespace trireme
