// Systems that refuse: no io_uring, no memory for it, full disks, limits, disks that fail.
#include <tests/memory/aio/aio_fixture.h>
#include <tests/memory/aio/small_disk.h>
#include <tests/support/command.h>
#include <tests/support/other_user.h>

#include <trireme/base/log.h>

#include <csignal>
#include <cstdlib>
#include <mutex>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trireme::aio {
namespace {

using testing::HasSubstr;

/// From now on `call` fails in this process with `code`, as by the filter of a container.
bool refuse_call(uint32_t call, uint32_t code) {
  sock_filter program[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, 0}, // the number of the call
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | code},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog filter{4, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// What was logged since.
class Logged {
 public:
  Logged() {
    log::set_sink([this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      text_ += line;
    });
  }
  ~Logged() { log::set_sink(nullptr); }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

class SystemTest : public testing::Test {
 protected:
  /// Writes, reads, compares.
  void expect_works(Transfers& transfers, const std::string& name = "works") const {
    const File file = File::create(folder_.path / name, 50 * kPage);
    Memory there(file.size());
    Memory back(file.size());
    fill_pattern(there.data(), there.size(), 1);
    transfers.add_buffer(there.data(), there.size());
    transfers.wait(transfers.write(file, 0, there.data(), there.size()));
    transfers.wait(transfers.read(file, 0, back.data(), back.size()));
    transfers.remove_buffer(there.data());
    EXPECT_EQ(std::memcmp(there.data(), back.data(), static_cast<size_t>(there.size())), 0);
  }
  const ScratchFolder folder_{make_scratch_folder("trireme-aio")};
};

TEST_F(SystemTest, ThreadsTakeOverWhereIoUringIsRefused) {
  for (const uint32_t code :
       {EPERM, ENOSYS,
        ENOMEM}) { // a later filter goes before earlier ones only if it is stricter: the first code stays
    Logged logged;
    if (!refuse_call(SYS_io_uring_setup, code)) {
      GTEST_SKIP() << "no filters of system calls here";
    }
    Transfers transfers({4 * kPage, 4, 3});
    EXPECT_STREQ(transfers.engine(), "threads");
    EXPECT_THAT(logged.text(), HasSubstr("aio: 3 threads transfer, not io_uring: "));
#ifdef TRIREME_HAS_LIBURING
    EXPECT_THAT(
        logged.text(),
        HasSubstr("io_uring_setup: Operation not permitted (kernel.io_uring_disabled, or the filter of a container)"));
#endif
    expect_works(transfers);
    break;
  }
}

TEST_F(SystemTest, TheEnvironmentChoosesThreads) {
  ::setenv("TRIREME_AIO", "threads", 1);
  Transfers transfers;
  EXPECT_STREQ(transfers.engine(), "threads");
  expect_works(transfers);
  ::setenv("TRIREME_AIO", "libaio", 1);
  EXPECT_THAT(error_of([] { Transfers again; }), HasSubstr("TRIREME_AIO is libaio"));
}

TEST_F(SystemTest, BuffersThatTheKernelRefusesAreUsedAsAnyMemory) {
  const File file = File::create(folder_.path / "file", 1024 * kPage);
  const rlimit little{static_cast<rlim_t>(file.size() / 4),
                      static_cast<rlim_t>(file.size() / 4)}; // enough for a ring on kernels that count it
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &little), 0);
  const test::OtherUser user; // root may lock as much as it likes
  if (!user.exists()) {
    GTEST_SKIP() << "no other user can be had";
  }
  {
    Transfers transfers({64 * kPage, 4});
    Memory there(file.size());
    Memory back(file.size());
    fill_pattern(there.data(), there.size(), 1);
    EXPECT_FALSE(transfers.add_buffer(there.data(), there.size()));
    transfers.wait(transfers.write(file, 0, there.data(), there.size()));
    transfers.wait(transfers.read(file, 0, back.data(), back.size()));
    EXPECT_EQ(std::memcmp(there.data(), back.data(), static_cast<size_t>(there.size())), 0);
  }
}

TEST_F(SystemTest, WarnsOfWhatFailedAndWasNotWaitedFor) {
  Logged logged;
  const File file = File::create(folder_.path / "file", kPage);
  Memory memory(2 * kPage);
  {
    Transfers transfers;
    transfers.read(file, 0, memory.data(), 2 * kPage);
  }
  EXPECT_THAT(logged.text(), HasSubstr(concat(" of ", file.path().string(), ": the file ends after 4096 bytes")));
}

TEST_F(SystemTest, OptionsThatCannotBeAreRefused) {
  for (const auto& [options, text] :
       std::vector<std::pair<Options, std::string>>{{{4095}, "block_size is 4095"},
                                                    {{int64_t{2} << 30}, "block_size is 2147483648"},
                                                    {{kPage, 5000}, "queue_depth is 5000"},
                                                    {{kPage, 1, 1000}, "intra_op_parallelism is 1000"}}) {
    EXPECT_THAT(error_of([&, &options = options] { Transfers transfers(options); }), HasSubstr(text));
  }
}

class RefusingSystem : public Engines {};
INSTANTIATE_TEST_SUITE_P(All, RefusingSystem, testing::Combine(testing::Bool(), testing::Bool()), engine_name);

TEST_P(RefusingSystem, SaysThatTheDiskIsFull) {
  const SmallDisk disk(folder_.path / "disk");
  if (!disk.skip_reason().empty()) {
    GTEST_SKIP() << disk.skip_reason();
  }
  // A file with holes, as a copy of one may be.
  const auto path = folder_.path / "disk" / "holes";
  const File small = File::create(folder_.path / "disk" / "small", kPage, direct());
  write_file_atomically(path, "");
  std::filesystem::resize_file(path, static_cast<uintmax_t>(2 * SmallDisk::kBytes));
  const File file = File::open(path, direct());
  Memory memory(file.size());
  fill_pattern(memory.data(), memory.size(), 1);
  Transfers transfers({64 * kPage, 4, 2}, uring());
  const auto bad = transfers.write(file, 0, memory.data(), memory.size());
  const auto good = transfers.write(small, 0, memory.data(), kPage);
  EXPECT_THAT(
      error_of([&] { transfers.wait(bad); }),
      testing::AllOf(HasSubstr("cannot write "), HasSubstr(concat("of ", path.string(), ": No space left on device, ")),
                     HasSubstr(" are free in "), HasSubstr("Make room there")));
  transfers.wait(good);
}

TEST_P(RefusingSystem, ContinuesUpToALimitAndNamesIt) {
  const int64_t limit = 10 * kPage;
  const File file = file_of(40 * kPage);
  Memory memory(file.size());
  fill_pattern(memory.data(), memory.size(), 1);
  ::signal(SIGXFSZ, SIG_IGN); // threads of the kernel may send it to any
  const rlimit most{static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &most), 0);
  Transfers transfers({4 * kPage, 1, 1}, uring()); // the third block ends behind the limit
  const auto bad = transfers.write(file, 0, memory.data(), file.size());
  EXPECT_THAT(error_of([&] { transfers.wait(bad); }),
              HasSubstr(concat("cannot write ", 2 * kPage, " bytes at offset ", limit, " of ", file.path().string(),
                               ": File too large")));
  EXPECT_EQ(transfers.bytes_written(), limit);
  EXPECT_EQ(std::memcmp(plain_bytes(file.path()).data(), memory.data(), static_cast<size_t>(limit)), 0);
  transfers.wait(transfers.write(file, 0, memory.data(), limit));
}

