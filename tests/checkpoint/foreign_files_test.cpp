// A save removes what saves made, and nothing else.
#include "hand_made.h"

#include <nlohmann/json.hpp>

#include <map>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

class ForeignFilesTest : public FolderTest {
 protected:
  void save_step(int64_t step, int64_t keep_last = 0) {
    SaveOptions options;
    options.keep_last = keep_last;
    const at::Tensor w = at::full({10}, static_cast<double>(step));
    save(folder_, step_tag(step), comm::Group(), {whole_of("w", w)}, {{"step", step}}, json::object(), options);
  }
  // Every file and folder below, with the files' content.
  std::map<std::string, std::string> everything_in(const fs::path& below) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(below)) {
      all[fs::relative(entry.path(), below).string()] = entry.is_regular_file() ? content_of(entry.path()) : "";
    }
    return all;
  }
};

TEST_F(ForeignFilesTest, WhatOnlyLooksLikeALeftoverStays) {
  const std::string id(32, 'a');
  const fs::path elsewhere = folder_ / "elsewhere";
  const fs::path root = folder_ / "root";
  fs::create_directories(elsewhere);
  put_content(elsewhere / "precious", "1");
  for (const char* folder : {".tmp-mine", ".tmp-global_step1", ".old-notes", ".old-global_step1"}) {
    fs::create_directories(root / folder);
    put_content(root / folder / "precious", "2");
  }
  put_content(root / ".old-notes" / kManifestName, "{}");
  fs::create_directories(root / ".tmp-empty");
  fs::create_directories(root / (".tmp-global_step1-" + id)); // no claim beside it
  put_content(root / (".tmp-global_step1-" + id) / "precious", "3");
  for (const char* file :
       {".tmp-notes", ".latest.tmp.4711", ".latest.tmp.backup", ".tmp-short-aa.trireme-save", ".trireme-save"}) {
    put_content(root / file, "4");
  }
  fs::create_directory_symlink(elsewhere, root / ".tmp-link");
  fs::create_directory_symlink(elsewhere, root / (".tmp-link-" + id + ".trireme-save"));
  const auto before = everything_in(folder_);

  folder_ = root;
  save_step(1);
  save_step(2);
  save_step(1); // replaces
  save_step(3, /*keep_last=*/1);
  folder_ = root.parent_path();
  EXPECT_EQ(Checkpoint::open(root).step(), 3);
  auto after = everything_in(folder_);
  std::erase_if(after, [](const auto& item) {
    return item.first == "root/latest" || item.first.starts_with("root/global_step3");
  });
  EXPECT_EQ(after, before);
}

// A claim that nobody holds is a dead save's: it goes, with what is named after it.
TEST_F(ForeignFilesTest, WhatAKilledSaveLeftGoes) {
  const std::string stem = ".tmp-global_step1-0123456789abcdef0123456789abcdef";
  fs::create_directories(folder_ / stem);
  put_content(folder_ / stem / "rank00000.safetensors", "half");
  fs::create_directories(folder_ / (stem + ".removed1"));
  put_content(folder_ / (stem + ".latest"), "global_step1");
  put_content(folder_ / (stem + ".trireme-save"), "");
  save_step(1);
  EXPECT_THAT(names_in(folder_), testing::UnorderedElementsAre("global_step1", "latest"));
}

TEST_F(ForeignFilesTest, ACopyUnderAnotherNameIsKept) {
  save_step(1);
  fs::copy(folder_ / "global_step1", folder_ / "best", fs::copy_options::recursive);
  fs::copy(folder_ / "global_step1", folder_ / ".old-best", fs::copy_options::recursive);
  save_step(2, /*keep_last=*/1);
  save_step(3, /*keep_last=*/1);
  EXPECT_THAT(names_in(folder_), testing::UnorderedElementsAre("best", ".old-best", "global_step3", "latest"));
}

} // namespace
} // namespace trireme::checkpoint
