// What a job says when it hangs: the rank to blame, what it does, the dumps. Real processes, over gloo and shared
// memory.
#include <trireme/base/file.h>
#include <trireme/base/notes.h>
#include <trireme/comm/hang_report.h>
#include <trireme/comm/world.h>

#include "tests/support/gate.h"
#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sanitized.h"

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

namespace trireme::comm {
namespace {

namespace fs = std::filesystem;
using test::Gate;
using test::peer_error;
using test::run_processes;
using test::run_ranks;
using test::RunOptions;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

/// Longer than a test may take: a failure that is told was noticed.
constexpr std::chrono::minutes kNever{10};

class HangTest : public testing::TestWithParam<const char*> {
 protected:
  HangTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_hang_", getpid(), "_", GetParam())) {
    fs::create_directories(folder_);
    memory_ = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }
  ~HangTest() override {
    munmap(memory_, 4096);
    fs::remove_all(folder_);
  }

  /// Ranks whose operations time out after `timeout`, write their stderr to one file and their dumps beside it.
  std::vector<std::string> run(int ranks, const std::string& fault, const std::function<void(World&)>& body,
                               std::chrono::milliseconds timeout = std::chrono::seconds(3),
                               const std::string& check = "") {
    RunOptions options;
    options.backend = GetParam();
    return run_processes(
        ranks,
        [&](int) {
          const int out = open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
          dup2(out, STDERR_FILENO);
          close(out);
          setenv("TRIREME_RUN_DIR", folder_.c_str(), 1);
          setenv("TRIREME_FAULT", fault.c_str(), 1);
          setenv("TRIREME_CHECK", check.c_str(), 1);
          WorldOptions world_options;
          world_options.timeout = timeout;
          World world = World::connect(world_options);
          body(world);
        },
        options);
  }

  std::string printed() const { return fs::exists(folder_ / "stderr") ? read_file(folder_ / "stderr") : ""; }
  nlohmann::json dump(int rank) const {
    return nlohmann::json::parse(read_file(folder_ / concat("hang-rank", rank, ".json")));
  }

  fs::path folder_;
  void* memory_;
};

TEST_P(HangTest, TheRankInsideALayerIsNamedThroughAChainOfReceives) {
  Gate told;
  EXPECT_THAT(run(3, "",
                  [&](World& world) {
                    auto tensor = torch::ones({1000});
                    world.group().all_reduce(tensor, ReduceOp::sum, "warm").wait();
                    if (world.rank() == 2) {
                      const Note forward("forward of micro-batch", 5);
                      const Note layer("layer", 7, "ReLU");
                      told.wait(2);
                      while (!fs::exists(folder_ / "hang-rank2.json")) { // who leaves before has left
                        std::this_thread::sleep_for(std::chrono::milliseconds(10));
                      }
                      return;
                    }
                    const Note note("recv activation of micro-batch", 5);
                    const std::string error =
                        peer_error([&] { world.group().recv(tensor, world.rank() + 1, 0, "activations").wait(); });
                    if (world.rank() ==
                        0) { // rank 1 notices at the same moment; whoever is second is told the first one's error
                      EXPECT_THAT(error, AllOf(HasSubstr("rank 2"), HasSubstr("recv #1 from rank 1")));
                    }
                    told.open();
                  }),
              IsEmpty());
  const std::string text = printed();
  EXPECT_EQ(count(text, "hang report:"), 1) << text;
  EXPECT_THAT(text, AllOf(HasSubstr("held up by: rank 2 is in layer 7 (ReLU), in forward of micro-batch 5, for "),
                          HasSubstr("more: trireme inspect " + folder_.string())));
  if (test::kTakesStacks) {
    EXPECT_THAT(text, HasSubstr("trireme::test::Gate::wait("));
  }
  for (int rank = 0; rank < 3; ++rank) {
    const auto told = dump(rank);
    EXPECT_EQ(told.at("rank"), rank);
    EXPECT_GE(told.at("operations").size(), 1u);
    EXPECT_GT(told.at("memory").at("resident_bytes").get<int64_t>(), 0);
    EXPECT_TRUE(told.at("threads").at(0).at("main"));
    if (test::kTakesStacks) {
      EXPECT_GT(told.at("threads").at(0).at("stack").size(), 2u);
    }
  }
  EXPECT_THAT(describe_hang(folder_),
              AllOf(HasSubstr("held up by: rank 2 is in layer 7 (ReLU)"), Not(HasSubstr("no dump of"))));
  EXPECT_EQ(describe_hang(folder_ / "hang-rank1.json"), describe_hang(folder_));
}

TEST_P(HangTest, AStoppedRankIsToldToBeStopped) {
  auto* stopped = static_cast<pid_t*>(memory_);
  Gate told;
  const auto lines = run(3, "rank=1,step=2,phase=all_reduce,kind=stop", [&](World& world) {
    auto tensor = torch::ones({1000});
    if (world.rank() == 1) {
      *stopped = getpid();
    }
    usleep(1'500'000); // some ticks of the watches, which have to see each other
    const std::string error = peer_error([&] {
      for (int i = 0; i < 3; ++i) {
        world.group().all_reduce(tensor, ReduceOp::sum, concat("bucket ", i)).wait();
      }
    });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1 does not answer any more: its process"),
                             HasSubstr("is stopped (state T"), HasSubstr("kill -CONT")));
    world.close();
    if (world.rank() == 2) {
      told.wait();
      kill(*stopped, SIGKILL);
    } else {
      told.open();
    }
  });
  EXPECT_THAT(lines, ElementsAre("rank 1: ended by signal 9 (Killed)"));
  EXPECT_EQ(count(printed(), "hang report:"), 1) << printed();
  EXPECT_THAT(printed(), HasSubstr("held up by: rank 1 does not answer: its process"));
  EXPECT_THAT(describe_hang(folder_), AnyOf(HasSubstr("no dump of rank 1:"), HasSubstr("no dump of ranks 1 and 2:")))
      << "rank 2 may be late";
}

