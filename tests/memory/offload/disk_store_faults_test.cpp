// Disks that change bytes, lose them, refuse them or are full: a sentence that says where, and no wrong value.
#include "stored.h"

#include <tests/support/command.h>
#include <tests/support/sanitized.h>

#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>

namespace trireme::offload {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kBuckets = 8;

template <typename F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Eight buckets of one block each, bucket b full of b + 1; more than have memory.
struct Filled : Stored {
  int64_t buffer;

  explicit Filled(bool pipelined = true)
      : Stored({.kind = "optimizer states",
                .buffers = 3,
                .pipeline_read = pipelined,
                .pipeline_write = pipelined,
                .fast_init = true}) {
    buffer = store.add(equal_arrays(1, kBuckets, 1024), at::kCPU);
    std::vector<std::string> names;
    for (int b = 0; b < kBuckets; ++b) {
      names.push_back(concat("layers.", b, ".weight"));
    }
    store.name_buckets(buffer, names);
    for (int b = 0; b < kBuckets; ++b) {
      write(store, buffer, b, b + 1);
    }
    for (int b = kBuckets - 3; b < kBuckets; ++b) { // their writes are finished
      read(store, buffer, b);
    }
  }
};

TEST(DiskStoreFaultsTest, AByteThatTheDiskChangedIsFound) {
  for (const bool ahead : {false, true}) {
    Filled filled;
    const int fd = ::open(open_file("optimizer_states.0").c_str(), O_WRONLY);
    ASSERT_GE(fd, 0);
    const char changed = 1;
    ASSERT_EQ(::pwrite(fd, &changed, 1, 2 * 4096 + 77), 1);
    ::close(fd);
    EXPECT_EQ(read(filled.store, filled.buffer, 1), 2);
    if (ahead) {
      filled.store.prefetch(filled.buffer, 2);
    }
    EXPECT_THAT(
        error_of([&] { read(filled.store, filled.buffer, 2); }),
        AllOf(HasSubstr("the disk has changed bucket 2 of the optimizer states, which begins with \"layers.2.weight\""),
              HasSubstr("bytes 8192 to 12288 of "),
              HasSubstr((filled.scratch.path / "trireme.rank0/optimizer_states.0").string()),
              HasSubstr("last checkpoint")));
    EXPECT_THAT(error_of([&] { read(filled.store, filled.buffer, 2); }), HasSubstr("the disk has changed"))
        << "again, and not its memory of before";
    EXPECT_EQ(read(filled.store, filled.buffer, 3), 4) << "the others are whole";
  }
}

TEST(DiskStoreFaultsTest, AFileThatBecameShorterIsAnErrorWithItsName) {
  Filled filled;
  ASSERT_EQ(::truncate(open_file("optimizer_states.0").c_str(), 2 * 4096), 0);
  EXPECT_EQ(read(filled.store, filled.buffer, 1), 2);
  EXPECT_THAT(error_of([&] { read(filled.store, filled.buffer, 4); }),
              AllOf(HasSubstr("cannot read"), HasSubstr("optimizer_states.0"), HasSubstr("offset 16384")));
}

/// While it lives, the kernel refuses every write to a file: EFBIG.
struct RefusedWrites {
  rlimit before{};
  RefusedWrites() {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit none{0, before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  ~RefusedWrites() { ::setrlimit(RLIMIT_FSIZE, &before); }
};

TEST(DiskStoreFaultsTest, WhatCouldNotBeWrittenIsLostAndSaysSo) {
  for (const bool pipelined : {false, true}) {
    Filled filled(pipelined);
    std::string error = "no error";
    {
      const RefusedWrites refused;
      error = error_of([&] {
        write(filled.store, filled.buffer, 2, 20);
        for (const int b : {3, 4, 5}) { // until its memory is wanted
          read(filled.store, filled.buffer, b);
        }
      });
    }
    EXPECT_THAT(error, AllOf(HasSubstr("cannot write"), HasSubstr("optimizer_states.0"), HasSubstr("offset 8192"),
                             HasSubstr("are free in ")));
    EXPECT_THAT(error_of([&] { read(filled.store, filled.buffer, 2); }),
                AllOf(HasSubstr("bucket 2 of the optimizer states, which begins with \"layers.2.weight\""),
                      HasSubstr("is lost"), HasSubstr("last checkpoint")));
    EXPECT_EQ(read(filled.store, filled.buffer, 6), 7);
    filled.store.forget(filled.buffer, 2);
    write(filled.store, filled.buffer, 2, 5);
    EXPECT_EQ(read(filled.store, filled.buffer, 2), 5);
  }
}

// The next test runs it under strace, where the system refuses something once.
TEST(DiskStoreFaultsTest, StepsUntilTheSystemRefuses) {
  const bool traced = std::getenv("TRIREME_TEST_TRACED") != nullptr;
  Filled filled;
  int step = 0;
  const std::string error = error_of([&] {
    for (; step < 100; ++step) {
      for (int b = 0; b < kBuckets; ++b) {
        write(filled.store, filled.buffer, b, step);
      }
    }
  });
  int whole = 0;
  int lost = 0;
  for (int b = 0; b < kBuckets; ++b) {
    try {
      const double value = read(filled.store, filled.buffer, b);
      EXPECT_TRUE(value == step - 1 || (traced && value == step))
          << "step " << step << ", bucket " << b << ": " << value;
      ++whole;
    } catch (const Error&) {
      ++lost;
    }
  }
  EXPECT_LE(lost, traced ? 1 : 0);
  EXPECT_EQ(error != "no error", traced);
  std::cout << "whole " << whole << ": " << error << std::endl;
}

TEST(DiskStoreFaultsTest, EveryErrorOfTheSystemIsTold) {
  if (test::run_command("strace -qq -e trace=none -e inject=getppid:error=EIO true").first != 0) {
    GTEST_SKIP() << "no strace that may trace";
  }
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer's process is not traced";
  }
  const std::string traced =
      "TRIREME_TEST_TRACED=1 TRIREME_AIO=threads OMP_NUM_THREADS=1 strace -f -qq -o /dev/null -e "
      "trace=pread64,pwrite64 -e inject=";
  const std::string program = " " + fs::read_symlink("/proc/self/exe").string() +
                              " --gtest_filter=DiskStoreFaultsTest.StepsUntilTheSystemRefuses";
  // The loader of libraries reads by pread64 too, but never so often in one thread.
  for (const auto& [fault, told] : {std::pair("pread64:error=EIO:when=300", "cannot read 4096 bytes"),
                                    std::pair("pwrite64:error=EIO:when=300", "cannot write 4096 bytes"),
                                    std::pair("pwrite64:error=ENOSPC:when=301", "No space left on device")}) {
    const auto [status, output] = test::run_command(traced + fault + program);
    EXPECT_EQ(status, 0) << output;
    EXPECT_THAT(output, AllOf(HasSubstr("whole "), HasSubstr(told), HasSubstr("trireme.rank0/optimizer_states.0"),
                              HasSubstr("are free in ")))
        << fault;
  }
}

// Not in the middle of a run: the blocks are reserved.
TEST(DiskStoreFaultsTest, AFullDiskIsNoticedBeforeTheFirstStep) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  const fs::path small = scratch.path / "small";
  fs::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "this user may not mount a file system";
  }
  {
    DiskStore store(RankFolder::open(small, 0), {.kind = "optimizer states"}, std::make_shared<Traffic>());
    const int64_t fits = store.add(equal_arrays(2, 8, 1024), at::kCPU);
    EXPECT_THAT(error_of([&] { store.add(equal_arrays(2, 400, 1024), at::kCPU); }),
                AllOf(HasSubstr((small / "trireme.rank0/optimizer_states.1").string()), HasSubstr("No space left"),
                      HasSubstr("free in")));
    write(store, fits, 3, 4);
    EXPECT_EQ(read(store, fits, 3), 4) << "what was there stays";
  }
  ::umount2(small.c_str(), MNT_DETACH);
}

} // namespace
} // namespace trireme::offload
