// Operations whose wait() returns before they are finished: the watch finds those that a device never finishes.
#include <trireme/base/env.h>
#include <trireme/base/file.h>
#include <trireme/comm/environment.h>
#include <trireme/comm/group_state.h>
#include <trireme/comm/rendezvous.h>
#include <trireme/comm/staged/staged_backend.h>

#include "tests/sim_device/sim_device.h"
#include "tests/support/gate.h"
#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

namespace trireme::comm {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::Gate;
using test::peer_error;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// What a test says about an operation of its device.
struct FakeMark : public DeviceMark {
  explicit FakeMark(std::function<void(FakeMark&)> before_return = nullptr)
      : before_return_(std::move(before_return)) {}
  bool finished() override {
    if (lost) {
      throw std::runtime_error("the card fell off the bus");
    }
    const bool now = ready;
    if (before_return_ && std::this_thread::get_id() == made_by_) {
      before_return_(*this);
    }
    return now;
  }
  int64_t steps() const override { return at; }
  std::atomic<bool> ready{false};
  std::atomic<bool> lost{false};
  std::atomic<int64_t> at{0};

 private:
  const std::function<void(FakeMark&)> before_return_; // when the thread that made it asks
  const std::thread::id made_by_ = std::this_thread::get_id();
};

OpTicket collective(int64_t number) {
  return {{.number = number, .op = "all_reduce", .bytes = 4, .dtype = "Float", .what = ""}, 0};
}

TEST(DeviceOperationsTest, FinishedAndDroppedOnesAreForgotten) {
  DeviceOperations operations;
  const auto first = std::make_shared<FakeMark>();
  operations.add(collective(1), first);
  const auto second = operations.add(collective(2), std::make_shared<FakeMark>());
  EXPECT_EQ(operations.oldest()->first.number, 1);
  EXPECT_THAT(operations.look(std::chrono::hours(1)).finished, IsEmpty());
  first->ready = true;
  second->dropped = true;
  const auto found = operations.look(milliseconds(0));
  ASSERT_EQ(found.finished.size(), 1u);
  EXPECT_EQ(found.finished.front().op.number, 1);
  EXPECT_FALSE(found.trouble) << "a dropped one is not late";
  EXPECT_EQ(operations.count(), 0u);
  EXPECT_FALSE(operations.oldest());
}

TEST(DeviceOperationsTest, TimeCountsFromTheEndOfTheOneBefore) {
  constexpr milliseconds kPatience{400};
  DeviceOperations operations;
  const auto first = std::make_shared<FakeMark>();
  const auto second = std::make_shared<FakeMark>();
  operations.add(collective(1), first);
  operations.add(collective(2), second);
  OpTicket message = collective(1);
  message.op.peer = 1;
  operations.add(message, std::make_shared<FakeMark>());
  std::this_thread::sleep_for(kPatience);
  first->ready = true;
  const auto early = operations.look(kPatience);
  ASSERT_TRUE(early.trouble) << "messages do not wait for collectives";
  EXPECT_EQ(early.trouble->first.op.peer, 1);
  EXPECT_EQ(early.trouble->second.kind, Trouble::Kind::on_device);
  EXPECT_EQ(operations.oldest()->first.peer, 1);
  std::this_thread::sleep_for(kPatience);
  second->at = 1; // a long one that goes on
  ASSERT_TRUE(operations.look(kPatience).trouble);
  EXPECT_EQ(operations.look(kPatience).trouble->first.op.peer, 1);
  operations.clear();
  operations.add(collective(3), std::make_shared<FakeMark>());
  std::this_thread::sleep_for(kPatience);
  EXPECT_EQ(operations.look(kPatience).trouble->first.op.number, 3);
}

TEST(DeviceOperationsTest, ADeviceThatSaysSoIsTroubleAtOnce) {
  DeviceOperations operations;
  const auto mark = std::make_shared<FakeMark>();
  operations.add(collective(1), mark);
  mark->lost = true;
  const auto found = operations.look(std::chrono::hours(1));
  ASSERT_TRUE(found.trouble);
  EXPECT_EQ(found.trouble->second.kind, Trouble::Kind::by_device);
  EXPECT_EQ(found.trouble->second.happened, "the card fell off the bus");
}

TEST(DeviceOperationsTest, TheListDoesNotGrowForEver) {
  DeviceOperations operations;
  for (int64_t number = 1; number <= 20'000; ++number) {
    operations.add(collective(number), std::make_shared<FakeMark>());
  }
  EXPECT_LE(operations.count(), 4096u);
}

/// Moves tensors of the device "meta": wait() returns at once, and the mark says what the test wants.
class FakeBackend : public Backend {
 public:
  using Backend::Backend;
  class Enqueued : public Pending {
   public:
    explicit Enqueued(std::shared_ptr<FakeMark> mark) : mark_(std::move(mark)) {}
    void wait() override {}
    bool done() override { return mark_->finished(); }
    std::shared_ptr<DeviceMark> mark() override { return mark_; }

