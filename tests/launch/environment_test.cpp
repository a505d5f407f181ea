#include <trireme/launch/environment.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace trireme::launch {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

RankPlace place_of(int rank, int ranks) {
  RankPlace place;
  place.local_rank = rank;
  place.share.ranks = ranks;
  place.share.local_ranks = ranks;
  place.share.address = "127.0.0.1";
  place.share.ports = {4711, 4712};
  place.secret_fd = 8;
  place.run_id = "0123456789abcdef";
  place.lifeline_fd = 7;
  place.usable_cores = 8;
  return place;
}

TEST(EnvironmentTest, TellsARankWhereItStands) {
  RankPlace place = place_of(0, 3);
  place.listen_fd = 9;
  place.share.terminal_columns = 97;
  place.share.max_restarts = 5;
  EXPECT_THAT(
      rank_environment(place, {}, {}),
      UnorderedElementsAre("RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3", "GROUP_RANK=0",
                           "MASTER_ADDR=127.0.0.1", "MASTER_PORT=4712", "TRIREME_STORE_ADDR=127.0.0.1",
                           "TRIREME_STORE_PORT=4711", "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_MAX_RESTARTS=5",
                           "TORCHELASTIC_RUN_ID=0123456789abcdef", "TRIREME_RUN_ID=0123456789abcdef",
                           "TRIREME_LIFELINE_FD=7", "TRIREME_SECRET_FD=8", "TRIREME_LISTEN_FD=9", "TRIREME_TTY=97",
                           "OMP_NUM_THREADS=2", "GOMP_SPINCOUNT=2000"));
}

TEST(EnvironmentTest, TellsARankOfSeveralHostsWhereItStands) {
  RankPlace place = place_of(1, 6);
  place.share.first_rank = 4;
  place.share.local_ranks = 2;
  place.share.node = 1;
  place.share.nodes = 2;
  place.share.address = "node1";
  place.host = "node2";
  EXPECT_THAT(rank_environment(place, {}, {}),
              IsSupersetOf({"RANK=5", "LOCAL_RANK=1", "WORLD_SIZE=6", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",
                            "MASTER_ADDR=node1", "TRIREME_HOST=node2", "OMP_NUM_THREADS=4"}));
}

TEST(EnvironmentTest, OtherHostsGetWhatHoldsThereToo) {
  const auto chosen =
      portable_variables({"TRIREME_TIMEOUT=9", "TRIREME_LISTEN_FD=4", "TRIREME_STORE_ADDR=node7",
                          "TRIREME_STORE_PORT=9", "TRIREME_SECRET_FD=5", "OMP_NUM_THREADS=2", "HOME=/root",
                          "GLOO_SOCKET_IFNAME=eth1", "LD_LIBRARY_PATH=/opt/a=b", "LD_LIBRARY_PATHS=/x", "odd"});
  EXPECT_EQ(chosen, (Variables{{"TRIREME_TIMEOUT", "9"},
                               {"OMP_NUM_THREADS", "2"},
                               {"GLOO_SOCKET_IFNAME", "eth1"},
                               {"LD_LIBRARY_PATH", "/opt/a=b"}}));
}

TEST(EnvironmentTest, OnlyRankZeroListens) {
  EXPECT_THAT(rank_environment(place_of(1, 3), {}, {}), Not(Contains(StartsWith("TRIREME_LISTEN_FD"))));
}

TEST(EnvironmentTest, ARestartIsMarked) {
  RankPlace place = place_of(1, 2);
  EXPECT_THAT(rank_environment(place, {}, {}), Not(Contains(StartsWith("TRIREME_RESTART"))));
  place.share.restarts = 2;
  EXPECT_THAT(rank_environment(place, {}, {}), IsSupersetOf({"TRIREME_RESTART=1", "TORCHELASTIC_RESTART_COUNT=2"}));
}

TEST(EnvironmentTest, KeepsTheUsersVariables) {
  EXPECT_THAT(
      rank_environment(place_of(0, 2),
                       {"HOME=/root", "CUDA_VISIBLE_DEVICES=3,1", "OMP_NUM_THREADS=5", "EMPTY=", "A=b=c"},
                       {{"MORE", "x"}, {"HOME", "/elsewhere"}}),
      IsSupersetOf({"CUDA_VISIBLE_DEVICES=3,1", "OMP_NUM_THREADS=5", "EMPTY=", "A=b=c", "MORE=x", "HOME=/elsewhere"}));
  EXPECT_THAT(rank_environment(place_of(0, 2), {}, {}), Not(Contains(StartsWith("CUDA_VISIBLE_DEVICES"))));
}

TEST(EnvironmentTest, TakesOutWhatAnOuterLauncherSaid) {
  const auto inner = rank_environment(
      place_of(1, 2),
      {"RANK=5", "WORLD_SIZE=9", "TRIREME_LISTEN_FD=12", "TRIREME_RESTART=1", "TRIREME_HOST=x",
       "TRIREME_STORE_ADDR=node7", "TRIREME_STORE_PORT=9", "TORCHELASTIC_USE_AGENT_STORE=True", "MASTER_ADDR=node7"},
      {});
  EXPECT_THAT(inner, IsSupersetOf({"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "TRIREME_STORE_ADDR=127.0.0.1",
                                   "TRIREME_STORE_PORT=4711"}));
  EXPECT_THAT(inner, Not(Contains("RANK=5")));
  for (const char* name : {"TRIREME_LISTEN_FD", "TRIREME_RESTART", "TRIREME_HOST", "TORCHELASTIC_USE_AGENT_STORE"}) {
    EXPECT_THAT(inner, Not(Contains(StartsWith(name)))) << name;
  }
}

TEST(EnvironmentTest, SharesTheCoresAmongRanks) {
  const auto threads = [](int ranks, int cores, std::vector<std::string> inherited) {
    RankPlace place = place_of(0, ranks);
    place.usable_cores = cores;
    for (const std::string& entry : rank_environment(place, inherited, {})) {
      if (entry.starts_with("OMP_NUM_THREADS=")) {
        return entry.substr(16);
      }
    }
    return std::string("missing");
  };
  EXPECT_EQ(threads(1, 8, {}), "8");
  EXPECT_EQ(threads(3, 8, {}), "2");
  EXPECT_EQ(threads(16, 8, {}), "1");
  EXPECT_EQ(threads(3, 8, {"OMP_NUM_THREADS="}), "2") << "empty is not set";
  EXPECT_EQ(threads(3, 8, {"OMP_NUM_THREADS=7"}), "7");
}

TEST(EnvironmentTest, RunIdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const std::string id = random_id();
    EXPECT_EQ(id.size(), 16u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 100u);
}

TEST(EnvironmentTest, ReadsItsOwn) {
  ::setenv("TRIREME_LAUNCH_TEST", "a=b", 1);
  EXPECT_THAT(own_environment(), Contains("TRIREME_LAUNCH_TEST=a=b"));
  ::unsetenv("TRIREME_LAUNCH_TEST");
}

} // namespace
} // namespace trireme::launch
