// A rank's threads run on the cores of its GPU's NUMA node.
#include <trireme/device/numa.h>

#include <gmock/gmock.h>

#include <sched.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

namespace trireme::device {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(NumaTest, ReadsTheSystemsLists) {
  EXPECT_THAT(cores_of_list("0-2,8"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(cores_of_list("7"), ElementsAre(7));
  for (const char* list : {"", "x", "3-1", "-1", "1-", "1,,2", "0-99999999999", "0-4096", "1 2"}) {
    EXPECT_THAT(cores_of_list(list), IsEmpty()) << list;
  }
}

std::vector<int> cores_of_this_thread() {
  cpu_set_t mask;
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &mask)) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

class BindTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(devices_); }
  // CUDA's name of a card in capitals, as it writes them; the system's folder is in small letters.
  void write(const std::string& list) {
    std::filesystem::create_directories(devices_ + "/0000:3b:00.0");
    std::ofstream(devices_ + "/0000:3b:00.0/local_cpulist") << list << "\n";
  }
  std::string bind() { return bind_near("0000:3B:00.0", devices_); }

  const std::vector<int> before_ = cores_of_this_thread(); // a test is a process of its own
  const std::string devices_ = testing::TempDir() + "/trireme_numa_" + std::to_string(::getpid());
};

TEST_F(BindTest, EveryThreadMovesToTheNode) {
  if (before_.size() < 2) {
    GTEST_SKIP() << "this process may use one core alone";
  }
  std::mutex mutex;
  std::condition_variable asked;
  bool go = false;
  std::vector<int> of_another;
  std::thread another([&] { // older than the binding
    std::unique_lock lock(mutex);
    asked.wait(lock, [&] { return go; });
    of_another = cores_of_this_thread();
  });
  const int wanted = before_.back();
  write(std::to_string(wanted) + ",1000"); // 1000 is no core of this process
  EXPECT_EQ(bind(), std::to_string(wanted));
  {
    const std::lock_guard lock(mutex);
    go = true;
  }
  asked.notify_one();
  another.join();
  EXPECT_THAT(cores_of_this_thread(), ElementsAre(wanted));
  EXPECT_THAT(of_another, ElementsAre(wanted));
}

TEST_F(BindTest, NothingChangesWhereThereIsNothingToChoose) {
  EXPECT_EQ(bind(), "") << "the system knows no such device";
  EXPECT_EQ(bind_near("", devices_), "") << "CUDA does not know the card's place";
  write("1000");
  EXPECT_EQ(bind(), "") << "none of the node's cores is allowed";
  write("what");
  EXPECT_EQ(bind(), "");
  write("0-1000");
  EXPECT_EQ(bind(), "") << "the node has every core";
  EXPECT_EQ(cores_of_this_thread(), before_);
}

} // namespace
} // namespace trireme::device