TEST_P(RefusingSystem, NamesADiskThatFails) {
  // A file system in a file that loses its end.
  const auto image = folder_.path / "image";
  const auto mounted = folder_.path / "mounted";
  std::filesystem::create_directories(mounted);
  if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0) {
    GTEST_SKIP() << "only root mounts files";
  }
  const auto [status, said] = test::run_command(
      concat("mount --make-rprivate / && truncate -s 24M ", image.string(), " && mkfs.ext4 -q -E nodiscard ",
             image.string(), " && mount -o loop ", image.string(), " ", mounted.string(),
             " && losetup --direct-io=on $(losetup -n -O NAME -j ", image.string(), ")"));
  if (status != 0) {
    GTEST_SKIP() << said;
  }
  {
    const File file = File::create(mounted / "file", 12 << 20, direct());
    const File other = file_of(256 * kPage);
    Memory memory(file.size());
    fill_pattern(memory.data(), memory.size(), 1);
    Transfers transfers({64 * kPage, 4, 2}, uring());
    transfers.wait(transfers.write(file, 0, memory.data(), memory.size()));
    file.sync();
    EXPECT_EQ(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED), 0);
    std::filesystem::resize_file(image, 2 << 20); // what lies behind cannot be read any more
    const auto bad = transfers.read(file, 0, memory.data(), file.size());
    const auto good = transfers.read(other, 0, memory.data(), other.size());
    EXPECT_THAT(
        error_of([&] { transfers.wait(bad); }),
        testing::AllOf(HasSubstr("cannot read "),
                       HasSubstr(concat("of ", file.path().string(), ": Input/output error, ")), HasSubstr("dmesg")));
    transfers.wait(good);
  }
  EXPECT_EQ(test::run_command(concat("umount ", mounted.string())).first, 0);
}

} // namespace
} // namespace trireme::aio
