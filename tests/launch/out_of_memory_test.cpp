#include <trireme/launch/out_of_memory.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

// The kernel's files, made by hand: a real limit needs root and a writable control group.
class OutOfMemoryTest : public testing::Test {
 protected:
  OutOfMemoryTest() {
    std::string path = fs::path(testing::TempDir()) / "trireme_oom_XXXXXX";
    folder_ = ::mkdtemp(path.data());
  }
  ~OutOfMemoryTest() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  OutOfMemoryWatch watch() const { return OutOfMemoryWatch(folder_ / "cgroup", folder_ / "proc"); }

  fs::path folder_;
};

TEST_F(OutOfMemoryTest, SeesTheCounterOfVersion2Rise) {
  write("proc/self/cgroup", "0::/job\n");
  write("proc/77/cgroup", "0::/job\n");
  write("cgroup/job/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n");
  OutOfMemoryWatch memory = watch();
  EXPECT_EQ(memory.killed(77), OutOfMemory::no) << "those were before";
  write("cgroup/job/memory.events", "low 0\nhigh 0\nmax 15\noom 4\noom_kill 3\n");
  EXPECT_EQ(memory.killed(77), OutOfMemory::perhaps) << "somebody in this group, which the launcher is in too";
  EXPECT_EQ(memory.killed(77), OutOfMemory::no) << "one kill, one rank";
}

TEST_F(OutOfMemoryTest, SeesTheCounterOfVersion1Rise) {
  const std::string groups = "9:name=systemd:/\n4:cpu,memory:/slurm/job\n0::/\n";
  write("proc/self/cgroup", groups);
  write("proc/77/cgroup", groups);
  write("cgroup/memory/slurm/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  OutOfMemoryWatch memory = watch();
  EXPECT_EQ(memory.killed(77), OutOfMemory::no);
  write("cgroup/memory/slurm/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_EQ(memory.killed(77), OutOfMemory::perhaps);
}

TEST_F(OutOfMemoryTest, SeesAGroupOfTheRanksOwn) {
  write("proc/self/cgroup", "0::/\n");
  write("proc/77/cgroup", "0::/rank1\n");
  write("cgroup/rank1/memory.events", "oom_kill 1\n");
  write("cgroup/rank1/cgroup.procs", "");
  OutOfMemoryWatch memory = watch();
  EXPECT_EQ(memory.killed(77), OutOfMemory::yes);
}

// Rank 77 ran out of memory; rank 78 was killed by a person at the same time, and is reaped first.
TEST_F(OutOfMemoryTest, TheCounterOfAnotherGroupSaysNothing) {
  write("proc/self/cgroup", "0::/job\n");
  write("proc/77/cgroup", "0::/job/rank1\n");
  write("proc/78/cgroup", "0::/job/rank2\n");
  write("cgroup/job/memory.events", "oom_kill 0\n");
  write("cgroup/job/memory.events.local", "oom_kill 0\n");
  for (const std::string rank : {"rank1", "rank2"}) {
    write("cgroup/job/" + rank + "/memory.events.local", "oom_kill 0\n");
    write("cgroup/job/" + rank + "/cgroup.procs", "");
  }
  OutOfMemoryWatch memory = watch();
  EXPECT_EQ(memory.killed(77), OutOfMemory::no);
  EXPECT_EQ(memory.killed(78), OutOfMemory::no);
  write("cgroup/job/memory.events", "oom_kill 1\n"); // counts the groups below too
  write("cgroup/job/rank1/memory.events.local", "oom_kill 1\n");
  EXPECT_EQ(memory.killed(78), OutOfMemory::no);
  EXPECT_EQ(memory.killed(77), OutOfMemory::yes);
}

// A worker of the rank, or a neighbour, may be the one that was killed.
TEST_F(OutOfMemoryTest, InASharedGroupNobodyKnowsWhoItWas) {
  write("proc/self/cgroup", "0::/\n");
  write("proc/77/cgroup", "0::/ranks\n");
  write("cgroup/ranks/memory.events", "oom_kill 1\n");
  write("cgroup/ranks/cgroup.procs", "78\n");
  OutOfMemoryWatch memory = watch();
  EXPECT_EQ(memory.killed(77), OutOfMemory::perhaps);
}

TEST_F(OutOfMemoryTest, KnowsNothingWhereNothingIsCounted) {
  OutOfMemoryWatch memory = watch();
  EXPECT_EQ(memory.killed(77), OutOfMemory::no);
  write("proc/77/cgroup", "0::/job\nnonsense\n:\n");
  EXPECT_EQ(memory.killed(77), OutOfMemory::no);
}

} // namespace
} // namespace trireme::launch
