// The house rules that a compiler does not know: which folder may include which.
#include <trireme/base/file.h>
#include <trireme/base/text.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Rules = std::map<std::string, std::set<std::string>>;

// Each folder and what it may include besides itself; ARCHITECTURE.md shows the same table.
Rules rules() {
  const std::set<std::string> one = {"base"};
  Rules r = {
      {"base", {}},
      {"store", one},
      {"kernels", one},
      {"fused", {"base", "kernels"}},
      {"launch", one},
      {"monitor", one},
      {"data", one},
      {"bucket", one},
      {"estimate", {"base", "bucket"}},
      {"comm", {"base", "store", "kernels"}},
      {"recompute", one},
      {"mesh", {"base", "comm"}},
      {"optim", {"base", "bucket", "kernels", "comm"}},
      {"precision", {"base", "kernels", "comm"}},
      {"parallel/data", {"base", "comm", "mesh", "bucket", "recompute"}},
      {"parallel/pipeline", {"base", "kernels", "monitor", "data", "bucket", "comm", "recompute", "mesh"}},
      {"zero", {"base", "mesh", "bucket", "comm", "precision"}},
      {"checkpoint", {"base", "comm", "mesh", "bucket"}},
  };
  std::set<std::string> below;
  for (const auto& [folder, allowed] : r) {
    below.insert(folder);
  }
  r["models"] = below;
  r["config"] = below;
  r["config"].insert("models"); // its options
  below.insert({"models", "config"});
  r["engine"] = below;
  below.insert("engine");
  r["generate"] = below;
  return r;
}

std::string folder_of(const fs::path& file, const fs::path& root) {
  return fs::relative(file.parent_path(), root).string();
}

// comm/gloo belongs to comm; parallel/data is a folder of its own.
std::string owner(const std::string& folder, const Rules& rules) {
  std::string name = folder;
  while (rules.count(name) == 0 && name.find('/') != std::string::npos) {
    name = name.substr(0, name.rfind('/'));
  }
  return name;
}

TEST(IncludesTest, PointOnlyDown) {
  const Rules allowed = rules();
  const fs::path root = fs::path(TRIREME_SOURCE_DIR) / "trireme";
  const std::regex include("#include [<\"]trireme/([a-z0-9_/]+)/[a-z0-9_]+\\.h[>\"]");
  int seen = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu") {
      continue;
    }
    const std::string here = owner(folder_of(entry.path(), root), allowed);
    if (here == ".") {
      continue; // trireme.h is the public surface of everything
    }
    ASSERT_EQ(allowed.count(here), 1u) << "folder " << here << " is not in the table of includes_test.cpp";
    const std::string text = read_file(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
      const std::string there = owner((*it)[1], allowed);
      ++seen;
      EXPECT_TRUE(there == here || allowed.at(here).count(there) == 1) << entry.path() << " in " << here << "/ includes " << (*it)[0];
    }
  }
  EXPECT_GT(seen, 100) << "the pattern no longer finds the includes";
}

// <torch/torch.h> in a header costs every user 10 seconds a file.
TEST(IncludesTest, HeadersStayNarrow) {
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TRIREME_SOURCE_DIR) / "trireme")) {
    if (entry.path().extension() == ".h") {
      EXPECT_EQ(read_file(entry.path()).find("#include <torch/torch.h>"), std::string::npos) << entry.path();
    }
  }
}

// What must start in milliseconds has no libtorch in it.
TEST(IncludesTest, SomeFoldersHaveNoTorch) {
  for (const char* folder : {"base", "store", "kernels", "launch", "monitor", "estimate", "config"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TRIREME_SOURCE_DIR) / "trireme" / folder)) {
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