TEST_P(HangTest, TheStoppedHostOfTheMeetingPointIsToldToo) {
  auto* stopped = static_cast<pid_t*>(memory_);
  const auto lines = run(2, "rank=0,step=2,phase=all_reduce,kind=stop", [&](World& world) {
    auto tensor = torch::ones({1000});
    if (world.rank() == 0) {
      *stopped = getpid();
    }
    usleep(1'500'000); // some ticks of the watches, which have to see each other
    world.group().all_reduce(tensor, ReduceOp::sum, "warm").wait();
    usleep(300'000);
    EXPECT_THAT(peer_error([&] { world.group().all_reduce(tensor, ReduceOp::sum, "x").wait(); }),
                AllOf(HasSubstr("rank 0"), HasSubstr("is stopped (state T")));
    kill(*stopped, SIGKILL);
  });
  EXPECT_THAT(lines, ElementsAre("rank 0: ended by signal 9 (Killed)"));
  EXPECT_TRUE(newest_hang_dump(folder_)) << printed();
}

TEST_P(HangTest, ASkippedCollectiveIsNamed) {
  write_hang_dump(folder_, 5, 6, 5, "hang report: an earlier one", PeerView());
  Gate told;
  EXPECT_THAT(run(2, "rank=1,step=3,phase=all_reduce,kind=drop",
                  [&](World& world) {
                    auto tensor = torch::ones({250});
                    std::string error = peer_error([&] {
                      for (int i = 1; i <= 5; ++i) {
                        world.group().all_reduce(tensor, ReduceOp::sum, concat("bucket ", i)).wait();
                      }
                    });
                    if (world.rank() == 0) {
                      EXPECT_THAT(error, AllOf(HasSubstr("all_reduce #5 (\"bucket 5\""), HasSubstr("same order"),
                                               HasSubstr("rank 1 has left out all_reduce #3 (\"bucket 3\"")));
                      told.open();
                    } else {
                      told.wait(); // not gone, just one behind
                    }
                  }),
              IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ / "hang-rank5.json")) << "of an earlier hang in the same folder";
}

