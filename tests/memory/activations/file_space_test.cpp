#include <trireme/memory/activations/file_space.h>

#include <trireme/base/error.h>

#include <tests/support/small_disk.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <fstream>

namespace trireme::activations {
namespace {

namespace fs = std::filesystem;

fs::path scratch(const char* name) {
  return fs::path(testing::TempDir()) / concat("trireme_activations_", name, '_', ::getpid());
}

TEST(FileSpaceTest, PiecesDoNotOverlapAndRoomIsUsedAgain) {
  const fs::path folder = scratch("space");
  {
    const auto space = std::make_shared<FileSpace>(folder);
    auto a = space->take(aio::kAlignment);
    auto b = space->take(2 * aio::kAlignment);
    auto c = space->take(aio::kAlignment);
    EXPECT_EQ(a->offset, 0);
    EXPECT_EQ(b->offset, aio::kAlignment);
    EXPECT_EQ(c->offset, 3 * aio::kAlignment);
    EXPECT_EQ(space->bytes(), 4 * aio::kAlignment) << "no more than is needed";
    a.reset();
    c.reset();
    auto large = space->take(2 * aio::kAlignment); // the first hole is too small, the last grows
    EXPECT_EQ(large->offset, 3 * aio::kAlignment);
    EXPECT_EQ(space->bytes(), 5 * aio::kAlignment);
    b.reset();
    auto all = space->take(3 * aio::kAlignment);
    EXPECT_EQ(all->offset, 0);
    EXPECT_EQ(space->bytes(), 5 * aio::kAlignment);
    EXPECT_TRUE(fs::is_empty(folder)) << "files have no names";
  }
  fs::remove_all(folder);
}

TEST(FileSpaceTest, ADiskIsFilledToItsEndAndRoomIsDivided) {
  const fs::path folder = scratch("small");
  const test::SmallDisk disk(folder, 8 * aio::kAlignment);
  if (!disk.exists()) {
    GTEST_SKIP() << "needs root to mount a small file system";
  }
  const auto space = std::make_shared<FileSpace>(folder);
  EXPECT_EQ(space->room(1), 8 * aio::kAlignment);
  auto a = space->take(3 * aio::kAlignment);
  const auto b = space->take(3 * aio::kAlignment);
  EXPECT_EQ(space->room(2), (6 + 1) * aio::kAlignment) << "its own, and a half of what is free";
  EXPECT_THROW(space->take(3 * aio::kAlignment), Error);
  const auto c = space->take(2 * aio::kAlignment);
  a.reset();
  EXPECT_EQ(space->take(3 * aio::kAlignment)->offset, 0);
  EXPECT_EQ(space->bytes(), 8 * aio::kAlignment);
}

TEST(FileSpaceTest, AFolderThatCannotBeIsRefused) {
  const fs::path file = scratch("file");
  std::ofstream(file) << "x";
  try {
    FileSpace space(file / "below");
    FAIL() << "a folder below a file";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(file.string()));
  }
  fs::remove(file);
}

} // namespace
} // namespace trireme::activations
