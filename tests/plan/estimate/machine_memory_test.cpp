#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/plan/estimate/machine_memory.h>

#include <gtest/gtest.h>

#include <unistd.h>

namespace trireme::estimate {
namespace {

namespace fs = std::filesystem;

class MachineMemoryTest : public testing::Test {
 protected:
  MachineMemoryTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_memory_", ::getpid())) {
    write("proc/meminfo", "MemTotal: 32000 kB\nMemAvailable:   16000 kB\nSwapFree:  4000 kB\n");
  }
  ~MachineMemoryTest() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& content) {
    fs::create_directories((folder_ / name).parent_path());
    write_file_atomically(folder_ / name, content);
  }
  MemoryAtHand read() const { return memory_at_hand(folder_ / "proc", folder_ / "cgroup"); }
  fs::path folder_;
};

TEST_F(MachineMemoryTest, WhatIsFreeAndSwap) {
  EXPECT_EQ(read().bytes, 20000 * 1024);
  EXPECT_EQ(read().source, "this machine has free");
}

TEST_F(MachineMemoryTest, TheTightestGroupOfVersionTwo) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("cgroup/jobs/one/memory.max", "max\n");
  write("cgroup/jobs/one/memory.current", "1000000\n");
  EXPECT_EQ(read().source, "this machine has free") << "max is no limit";
  write("cgroup/jobs/memory.max", "9000000\n");
  write("cgroup/jobs/memory.current", "5000000\n");
  write("cgroup/jobs/memory.stat", "anon 3000000\ninactive_file 1500000\nactive_file 500000\n");
  EXPECT_EQ(read().bytes, 9000000 - 5000000 + 2000000);
  EXPECT_EQ(read().source, "the control group /jobs leaves");
}

TEST_F(MachineMemoryTest, AContainerSeesItsGroupAtTheRoot) {
  write("proc/self/cgroup", "0::/docker/0123456789\n");
  write("cgroup/memory.max", "7000000\n");
  write("cgroup/memory.current", "1000000\n");
  EXPECT_EQ(read().bytes, 6000000);
}

TEST_F(MachineMemoryTest, AGroupOfVersionOne) {
  write("proc/self/cgroup", "3:cpu,cpuacct:/job\n2:memory:/job\n");
  write("cgroup/memory/job/memory.limit_in_bytes", "5000000\n");
  write("cgroup/memory/job/memory.usage_in_bytes", "4500000\n");
  write("cgroup/memory/job/memory.stat", "total_inactive_file 100000\n");
  EXPECT_EQ(read().bytes, 600000);
}

TEST_F(MachineMemoryTest, NothingToReadIsNoLimit) {
  fs::remove_all(folder_);
  EXPECT_EQ(read().bytes, MemoryAtHand::kUnlimited);
}

} // namespace
} // namespace trireme::estimate
