// Files and memory for transfers, and what is said where they cannot be had.
#include <tests/memory/aio/aio_fixture.h>
#include <tests/memory/aio/small_disk.h>

#include <trireme/memory/aio/probe.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>

namespace trireme::aio {
namespace {

using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  const ScratchFolder folder_{make_scratch_folder("trireme-aio")};
};

TEST_F(FileTest, HasItsBlocksFromTheBeginning) {
  for (const bool direct : {true, false}) {
    const File file = File::create(folder_.path / "file", 1'000'001, direct);
    EXPECT_EQ(file.size(), 1'003'520) << "rounded up";
    struct stat status{};
    ASSERT_EQ(::stat(file.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_size, file.size());
    EXPECT_GE(status.st_blocks * 512, file.size()) << "no holes";
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    const auto plain = plain_bytes(file.path());
    EXPECT_EQ(std::count(plain.begin(), plain.end(), '\0'), file.size());
    if (!direct) {
      EXPECT_FALSE(file.direct());
    }
    file.sync();
  }
}

TEST_F(FileTest, ReplacesOneThatIsThere) {
  write_file_atomically(folder_.path / "file", std::string(100'000, 'x'));
  const File file = File::create(folder_.path / "file", 8 * kPage);
  const auto plain = plain_bytes(file.path());
  EXPECT_EQ(std::count(plain.begin(), plain.end(), '\0'), 8 * kPage);
  const File again = File::open(folder_.path / "file");
  EXPECT_EQ(again.size(), 8 * kPage);
  EXPECT_EQ(again.direct(), file.direct());
}

TEST_F(FileTest, ALinkIsReplacedAndNotFollowed) {
  const auto precious = folder_.path / "precious";
  std::ofstream(precious) << "years";
  std::filesystem::create_symlink(precious, folder_.path / "file");
  EXPECT_EQ(File::create(folder_.path / "file", kPage).size(), kPage);
  EXPECT_FALSE(std::filesystem::is_symlink(folder_.path / "file"));
  EXPECT_EQ(std::filesystem::file_size(precious), 5u);
}

TEST_F(FileTest, AFolderByDescriptorIsThatFolderWhateverHasItsNameLater) {
  const auto folder = folder_.path / "folder";
  std::filesystem::create_directory(folder);
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::filesystem::rename(folder, folder_.path / "moved");
  const File file = File::create_unnamed(folder / "file", kPage, true, opened.get());
  EXPECT_EQ(file.size(), kPage);
  EXPECT_EQ(file.path(), folder / "file") << "for messages";
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(FileTest, WithoutANameIsAsOneWithANameThatIsRemoved) {
  const auto path = folder_.path / "file";
  for (const bool direct : {true, false}) {
    const File file = File::create_unnamed(path, 1'000'001, direct);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path));
    EXPECT_EQ(file.path(), path) << "for messages";
    struct stat status{};
    ASSERT_EQ(::fstat(file.descriptor(), &status), 0);
    EXPECT_EQ(status.st_size, 1'003'520);
    EXPECT_GE(status.st_blocks * 512, status.st_size) << "no holes";
    EXPECT_EQ(status.st_nlink, 0u);
    EXPECT_EQ(file.direct(), File::create(folder_.path / "named", 1'000'001, direct).direct());
    std::filesystem::remove(folder_.path / "named");
    Memory there(file.size());
    Memory back(file.size());
    fill_pattern(there.data(), there.size(), 1);
    Transfers transfers;
    transfers.wait(transfers.write(file, 0, there.data(), there.size()));
    transfers.wait(transfers.read(file, 0, back.data(), back.size()));
    EXPECT_EQ(std::memcmp(there.data(), back.data(), static_cast<size_t>(there.size())), 0);
  }
  EXPECT_THAT(error_of([&] { File::create_unnamed(folder_.path / "none" / "file", kPage); }),
              testing::AllOf(HasSubstr("cannot make a file of 4.10 kB for "),
                             HasSubstr("none/file: No such file or directory")));
}

TEST_F(FileTest, SaysWhatCannotBeOpenedOrMade) {
  EXPECT_THAT(error_of([&] { File::open(folder_.path / "none"); }),
              HasSubstr(concat("cannot open ", (folder_.path / "none").string(), ": No such file")));
  EXPECT_THAT(error_of([&] { File::open(folder_.path); }), HasSubstr("cannot open "));
  EXPECT_THAT(error_of([&] { File::create(folder_.path / "none" / "file", kPage); }),
              testing::AllOf(HasSubstr("cannot make a file of 4.10 kB for "), HasSubstr("No such file or directory")));
  EXPECT_THAT(error_of([&] { File::create(folder_.path / "file", -1); }), HasSubstr("a file of -1 bytes"));
  EXPECT_THAT(error_of([&] { Memory(-1); }), HasSubstr("cannot allocate -1 bytes"));
  EXPECT_THAT(error_of([&] { Memory(int64_t{1} << 60); }), HasSubstr("no memory of "));
}

TEST_F(FileTest, NoticesAFullDiskWhenItIsMade) {
  const SmallDisk disk(folder_.path / "disk");
  if (!disk.skip_reason().empty()) {
    GTEST_SKIP() << disk.skip_reason();
  }
  const auto path = folder_.path / "disk" / "file";
  const std::string error = error_of([&] { File::create(path, 4 * SmallDisk::kBytes); });
  EXPECT_THAT(error, HasSubstr(concat("cannot reserve 33.6 MB for ", path.string(),
                                      ": No space left on device, 8.39 MB are free in ")));
  EXPECT_FALSE(std::filesystem::exists(path));
  File::create(path, SmallDisk::kBytes / 2);
  EXPECT_EQ(filesystem_of(path), "tmpfs");
}

TEST(MemoryTest, IsAlignedAndZeroAndMoves) {
  for (const int64_t bytes : {int64_t{1}, kPage, kPage + 1, int64_t{2} << 20, (int64_t{5} << 20) + 123}) {
    Memory memory(bytes);
    EXPECT_EQ(memory.size(), (bytes + kPage - 1) / kPage * kPage);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % (bytes < int64_t{2} << 20 ? kPage : int64_t{2} << 20), 0u);
    EXPECT_EQ(std::count(memory.data(), memory.data() + memory.size(), std::byte{0}), memory.size());
    memory.data()[memory.size() - 1] = std::byte{7};
    const std::byte* data = memory.data();
    Memory moved = std::move(memory);
    EXPECT_EQ(moved.data(), data);
    Memory assigned(kPage);
    assigned = std::move(moved);
    EXPECT_EQ(assigned.data()[assigned.size() - 1], std::byte{7});
  }
  EXPECT_EQ(Memory().data(), nullptr);
  EXPECT_EQ(Memory(0).data(), nullptr);
}

TEST(MemoryTest, IsNotThereInAChild) {
  const Memory memory(4 * kPage);
  memory.data()[0] = std::byte{1};
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char pages[4];
    ::_exit(::mincore(memory.data(), 4 * kPage, pages) != 0 && errno == ENOMEM ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(memory.data()[0], std::byte{1});
}

class ProbeTest : public FileTest {};

// As in a container that is made by chroot(): the list of mounts does not have its root.
TEST_F(ProbeTest, KnowsTheFileSystemOfAChangedRoot) {
  const std::string known = filesystem_of(folder_.path);
  if (!std::set<std::string>{"ext4", "xfs", "btrfs", "tmpfs", "overlay"}.contains(known)) {
    GTEST_SKIP() << "one of those that are told by name only: " << known;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(::chroot(folder_.path.c_str()) != 0 ? 77 : filesystem_of("/") == known ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "this user may not change the root";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << known;
}

TEST_F(ProbeTest, MeasuresAFolderAndLeavesNothing) {
  const Probe found = probe(folder_.path, {64 * kPage, 4}, 3 * 64 * kPage + 5);
  EXPECT_EQ(found.direct, !is_memory(found.filesystem) && File::create(folder_.path / "file", kPage).direct());
  std::filesystem::remove(folder_.path / "file");
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path));
  EXPECT_EQ(found.engine, std::string(Transfers().engine()));
  EXPECT_GT(found.read_bytes_per_s, 0);
  EXPECT_GT(found.write_bytes_per_s, 0);
  EXPECT_FALSE(found.filesystem.empty());
  if (found.direct) {
    EXPECT_EQ(kPage % found.alignment, 0);
  }
}

TEST_F(ProbeTest, KnowsASmallDisk) {
  const SmallDisk disk(folder_.path / "a disk"); // its name is escaped in the list of mounts
  if (!disk.skip_reason().empty()) {
    GTEST_SKIP() << disk.skip_reason();
  }
  const Probe found = probe(folder_.path / "a disk", {kPage, 1}, 100 * kPage);
  EXPECT_EQ(found.filesystem, "tmpfs");
  EXPECT_EQ(found.free_bytes, SmallDisk::kBytes);
  EXPECT_THAT(error_of([&] { probe(folder_.path / "a disk", {}, 2 * SmallDisk::kBytes); }),
              HasSubstr("cannot reserve 16.8 MB for "));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path / "a disk"));
}

TEST_F(ProbeTest, RefusesWhatCannotBe) {
  EXPECT_THAT(error_of([&] { probe(folder_.path / "none", {}, kPage); }), HasSubstr("cannot make a file of"));
  EXPECT_THAT(error_of([&] { probe(folder_.path, {1000}, kPage); }),
              HasSubstr("block_size is 1000, a multiple of 4096"));
  EXPECT_THAT(error_of([&] { probe(folder_.path, {kPage, 0}, kPage); }), HasSubstr("queue_depth is 0"));
  EXPECT_THAT(error_of([&] { probe(folder_.path, {kPage, 1, 0}, kPage); }), HasSubstr("intra_op_parallelism is 0"));
}

} // namespace
} // namespace trireme::aio