   private:
    std::shared_ptr<FakeMark> mark_;
  };

  const char* name() const override { return "fake"; }
  bool moves(at::DeviceType type) const override { return type == at::kMeta; }
  std::shared_ptr<Pending> all_reduce(at::Tensor, ReduceOp) override { return enqueue(); }
  std::shared_ptr<Pending> reduce_scatter(at::Tensor, at::Tensor, ReduceOp) override { return enqueue(); }
  std::shared_ptr<Pending> all_gather(at::Tensor, at::Tensor) override { return enqueue(); }
  std::shared_ptr<Pending> broadcast(at::Tensor, int) override { return enqueue(); }
  std::shared_ptr<Pending> all_to_all(at::Tensor, at::Tensor) override { return enqueue(); }
  std::shared_ptr<Pending> send(at::Tensor, int, int) override { return enqueue(); }
  std::shared_ptr<Pending> recv(at::Tensor, int, int) override { return enqueue(); }
  std::shared_ptr<Pending> barrier() override { return enqueue(); }
  int64_t bytes_sent() const override { return 0; }
  void interrupt() override { interrupted = true; }
  void close() override {}

  std::vector<std::shared_ptr<FakeMark>> marks;
  std::atomic<bool> interrupted{false};
  std::function<void(FakeMark&)> before_answers; ///< of the marks made from now on

 private:
  std::shared_ptr<Pending> enqueue() {
    marks.push_back(std::make_shared<FakeMark>(before_answers));
    return std::make_shared<Enqueued>(marks.back());
  }
};

/// One rank with a watch and groups whose tensors on "meta" go over a FakeBackend.
class WatchedRank {
 public:
  explicit WatchedRank(const std::string& host)
      : host_(host),
        environment_(read_environment([](const std::string& name) { return env::text(name.c_str()); })),
        meeting_(meet(environment_, kMeeting)),
        watch_(
            std::make_shared<Watch>(meeting_.watch_store, environment_.rank, environment_.size, meeting_.store_host)) {
    signal(SIGPIPE, SIG_IGN);
  }
  ~WatchedRank() {
    watch_->leave("", kMeeting);
    for (const auto& state : states_) {
      state->close();
    }
  }
  int rank() const { return environment_.rank; }
  std::shared_ptr<Group::State> open(const std::string& name, milliseconds timeout, Routes::Open device = nullptr,
                                     at::DeviceType type = at::kMeta,
                                     std::optional<milliseconds> device_timeout = std::nullopt) {
    fake = std::make_shared<FakeBackend>(rank(), environment_.size);
    if (!device) {
      device = [this](at::Device) { return fake; };
    }
    auto routes = std::make_unique<Routes>(connect(name, timeout),
                                           std::map<at::DeviceType, Routes::Open>{{type, std::move(device)}});
    std::vector<int> all;
    for (int member = 0; member < environment_.size; ++member) {
      all.push_back(member);
    }
    states_.push_back(std::make_shared<Group::State>(name, name + "/0", all, std::move(routes), timeout, watch_,
                                                     environment_.size, nullptr, nullptr, device_timeout));
    watch_->add(states_.back());
    return states_.back();
  }
  std::shared_ptr<Backend> connect(const std::string& name, milliseconds timeout) const {
    GroupSetup setup{.name = name,
                     .store = meeting_.store.scoped(name + "/"),
                     .rank = rank(),
                     .size = environment_.size,
                     .members = {},
                     .hosts = meeting_.hosts};
    setup.timeout = timeout;
    for (int member = 0; member < setup.size; ++member) {
      setup.members.push_back(member);
    }
    return find_backend(host_).connect(setup);
  }