TEST_P(HangTest, WithChecksASkippedCollectiveIsNamedAtOnce) {
  EXPECT_THAT(run(
                  2, "rank=1,step=3,phase=all_reduce,kind=drop",
                  [](World& world) {
                    auto tensor = torch::ones({250});
                    const std::string error = peer_error([&] {
                      for (int i = 1; i <= 5; ++i) {
                        world.group().all_reduce(tensor, ReduceOp::sum, concat("bucket ", i)).wait();
                      }
                    });
                    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce #3 (\"bucket "), HasSubstr("bucket 3"),
                                             HasSubstr("bucket 4")));
                  },
                  kNever, "1"),
              IsEmpty());
}

struct Mismatch {
  const char* name;
  std::function<void(const Group&)> call; ///< differs by rank
  std::vector<std::string> named;
};

TEST_P(HangTest, WithChecksNothingIsReducedThatDoesNotFit) {
  const std::vector<Mismatch> all = {
      {"size",
       [](const Group& group) {
         auto tensor = torch::ones({group.rank() == 0 ? 1000 : 400});
         group.all_reduce(tensor, ReduceOp::sum, "bucket").wait();
       },
       {"4.00 kB", "1.60 kB"}},
      {"dtype",
       [](const Group& group) {
         auto tensor = group.rank() == 0 ? torch::ones({100}) : torch::ones({100}, torch::kInt);
         group.all_reduce(tensor, ReduceOp::sum, "bucket").wait();
       },
       {"of Float", "of Int"}},
      {"root",
       [](const Group& group) {
         auto tensor = torch::ones({100});
         group.broadcast(tensor, group.rank(), "weights").wait();
       },
       {"root 0", "root 1"}},
      {"reduction",
       [](const Group& group) {
         auto tensor = torch::ones({100});
         group.all_reduce(tensor, group.rank() == 0 ? ReduceOp::sum : ReduceOp::max, "x").wait();
       },
       {"(max)"}},
      {"order",
       [](const Group& group) {
         auto a = torch::ones({100});
         auto b = torch::ones({50});
         group.all_reduce(group.rank() == 0 ? a : b, ReduceOp::sum, group.rank() == 0 ? "a" : "b").wait();
         group.all_reduce(group.rank() == 0 ? b : a, ReduceOp::sum, group.rank() == 0 ? "b" : "a").wait();
       },
       {"\"a\"", "\"b\""}},
  };
  for (const Mismatch& mismatch : all) {
    SCOPED_TRACE(mismatch.name);
    EXPECT_THAT(run(
                    2, "",
                    [&](World& world) {
                      auto warm = torch::ones({4});
                      world.group().all_reduce(warm, ReduceOp::sum, "warm").wait();
                      const std::string error = peer_error([&] { mismatch.call(world.group()); });
                      EXPECT_THAT(error, HasSubstr("where this rank called"));
                      for (const auto& part : mismatch.named) {
                        EXPECT_THAT(error, HasSubstr(part));
                      }
                    },
                    kNever, "1"),
                IsEmpty());
  }
}

TEST_P(HangTest, RanksThatReceiveFromEachOtherAreACircle) {
  EXPECT_THAT(run(2, "",
                  [](World& world) {
                    auto tensor = torch::ones({4});
                    const std::string error = peer_error([&] { world.group().recv(tensor, 1 - world.rank()).wait(); });
                    EXPECT_THAT(error, HasSubstr("rank"));
                  }),
              IsEmpty());
  EXPECT_THAT(printed(), HasSubstr("wait for each other"));
}

TEST_P(HangTest, AMalformedFaultIsRefused) {
  const auto lines = run(2, "rank=1,phase=all_reduce,kind=explode", [](World&) {});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("kind=explode is unknown"));
}

INSTANTIATE_TEST_SUITE_P(Backends, HangTest, testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST(HangDumpTest, DamagedDumpsAreRefused) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_hang_damaged_", getpid());
  fs::create_directories(folder);
  EXPECT_FALSE(newest_hang_dump(folder));
  EXPECT_THROW(describe_hang(folder), InputError);
  for (const char* content :
       {"", "{}", "[1]", R"({"format": "trireme hang dump"})", R"({"format": "trireme hang dump", "rank": "x"})"}) {
    write_file_atomically(folder / "hang-rank0.json", content);
    EXPECT_TRUE(newest_hang_dump(folder));
    EXPECT_THROW(describe_hang(folder), InputError) << content;
  }
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::comm
