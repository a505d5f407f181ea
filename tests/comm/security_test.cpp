// What listens where, and what strangers can do to a job.
#include <trireme/base/descriptor.h>
#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/comm/meeting_file.h>
#include <trireme/comm/world.h>
#include <trireme/store/client.h>
#include <trireme/store/secret.h>
#include <trireme/store/sockets.h>

#include "tests/comm/listening.h"
#include "tests/support/free_port.h"
#include "tests/support/gate.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

namespace trireme::comm {
namespace {

using test::open_descriptors;
using test::own_listening_sockets;
using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::UnorderedElementsAre;
using trireme::test::run_processes;
using trireme::test::RunOptions;

/// What forked processes see of each other.
template <typename T>
class Shared {
 public:
  Shared() : place_(new(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) T) {}
  ~Shared() { munmap(place_, sizeof(T)); }
  T* operator->() const { return place_; }

 private:
  T* place_;
};

template <typename Condition>
bool wait_for(const Condition& condition) {
  for (int turn = 0; turn < 3000 && !condition(); ++turn) {
    usleep(10'000);
  }
  return condition();
}

void set(const char* name, const std::string& value) {
  setenv(name, value.c_str(), 1);
}

/// This process is one of the two ranks; the others of run_processes are strangers.
void be_one_of_two() {
  set("WORLD_SIZE", "2");
  set("LOCAL_WORLD_SIZE", "2");
}

/// A secret that all forked ranks find.
class JobSecret {
 public:
  JobSecret() : file_(store::Secret::random().memory_file()) { set("TRIREME_SECRET_FD", std::to_string(file_.get())); }
  ~JobSecret() { unsetenv("TRIREME_SECRET_FD"); }

 private:
  Descriptor file_;
};

class ListeningTest : public testing::TestWithParam<const char*> {};
class StrangersTest : public testing::TestWithParam<const char*> {};

TEST_P(ListeningTest, OnlyOnTheLoopbackInterfaceWhenAllRanksAreHere) {
  RunOptions options;
  options.backend = GetParam();
  for (const bool own_socket : {false, true}) {
    const std::string port = std::to_string(trireme::test::free_port());
    EXPECT_THAT(run_processes(
                    2,
                    [&](int rank) {
                      if (own_socket) {
                        if (rank == 0) {
                          close(std::stoi(getenv("TRIREME_LISTEN_FD")));
                        }
                        unsetenv("TRIREME_LISTEN_FD");
                        set("MASTER_PORT", port);
                      }
                      World world = World::connect();
                      const auto listening = own_listening_sockets();
                      EXPECT_THAT(listening, SizeIs((rank == 0 ? 1 : 0) + (std::string(GetParam()) == "gloo" ? 1 : 0)));
                      EXPECT_THAT(listening, Each(Field(&test::Listening::address, "0100007F")));
                      world.group().barrier().wait();
                    },
                    options),
                IsEmpty());
  }
}

/// The ports of a job, and how far it and those who bother it are.
struct Siege {
  std::atomic<int> ports[4] = {};
  std::atomic<int> ready{0};
  std::atomic<bool> over{false};
};

/// Connections to all ports of the job with random bytes, most of them broken off.
void besiege(Siege& siege, int connections) {
  std::mt19937 random(3);
  for (int turn = 0; turn < connections; ++turn) {
    for (const auto& port : siege.ports) {
      if (port == 0) {
        continue;
      }
      // gloo's socket drops what comes: nobody to wait for.
      const auto attempt =
          store::try_to_connect({"127.0.0.1", port}, std::chrono::milliseconds(turn % 100 == 0 ? 5 : 0));
      std::string bytes(random() % 100, '\0');
      for (char& byte : bytes) {
        byte = static_cast<char>(random());
      }
      [[maybe_unused]] const ssize_t sent =
          send(attempt.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      // Most are broken off with a reset, so that 100,000 of them leave only some ports of this host waiting.
      const linger now{turn % 10 == 0 ? 0 : 1, 0};
      setsockopt(attempt.socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
  }
}

TEST_P(StrangersTest, AFloodOfThemDoesNotHarmTheJob) {
  const JobSecret secret;
  Shared<Siege> siege;
  RunOptions options;
  options.backend = GetParam();
  options.deadline = std::chrono::minutes(8);
  const int connections = env::flag("TRIREME_LONG_TESTS") ? 100'000 : 2'000;
  const auto lines = run_processes(
      3,
      [&](int rank) {
        if (rank == 2) {
          EXPECT_TRUE(wait_for([&] { return siege->ready == 2; }));
          besiege(*siege.operator->(), connections);
          siege->over = true;
          return;
        }
        be_one_of_two();
        World world = World::connect();
        int place = 2 * rank;
        for (const auto& listening : own_listening_sockets()) {
          siege->ports[place++] = listening.port;
        }
        const size_t descriptors = open_descriptors();
        ++siege->ready;
        bool over = false;
        for (int step = 1; !over; ++step) {
          auto sum = torch::full({1000}, static_cast<float>(step * (rank + 1)));
          sum[999] = siege->over ? 1 : 0;
          world.group().all_reduce(sum).wait();
          ASSERT_EQ(sum[0].item<float>(), static_cast<float>(3 * step));
          ASSERT_EQ(sum[998].item<float>(), static_cast<float>(3 * step));
          over = sum[999].item<float>() > 0;
          usleep(200);
        }
        // Strangers leave nothing behind, and the doors still open for those who belong here.
        EXPECT_TRUE(wait_for([&] { return open_descriptors() <= descriptors + 2; }))
            << open_descriptors() << " descriptors, before " << descriptors;
        const Group again = world.subgroup({0, 1}, "again");
        auto one = torch::ones({10});
        again.all_reduce(one).wait();
        EXPECT_EQ(one[9].item<float>(), 2);
      },
      options);
  EXPECT_THAT(lines, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Backends, ListeningTest, testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Backends, StrangersTest, testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST(JobsTest, RanksWithAnotherSecretAreToldWhatToDo) {
  for (const bool none : {false, true}) {
    const auto lines = run_processes(2, [&](int rank) {
      const Descriptor own(store::Secret::random().memory_file());
      if (rank == 0 || !none) {
        set("TRIREME_SECRET_FD", std::to_string(own.get()));
      }
      WorldOptions options;
      options.timeout = std::chrono::milliseconds(rank == 0 ? 3000 : 30'000);
      World::connect(options);
    });
    EXPECT_THAT(lines, UnorderedElementsAre(HasSubstr("rank 1 has not come"),
                                            AllOf(HasSubstr("rank 1 of 2: the secret is wrong"),
                                                  HasSubstr("TRIREME_SECRET_FILE"), HasSubstr("MASTER_PORT"))));
  }
}

struct Jobs {
  std::atomic<bool> first_is_up{false};
  std::atomic<int> refused{0};
};

TEST(JobsTest, ASecondJobOnTheSamePortIsRefused) {
  Shared<Jobs> jobs;
  const std::string port = std::to_string(trireme::test::free_port());
  const auto lines = run_processes(4, [&](int rank) {
    const bool second = rank >= 2;
    be_one_of_two();
    unsetenv("TRIREME_LISTEN_FD");
    set("MASTER_PORT", port);
    set("RANK", std::to_string(rank % 2));
    set("LOCAL_RANK", std::to_string(rank % 2));
    set("TRIREME_RUN_ID", second ? "second" : "first");
    if (second) {
      EXPECT_TRUE(wait_for([&] { return jobs->first_is_up.load(); }));
      try {
        World::connect();
      } catch (const InputError& error) {
        ++jobs->refused;
        EXPECT_THAT(error.what(), rank == 2 ? HasSubstr("port " + port + " on 127.0.0.1 is in use")
                                            : HasSubstr("another job uses the rendezvous 127.0.0.1:" + port));
        EXPECT_THAT(error.what(), HasSubstr("MASTER_PORT"));
        return;
      }
      FAIL() << "let in";
    }
    World world = World::connect();
    jobs->first_is_up = true;
    EXPECT_TRUE(wait_for([&] { return jobs->refused == 2; }));
    auto one = torch::ones({1});
    world.group().all_reduce(one).wait();
    EXPECT_EQ(one.item<float>(), 2);
  });
  EXPECT_THAT(lines, IsEmpty());
}

/// As a launcher that makes no secret starts the ranks of one host.
void start_as(const std::string& launcher, int rank, const std::string& port) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TRIREME_LISTEN_FD"}) {
    unsetenv(name);
  }
  if (launcher == "mpirun") {
    set("PMI_RANK", std::to_string(rank));
    set("PMI_SIZE", "2");
    set("MPI_LOCALRANKID", std::to_string(rank));
    set("MPI_LOCALNRANKS", "2");
  } else if (launcher == "srun") {
    set("SLURM_PROCID", std::to_string(rank));
    set("SLURM_NTASKS", "2");
    set("SLURM_LOCALID", std::to_string(rank));
    set("SLURM_STEP_ID", "0");
    set("SLURM_STEP_NODELIST", "node7");
    set("SLURM_JOB_ID", std::to_string((std::stoi(port) - 15000 + 10000) % 10000));
  } else {
    set("RANK", std::to_string(rank));
    set("WORLD_SIZE", "2");
    set("MASTER_ADDR", launcher == "by name" ? "localhost" : "127.0.0.1");
    set("MASTER_PORT", port);
  }
}

/// A port between 15000 and 25000, where Slurm's jobs meet.
std::string free_port_of_slurm() {
  const int first = static_cast<int>(std::random_device{}() % 10'000); // other suites may run on this machine
  for (int i = 0; i < 10'000; ++i) {
    const int port = 15000 + (first + i) % 10'000;
    try {
      close(store::listen_on({"127.0.0.1", port}));
      return std::to_string(port);
    } catch (const InputError&) {
    }
  }
  throw Error("test", "no free port");
}

struct Intruder {
  std::atomic<bool> refused{false};
};

TEST(JobsTest, WithoutASecretTheRanksOfOneHostMakeOne) {
  for (const std::string launcher : {"by hand", "by name", "mpirun", "srun"}) {
    SCOPED_TRACE(launcher);
    Shared<Intruder> intruder;
    trireme::test::Gate knows_where; // under mpirun rank 0's note is gone when all ranks have met
    const std::string folder = testing::TempDir() + "trireme-secret-" + std::to_string(getpid());
    std::filesystem::create_directory(folder);
    const std::string port = free_port_of_slurm();
    const auto lines = run_processes(3, [&](int rank) {
      set("TMPDIR", folder);
      if (rank < 2) {
        start_as(launcher, rank, port);
        if (launcher == "mpirun" && rank == 1) {
          knows_where.wait();
        }
        World world = World::connect();
        EXPECT_TRUE(wait_for([&] { return intruder->refused.load(); }));
        auto one = torch::ones({1});
        world.group().all_reduce(one).wait();
        EXPECT_EQ(one.item<float>(), 2);
        return;
      }
      // Another user of this host knows the port, and a job's name if it has one, but cannot read the file.
      store::Endpoint endpoint{"127.0.0.1", std::stoi(port)};
      if (launcher == "mpirun") {
        endpoint =
            read_meeting(meeting_path("parent"), std::chrono::steady_clock::now() + std::chrono::seconds(20)).endpoint;
        knows_where.open();
      }
      const std::string job =
          launcher == "srun" ? concat("Slurm ", (std::stoi(port) - 15000 + 10000) % 10000, ".0") : "";
      try {
        store::Client::connect(endpoint, store::Secret(), job,
                               std::chrono::steady_clock::now() + std::chrono::seconds(20));
        ADD_FAILURE() << "let in";
      } catch (const store::ConnectError& error) {
        EXPECT_EQ(error.reason, store::ConnectError::Reason::wrong_secret) << error.what();
      }
      intruder->refused = true;
    });
    EXPECT_THAT(lines, IsEmpty());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      EXPECT_TRUE(entry.is_directory()) << entry.path() << " is left behind";
    }
    std::filesystem::remove_all(folder);
  }
}

TEST(JobsTest, ARankOfAnotherUserOrFolderIsToldWhereTheSecretIs) {
  const auto lines = run_processes(2, [&](int rank) {
    if (rank == 1) { // its own folder, where rank 0 has left nothing
      std::string own = testing::TempDir() + "trireme-XXXXXX";
      set("TMPDIR", mkdtemp(own.data()));
    }
    WorldOptions options;
    options.timeout = std::chrono::milliseconds(rank == 0 ? 5000 : 20'000);
    try {
      World::connect(options);
    } catch (...) {
      if (rank == 1) {
        std::filesystem::remove_all(getenv("TMPDIR"));
      }
      throw;
    }
  });
  EXPECT_THAT(
      lines,
      UnorderedElementsAre(
          HasSubstr("rank 1 has not come"),
          AllOf(HasSubstr("rank 1 of 2: the secret is wrong: this rank was given none, and rank 0 has left none in"),
                HasSubstr("same TMPDIR"), HasSubstr("TRIREME_SECRET_FILE"))));
}

// A name for the port alone was one file for both: who read it last had the other job's secret, and was refused.
TEST(JobsTest, OfOnePortAndTwoAddressesHaveASecretEach) {
  trireme::test::Gate listens[2];
  const std::string port = std::to_string(trireme::test::free_port());
  EXPECT_THAT(run_processes(4,
                            [&](int process) {
                              const int job = process / 2;
                              start_as("by hand", process % 2, port);
                              set("MASTER_ADDR", job == 0 ? "127.0.0.1" : "127.0.0.2");
                              std::thread watch;
                              if (process % 2 == 1) {
                                listens[0].wait();
                                listens[1].wait();
                              } else {
                                watch =
                                    std::thread([&, file = meeting_path({getenv("MASTER_ADDR"), std::stoi(port)}, "")] {
                                      EXPECT_TRUE(wait_for([&] { return find_meeting(file).has_value(); }));
                                      listens[job].open(2);
                                    });
                              }
                              World world = World::connect();
                              auto one = torch::ones({1});
                              world.group().all_reduce(one).wait();
                              EXPECT_EQ(one.item<float>(), 2);
                              if (watch.joinable()) {
                                watch.join();
                              }
                            }),
              IsEmpty());
}

class MeetingFileTest : public testing::Test {
 protected:
  const std::string path_ = testing::TempDir() + "trireme-meeting-" + std::to_string(getpid());
  const MeetingNote note_{{"127.0.0.1", 4711}, store::Secret::random()};
};

TEST_F(MeetingFileTest, IsForThisUserOnly) {
  const mode_t before = umask(0);
  {
    const PublishedMeeting published(path_, note_);
    struct stat status{};
    ASSERT_EQ(stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    const auto found = find_meeting(path_);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->endpoint.port, 4711);
    EXPECT_EQ(found->secret.bytes(), note_.secret.bytes());
    chmod(path_.c_str(), 0644);
    EXPECT_FALSE(find_meeting(path_)) << "others may have read it";
    chmod(path_.c_str(), 0600);
    rename(path_.c_str(), (path_ + ".real").c_str());
    EXPECT_EQ(symlink((path_ + ".real").c_str(), path_.c_str()), 0);
    EXPECT_FALSE(find_meeting(path_)) << "a link";
    unlink((path_ + ".real").c_str());
  }
  EXPECT_FALSE(find_meeting(path_)) << "gone with the object";
  umask(before);
}

TEST_F(MeetingFileTest, IsNamedAfterTheAddressThePortAndTheJob) {
  const std::string one = meeting_path({"127.0.0.1", 4711}, "");
  EXPECT_EQ(one, meeting_path({"127.0.0.1", 4711}, ""));
  EXPECT_NE(one, meeting_path({"127.0.0.2", 4711}, ""));
  EXPECT_NE(one, meeting_path({"127.0.0.1", 4712}, ""));
  EXPECT_NE(one, meeting_path({"127.0.0.1", 4711}, "of Ann/../x"));
  EXPECT_EQ(std::filesystem::path(meeting_path({"127.0.0.1", 4711}, "of Ann/../x")).parent_path(),
            std::filesystem::path(one).parent_path());
}

TEST_F(MeetingFileTest, OfAnEarlierJobDoesNotCount) {
  const pid_t child = fork();
  if (child == 0) {
    new PublishedMeeting(path_, note_);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_FALSE(find_meeting(path_)) << "its writer has ended";
  unlink(path_.c_str());
}

TEST(JobsTest, EveryAddressOfTheHostIsNoPlaceToMeet) {
  EXPECT_THAT(run_processes(1,
                            [](int) {
                              be_one_of_two();
                              unsetenv("TRIREME_LISTEN_FD");
                              for (const char* address : {"0.0.0.0", "::"}) {
                                set("MASTER_ADDR", address);
                                try {
                                  World::connect();
                                  FAIL();
                                } catch (const InputError& error) {
                                  EXPECT_THAT(error.what(), HasSubstr("stands for every address of this host"));
                                }
                              }
                            }),
              IsEmpty());
}

} // namespace
} // namespace trireme::comm