  /// That of the group opened last.
  std::shared_ptr<FakeBackend> fake;

 private:
  static constexpr std::chrono::seconds kMeeting{30};
  const std::string host_;
  Environment environment_;
  Meeting meeting_;
  std::shared_ptr<Watch> watch_;
  std::vector<std::shared_ptr<Group::State>> states_;
};

at::Tensor on_fake() {
  return torch::empty({1000}, at::TensorOptions().device(at::kMeta));
}

constexpr milliseconds kShort{1000};
/// Longer than a test may take.
constexpr std::chrono::minutes kNever{10};

class DeviceWatchTest : public testing::TestWithParam<const char*> {
 protected:
  DeviceWatchTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_device_watch_", getpid())) {
    fs::create_directories(folder_);
  }
  ~DeviceWatchTest() override { fs::remove_all(folder_); }
  std::vector<std::string> run(const std::function<void(WatchedRank&)>& body) const {
    return test::run_processes(2, [&](int) {
      const int out = open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(out, STDERR_FILENO);
      close(out);
      setenv("TRIREME_RUN_DIR", folder_.c_str(), 1);
      WatchedRank rank(GetParam());
      body(rank);
    });
  }
  std::string printed() const { return fs::exists(folder_ / "stderr") ? read_file(folder_ / "stderr") : ""; }
  fs::path folder_;
};

TEST_P(DeviceWatchTest, AnOperationThatNobodyWaitsForIsReported) {
  Gate told;
  EXPECT_THAT(run([&](WatchedRank& rank) {
                const Group group(rank.open("data", kShort));
                const Group other(rank.open("pipe", kNever));
                if (rank.rank() == 1) {
                  told.wait();
                  return;
                }
                const auto begin = std::chrono::steady_clock::now();
                group.all_reduce(on_fake(), ReduceOp::sum, "bucket 7").wait();
                EXPECT_EQ(Recorder::process().records().back().state, OpState::on_device);
                // The thread goes on and waits on the host, in a group where nothing is late.
                at::Tensor tensor = torch::ones({4});
                EXPECT_THAT(peer_error([&] { other.recv(tensor, 1, 0, "header").wait(); }),
                            AllOf(HasSubstr("all_reduce #1 (\"bucket 7\""),
                                  HasSubstr("in group \"data\" is not done by its device after 1.00 s"),
                                  HasSubstr("rank 1 has not come")));
                EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
                EXPECT_THAT(peer_error([&] { group.all_reduce(on_fake()); }),
                            HasSubstr("the group has failed before: "));
                EXPECT_TRUE(rank.fake->interrupted);
                told.open();
              }),
              IsEmpty());
  EXPECT_THAT(printed(), AllOf(HasSubstr("hang report: all_reduce #1 (\"bucket 7\", 4.00 kB) in group \"data\" is not "
                                         "done after 1.00 s on rank 0 of 2"),
                               HasSubstr("held up by: rank 1")));
  EXPECT_TRUE(fs::exists(folder_ / "hang-rank0.json"));
}

TEST_P(DeviceWatchTest, ADeviceHasATimeOutOfItsOwn) {
  Gate told;
  EXPECT_THAT(run([&](WatchedRank& rank) {
                const Group group(rank.open("data", kNever, nullptr, at::kMeta, kShort));
                if (rank.rank() == 1) {
                  told.wait();
                  return;
                }
                group.all_reduce(on_fake()).wait();
                at::Tensor tensor = torch::ones({4});
                EXPECT_THAT(peer_error([&] { group.recv(tensor, 1, 0, "header").wait(); }),
                            HasSubstr("is not done by its device after 1.00 s"));
                told.open();
              }),
              IsEmpty());
}

