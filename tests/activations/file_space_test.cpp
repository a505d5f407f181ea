#include <trireme/activations/file_space.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <fstream>
#include <unistd.h>

namespace trireme::activations {
namespace {

namespace fs = std::filesystem;

fs::path scratch(const char* name) {
  return fs::path(testing::TempDir()) / concat("trireme_activations_", name, '_', ::getpid());
}

TEST(FileSpaceTest, PiecesDoNotOverlapAndRoomIsUsedAgain) {
  const fs::path folder = scratch("space");
  {
    const auto space = std::make_shared<FileSpace>(folder, 4 * aio::kAlignment);
    auto a = space->take(aio::kAlignment);
    auto b = space->take(2 * aio::kAlignment);
    auto c = space->take(aio::kAlignment);
    EXPECT_EQ(a->offset, 0);
    EXPECT_EQ(b->offset, aio::kAlignment);
    EXPECT_EQ(c->offset, 3 * aio::kAlignment);
    EXPECT_EQ(space->bytes(), 4 * aio::kAlignment);
    a.reset();
    c.reset();
    auto large = space->take(2 * aio::kAlignment); // the free ends do not touch
    EXPECT_NE(large->file, b->file);
    EXPECT_EQ(space->bytes(), 8 * aio::kAlignment);
    b.reset();
    auto all = space->take(4 * aio::kAlignment);
    EXPECT_EQ(all->offset, 0);
    EXPECT_EQ(space->bytes(), 8 * aio::kAlignment);
    EXPECT_TRUE(fs::is_empty(folder)) << "files have no names";
  }
  fs::remove_all(folder);
}

TEST(FileSpaceTest, ALargePieceHasAFileOfItsOwn) {
  const fs::path folder = scratch("large");
  const auto space = std::make_shared<FileSpace>(folder, aio::kAlignment);
  EXPECT_EQ(space->take(10 * aio::kAlignment)->bytes, 10 * aio::kAlignment);
  EXPECT_EQ(space->bytes(), 10 * aio::kAlignment);
  fs::remove_all(folder);
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