TEST_P(DeviceWatchTest, WhoHasAllBegunItLooksAtTheDevices) {
  Gate told;
  EXPECT_THAT(run([&](WatchedRank& rank) {
                const auto state = rank.open("data", kShort);
                const Group group(state);
                for (int number = 1; number <= 40; ++number) { // the host is far ahead
                  group.all_reduce(on_fake(), ReduceOp::sum, concat("bucket ", number)).wait();
                  rank.fake->marks.back()->ready = number < 3 || rank.rank() == 1;
                }
                if (rank.rank() == 0) {
                  const std::string error = [&] {
                    while (true) {
                      try {
                        std::this_thread::sleep_for(milliseconds(50));
                        group.all_reduce(on_fake()).wait();
                      } catch (const PeerError& error) {
                        return std::string(error.what());
                      }
                    }
                  }();
                  EXPECT_THAT(error, AllOf(HasSubstr("all_reduce #3 (\"bucket 3\""),
                                           HasSubstr("all ranks have begun it and answer")));
                  told.open();
                } else {
                  told.wait();
                }
              }),
              IsEmpty());
  EXPECT_THAT(printed(), HasSubstr(" on its device in all_reduce #3 (\"bucket 3\""));
}

TEST_P(DeviceWatchTest, WhatIsFinishedLaterIsNoHang) {
  EXPECT_THAT(run([&](WatchedRank& rank) {
                const auto state = rank.open("data", kShort);
                const Group group(state);
                for (int number = 1; number <= 4; ++number) {
                  group.all_reduce(on_fake(), ReduceOp::sum, "x").wait();
                }
                EXPECT_FALSE(state->progress().last()->done);
                ASSERT_TRUE(state->progress().waiting);
                EXPECT_TRUE(state->progress().waiting->on_device);
                for (const auto& mark : rank.fake->marks) { // together longer than the time-out
                  std::this_thread::sleep_for(milliseconds(600));
                  mark->ready = true;
                }
                std::this_thread::sleep_for(milliseconds(600)); // three ticks of the watch
                EXPECT_TRUE(state->progress().last()->done);
                EXPECT_FALSE(state->progress().waiting);
                EXPECT_EQ(Recorder::process().records().back().state, OpState::done);
                EXPECT_NO_THROW(group.all_reduce(on_fake()));
              }),
              IsEmpty());
  EXPECT_THAT(printed(), Not(HasSubstr("hang report")));
}

// The device comes to the end when the waiting thread has just been told that it is not there.
TEST_P(DeviceWatchTest, WhatTheWatchSeesMeanwhileIsRemembered) {
  EXPECT_THAT(run([&](WatchedRank& rank) {
                const auto state = rank.open("data", kNever);
                const Group group(state);
                rank.fake->before_answers = [&](FakeMark& mark) {
                  mark.ready = true;
                  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
                  while (!state->progress().last()->done && std::chrono::steady_clock::now() < end) {
                    std::this_thread::sleep_for(milliseconds(10)); // the watch's thread looks
                  }
                };
                group.all_reduce(on_fake(), ReduceOp::sum, "x").wait();
                EXPECT_TRUE(state->progress().last()->done);
                EXPECT_EQ(Recorder::process().records().back().state, OpState::done);
              }),
              IsEmpty());
}

TEST_P(DeviceWatchTest, WhatIsDroppedIsForgotten) {
  EXPECT_THAT(run([&](WatchedRank& rank) {
                const auto state = rank.open("data", kShort);
                const Group group(state);
                {
                  const Work dropped = group.all_reduce(on_fake(), ReduceOp::sum, "x");
                }
                std::this_thread::sleep_for(kShort + milliseconds(1200));
                EXPECT_FALSE(state->progress().waiting);
                EXPECT_NO_THROW(group.all_reduce(on_fake()));
              }),
              IsEmpty());
  EXPECT_THAT(printed(), Not(HasSubstr("hang report")));
}

TEST_P(DeviceWatchTest, ADeviceThatFailsEndsTheGroup) {
  EXPECT_THAT(run([&](WatchedRank& rank) {
                const Group group(rank.open("data", kNever));
                if (rank.rank() == 0) {
                  group.all_reduce(on_fake(), ReduceOp::sum, "bucket 7").wait();
                  rank.fake->marks.back()->lost = true;
                }
                at::Tensor tensor = torch::ones({4});
                const std::string error = peer_error([&] { group.recv(tensor, 1 - rank.rank(), 0, "header").wait(); });
                EXPECT_THAT(error,
                            AllOf(HasSubstr("all_reduce #1 (\"bucket 7\""), HasSubstr("the card fell off the bus")));
              }),
              IsEmpty());
}

// A copy to the host that never arrives: the backend's thread waits for it without a deadline, and so does the caller.
TEST_P(DeviceWatchTest, AStagedOperationOnAHungDeviceIsEnded) {
  EXPECT_THAT(
      run([&](WatchedRank& rank) {
        sim::start();
        const auto open = [&](at::Device device) {
          return make_staged_backend(rank.connect("staged", kShort), device.type());
        };
        const Group group(rank.open("data", kShort, open, at::kPrivateUse1));
        at::Tensor tensor = torch::ones({1000}, at::TensorOptions(sim::device()));
        group.all_reduce(tensor, ReduceOp::sum, "warm").wait();
        sim::set_polls(1 << 30); // events are never ready: no operation of the host begins, so none is late there
        const std::string error = peer_error([&] { group.all_reduce(tensor, ReduceOp::sum, "bucket 7").wait(); });
        EXPECT_THAT(error,
                    AllOf(HasSubstr("all_reduce #2 (\"bucket 7\""), HasSubstr("all ranks have begun it and answer"),
                          Not(HasSubstr("as an operation before it"))));
      }),
      IsEmpty());
  EXPECT_THAT(printed(), AllOf(HasSubstr("hang report: "), HasSubstr("in group \"data\" is not done after 1.00 s")));
}

INSTANTIATE_TEST_SUITE_P(Hosts, DeviceWatchTest, testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// Two groups of the same ranks. NCCL's kernels would wait for each other for ever.
TEST(LaunchOrderTest, GroupsLaunchedInDifferentOrdersAreNamedAtOnce) {
  EXPECT_THAT(test::run_processes(
                  2,
                  [](int rank) {
                    setenv("TRIREME_CHECK", "1", 1);
                    sim::start();
                    World world = World::connect();
                    const Group experts = world.group().subgroup({0, 1}, "experts");
                    const Group shards = world.group().subgroup({0, 1}, "shards");
                    const at::Tensor one = torch::ones({100}, sim::device()), two = torch::ones({100}, sim::device());
                    for (int i = 0; i < 2; ++i) {
                      Work first = experts.all_reduce(one);
                      shards.all_reduce(two).wait();
                      first.wait();
                    }
                    EXPECT_EQ(one[0].item<float>(), 4);
                    const std::string error = peer_error([&] {
                      Work first = (rank == 0 ? experts : shards).all_reduce(one, ReduceOp::sum, "weights");
                      (rank == 0 ? shards : experts).all_reduce(two, ReduceOp::sum, "biases").wait();
                      first.wait();
                    });
                    EXPECT_THAT(error,
                                AllOf(HasSubstr("launch #5 on the devices of these ranks is all_reduce #3 of group "
                                                "\"shards\" (\"weights\") on rank 1 and all_reduce #3 of group "
                                                "\"experts\" (\"weights\") on rank 0 (TRIREME_CHECK)"),
                                      HasSubstr("in one order")));
                  }),
              IsEmpty());
}

} // namespace
} // namespace trireme::comm
