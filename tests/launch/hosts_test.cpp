// Ranks on several hosts: agents that a script starts on this machine in place of ssh.
#include "on_hosts.h"

#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/launch/messages.h>

#include <gmock/gmock.h>

#include <signal.h>
#include <unistd.h>

#include <fstream>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST_F(HostsTest, RanksAreNumberedInTheOrderOfTheHosts) {
  LaunchOptions options =
      on_hosts(2, 2,
               {"*:env=RANK", "*:env=LOCAL_RANK", "*:env=WORLD_SIZE", "*:env=LOCAL_WORLD_SIZE", "*:env=GROUP_RANK",
                "*:env=MASTER_ADDR", "*:env=MASTER_PORT", "*:env=TRIREME_STORE_ADDR", "*:env=TRIREME_STORE_PORT",
                "*:env=TRIREME_HOST", "*:env=TRIREME_LISTEN_FD", "*:env=TRIREME_RUN_ID"});
  options.hosts[0].slots = 3;
  LaunchProcess launch(options, folder());
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(value(rank, "RANK"), std::to_string(rank));
    EXPECT_EQ(value(rank, "LOCAL_RANK"), std::to_string(rank < 3 ? rank : rank - 3));
    EXPECT_EQ(value(rank, "WORLD_SIZE"), "5");
    EXPECT_EQ(value(rank, "LOCAL_WORLD_SIZE"), rank < 3 ? "3" : "2");
    EXPECT_EQ(value(rank, "GROUP_RANK"), rank < 3 ? "0" : "1");
    EXPECT_EQ(value(rank, "TRIREME_HOST"), rank < 3 ? "a" : "b");
    EXPECT_EQ(value(rank, "MASTER_ADDR"), "127.0.0.2");
    EXPECT_EQ(value(rank, "MASTER_PORT"), value(0, "MASTER_PORT"));
    EXPECT_EQ(value(rank, "TRIREME_STORE_ADDR"), "127.0.0.2");
    EXPECT_EQ(value(rank, "TRIREME_STORE_PORT"), value(0, "TRIREME_STORE_PORT"));
    EXPECT_NE(value(rank, "TRIREME_STORE_PORT"), value(rank, "MASTER_PORT"));
    EXPECT_EQ(value(rank, "TRIREME_RUN_ID"), value(0, "TRIREME_RUN_ID"));
    EXPECT_EQ(value(rank, "TRIREME_LISTEN_FD") == "missing", rank != 0);
  }
  EXPECT_EQ(launch.out(), log(0));
  EXPECT_THAT(launch.err(), HasSubstr("[launch] b: Welcome to b!\n"));
}

TEST_F(HostsTest, FewerRanksFillTheFirstHosts) {
  LaunchOptions options = on_hosts(3, 2, {"*:env=TRIREME_HOST", "*:env=WORLD_SIZE"});
  options.ranks = 3;
  LaunchProcess launch(options, folder());
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(value(1, "TRIREME_HOST"), "a");
  EXPECT_EQ(value(2, "TRIREME_HOST"), "b");
  EXPECT_EQ(value(2, "WORLD_SIZE"), "3");
  EXPECT_FALSE(fs::exists(folder() / "pid.agent.c.0"));
}

TEST_F(HostsTest, AnAgentThatTellsOfARankOfNobodysIsLost) {
  std::ofstream(folder() / "rsh")
      << "#!/bin/sh\n"
         "echo '{\"is\":\"ready\",\"protocol\":"
      << kProtocol
      << "}'\n"
         "while read -r order; do case $order in\n"
         "*'\"do\":\"listen\"'*) echo '{\"is\":\"listening\",\"port\":29999,\"program_port\":29998}' ;;\n"
         "*'\"do\":\"start\"'*) echo '{\"is\":\"output\",\"rank\":7,\"stream\":0,\"text\":\"x\"}' ;;\n"
         "esac; done\n";
  LaunchProcess launch(on_hosts(1, 2, {"*:exit=0"}), folder());
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_THAT(launch.err(),
              HasSubstr("host a (ranks 0 to 1) is lost: its agent reported rank 7, which does not run there"));
}

// The host that is this machine has its agent without --rsh.
TEST_F(HostsTest, ThisMachineNeedsNoRsh) {
  LaunchOptions options = on_hosts(2, 1, {"*:env=TRIREME_HOST"});
  options.hosts[0].address = "127.0.0.1";
  LaunchProcess launch(options, folder());
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_FALSE(fs::exists(folder() / "pid.agent.a.0"));
  EXPECT_TRUE(fs::exists(folder() / "pid.agent.b.0"));
}

TEST_F(HostsTest, RankZeroListensOnItsHostsAddressOnly) {
  LaunchOptions options = on_hosts(2, 1, {});
  options.command = {test::python(), "-c", R"(
import os, socket
port = int(os.environ["TRIREME_STORE_PORT"])
if os.environ["RANK"] == "0":
    listener = socket.socket(fileno=int(os.environ["TRIREME_LISTEN_FD"]))
    assert listener.getsockname() == ("127.0.0.2", port), listener.getsockname()
    peer, _ = listener.accept()
    print(peer.recv(100).decode(), flush=True)
else:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=20)
        assert False
    except ConnectionRefusedError:
        pass
    with socket.create_connection((os.environ["TRIREME_STORE_ADDR"], port), timeout=20) as s:
        s.sendall(b"rank 1 was here")
)"};
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(launch.out(), "rank 1 was here\n");
}

TEST_F(HostsTest, OutputArrivesByteForByteAndWhole) {
  std::string odd = "10 %\r50 %\r\xff\xfe\x01 \"\\ {no line end";
  LaunchProcess launch(on_hosts(2, 1, {"*:lines=20000", "*:out=" + odd}), folder());
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  std::string expected;
  for (int line = 1; line <= 20000; ++line) {
    expected += concat("line ", line, "\n");
  }
  EXPECT_EQ(launch.out(), odd);
  EXPECT_EQ(log(1).size(), expected.size() + odd.size());
  EXPECT_THAT(log(1), HasSubstr(odd));
  EXPECT_TRUE(launch.err().find(expected.substr(0, 1000)) != std::string::npos);
}

TEST_F(HostsTest, AFailingRankEndsTheOthersEverywhere) {
  LaunchProcess launch(
      on_hosts(2, 2,
               {"*:pid", "*:child", "3:await=go", "3:err=ValueError: no such column", "3:exit=3", "*:sleep=60000"}),
      folder());
  wait_for_ranks(4);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(appears(concat("pid.child.", rank, ".0")));
  }
  touch("go");
  EXPECT_EQ(launch.wait(), 3);
  EXPECT_THAT(launch.err(),
              AllOf(HasSubstr("rank 3 on b ended with exit code 3"), HasSubstr("| ValueError: no such column")));
  EXPECT_TRUE(nothing_runs());
}

TEST_F(HostsTest, WrongInputIsSaidOnce) {
  LaunchOptions options = on_hosts(2, 1, {});
  options.command = {"no-such-program"};
  LaunchProcess missing(options, folder());
  EXPECT_EQ(missing.wait(), 2);
  EXPECT_THAT(missing.err(), AllOf(HasSubstr("on host "), HasSubstr("program not found: no-such-program")));
  options = on_hosts(2, 1, {"*:pid"});
  options.hosts[0].address = "192.0.2.1";
  LaunchProcess elsewhere(options, folder());
  EXPECT_EQ(elsewhere.wait(), 2);
  EXPECT_THAT(elsewhere.err(), HasSubstr("192.0.2.1 is not an address of the host that runs rank 0"));
  options = on_hosts(2, 1, {"*:pid"});
  options.hosts[0].address = "0.0.0.0";
  LaunchProcess everywhere(options, folder());
  EXPECT_EQ(everywhere.wait(), 2);
  EXPECT_THAT(everywhere.err(), HasSubstr("0.0.0.0 stands for all addresses of rank 0's host"));
  options = on_hosts(2, 1, {"*:pid"});
  options.hosts[0].address = "localhost";
  options.hosts[1].address = "node2";
  LaunchProcess oneself(options, folder());
  EXPECT_EQ(oneself.wait(), 2);
  EXPECT_THAT(oneself.err(), HasSubstr("b cannot reach the first host of the hostfile, localhost"));
  options = on_hosts(2, 1, {"*:pid"});
  options.min_nodes = 3;
  LaunchProcess many(options, folder());
  EXPECT_EQ(many.wait(), 2);
  EXPECT_THAT(many.err(), HasSubstr("the job cannot run on 3 to 2 of 2 hosts"));
  EXPECT_FALSE(fs::exists(folder() / "pid.rank.0.0"));
}

TEST_F(HostsTest, AnUnreachableHostIsReplacedByASpare) {
  touch("down.b");
  LaunchOptions options = on_hosts(3, 1, {"*:env=TRIREME_HOST", "*:env=TORCHELASTIC_RESTART_COUNT"});
  options.max_nodes = 2;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr("host b is lost: it cannot be reached: rsh ended with exit code 255: ssh: "
                                      "connect to host b port 22: No route to host\n"));
  EXPECT_EQ(value(1, "TRIREME_HOST"), "c");
  EXPECT_EQ(value(1, "TORCHELASTIC_RESTART_COUNT"), "0") << "nothing had been started";
}

TEST_F(HostsTest, TooFewHostsIsAClearEnd) {
  touch("down.b");
  LaunchOptions options = on_hosts(2, 1, {"*:pid"});
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_THAT(launch.err(),
              HasSubstr("only 1 of the 2 hosts that the job needs can be used; lost: b (it cannot be reached"));
  EXPECT_FALSE(fs::exists(folder() / "pid.rank.0.0"));
  options.min_nodes = 1;
  LaunchProcess smaller(options, folder());
  EXPECT_EQ(smaller.wait(), 0) << smaller.err();
}

TEST_F(HostsTest, ALostHostIsNamedAndReplaced) {
  LaunchOptions options = on_hosts(3, 2, {"*:pid", "*:child", "*:env=TRIREME_HOST", "*:await=go.%"});
  options.max_nodes = 2;
  options.max_restarts = 1;
  LaunchProcess launch(options, folder());
  wait_for_ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(appears(concat("pid.child.", rank, ".0")));
  }
  ::kill(pid_of("pid.agent.b.0"), SIGKILL);
  wait_for_ranks(4, 1);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(eventually([&] {
      return !is_running(pid_of(concat("pid.rank.", rank, ".0"))) &&
             !is_running(pid_of(concat("pid.child.", rank, ".0")));
    })) << rank;
  }
  touch("go.1");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(
      launch.err(),
      AllOf(HasSubstr("host b (ranks 2 to 3) is lost: the connection to its agent ended: rsh was killed by SIGKILL"),
            HasSubstr("starting all ranks again: attempt 2 of 2"), HasSubstr("1 restart: ")));
  EXPECT_EQ(value(1, "TRIREME_HOST"), "a");
  EXPECT_EQ(value(3, "TRIREME_HOST"), "c");
}

TEST_F(HostsTest, WithoutASpareTheWorldGetsSmaller) {
  LaunchOptions options = on_hosts(2, 2, {"*:pid", "*:env=WORLD_SIZE", "*:env=MASTER_ADDR", "*:await=go.%"});
  options.min_nodes = 1;
  options.max_restarts = 1;
  options.arrange = [command = options.command](int slots) {
    Arrangement plan{slots, command, slots < 4 ? "smaller" : ""};
    return plan;
  };
  LaunchProcess launch(options, folder());
  wait_for_ranks(4);
  ::kill(pid_of("pid.agent.a.0"), SIGKILL);
  wait_for_ranks(2, 1);
  touch("go.1");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr("[launch] smaller\n"));
  EXPECT_EQ(value(1, "WORLD_SIZE"), "2");
  EXPECT_EQ(value(1, "MASTER_ADDR"), "127.0.0.3") << "rank 0 is on b now";
}

TEST_F(HostsTest, AHostThatComesBackIsUsedAgain) {
  LaunchOptions options = on_hosts(2, 1, {"*:pid", "*:await=go.%"});
  options.max_restarts = 1;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(pid_of("pid.agent.b.0"), SIGKILL);
  wait_for_ranks(2, 1);
  touch("go.1");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_TRUE(fs::exists(folder() / "pid.agent.b.1"));
}

TEST_F(HostsTest, FewerThanMinNodesEndsTheJob) {
  LaunchOptions options = on_hosts(2, 1, {"*:pid", "*:sleep=60000"});
  options.max_restarts = 3;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  touch("down.b");
  ::kill(pid_of("pid.agent.b.0"), SIGKILL);
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("host b (rank 1) is lost"),
                                  HasSubstr("only 1 of the 2 hosts that the job needs can be used")));
  EXPECT_TRUE(nothing_runs());
}

// A machine that hangs, a link that is cut without a word: nothing ends the connection.
TEST_F(HostsTest, ASilentHostIsLost) {
  LaunchOptions options = on_hosts(3, 1, {"*:pid", "*:env=TRIREME_HOST", "*:await=go.%"});
  options.max_nodes = 2;
  options.max_restarts = 1;
  options.heartbeat_timeout = 4;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(pid_of("pid.agent.b.0"), SIGSTOP);
  wait_for_ranks(2, 1);
  touch("go.1");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr("host b (rank 1) is lost: it has sent nothing for 4.00 s"));
  EXPECT_EQ(value(1, "TRIREME_HOST"), "c");
}

TEST_F(HostsTest, AStoppedLauncherLosesNoHost) {
  LaunchOptions options = on_hosts(2, 1, {"*:pid", "*:await=go"});
  options.heartbeat_timeout = 3;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGSTOP);
  ::usleep(4'500'000); // more than the timeout
  ::kill(launch.pid(), SIGCONT);
  ::usleep(700'000);
  touch("go");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST_F(HostsTest, NothingSurvivesAKilledLauncher) {
  for (int round = 0; round < 3; ++round) {
    LaunchProcess launch(on_hosts(2, 2, {"*:stubborn", "*:pid", "*:child", "*:daemon", "*:sleep=60000"}), folder());
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(appears(concat("pid.daemon.", rank, ".0")));
    }
    EXPECT_GE(all_pids().size(), 14u);
    ::kill(launch.pid(), SIGKILL);
    EXPECT_EQ(launch.wait(), 137);
    EXPECT_TRUE(eventually([&] { return bool(nothing_runs()); })) << nothing_runs().message();
    forget_pids();
  }
}

// Its host is then without anybody of the job but the agent's guardian.
TEST_F(HostsTest, NothingSurvivesAKilledAgent) {
  LaunchProcess launch(on_hosts(2, 2, {"*:stubborn", "*:pid", "*:child", "*:daemon", "3:exit=0", "*:sleep=60000"}),
                       folder());
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(appears(concat("pid.daemon.", rank, ".0")));
  }
  EXPECT_TRUE(eventually([&] { return !is_running(pid_of("pid.rank.3.0")); }));
  ::kill(pid_of("pid.agent.b.0"), SIGKILL);
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_TRUE(eventually([&] { return bool(nothing_runs()); })) << nothing_runs().message();
}

TEST_F(HostsTest, SignalsReachAllHosts) {
  LaunchProcess launch(on_hosts(2, 1, {"*:answer=10", "*:answer=15", "*:pid", "*:await=never"}), folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGUSR1);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(eventually([&] { return log(rank) == "got 10\n"; })) << rank;
  }
  ::kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143);
  EXPECT_EQ(log(1), "got 10\ngot 15\n");
}

TEST_F(HostsTest, ASecondSignalKills) {
  LaunchOptions options = on_hosts(2, 1, {"*:stubborn", "*:pid", "*:child", "*:sleep=60000"});
  options.grace_seconds = 1000;
  LaunchProcess launch(options, folder());
  ASSERT_TRUE(appears("pid.child.0.0"));
  ASSERT_TRUE(appears("pid.child.1.0"));
  ::kill(launch.pid(), SIGTERM);
  ::usleep(500'000);
  EXPECT_TRUE(is_running(pid_of("pid.rank.1.0")));
  ::kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143);
  EXPECT_TRUE(nothing_runs());
}

// The secret goes through the pipe: neither arguments nor environment of any process show it.
TEST_F(HostsTest, TheSecretIsTheSameAndHidden) {
  LaunchOptions options = on_hosts(2, 1, {});
  options.command = {"/bin/sh", "-c",
                     R"(cat /proc/self/fd/$TRIREME_SECRET_FD; while ! test -e "$PROBE_DIR/go"; do sleep 0.02; done)"};
  LaunchProcess launch(options, folder());
  ASSERT_TRUE(eventually(
      [&] { return fs::exists(folder() / "logs/rank1.log") && log(0).size() == 64 && log(1).size() == 64; }));
  const std::string secret = log(0);
  EXPECT_EQ(log(1), secret);
  for (const std::string agent : {"pid.agent.a.0", "pid.agent.b.0"}) {
    for (const char* file : {"cmdline", "environ"}) {
      EXPECT_THAT(read_file(concat("/proc/", pid_of(agent), "/", file)), Not(HasSubstr(secret)));
    }
  }
  touch("go");
  EXPECT_EQ(launch.wait(), 0);
}

// With servers each task starts when all are ready.
class HostsOfTasksTest : public HostsTest {
 protected:
  LaunchOptions tasks(int hosts, int workers, int servers) const {
    LaunchOptions options = on_hosts(hosts, 1, {"s:answer=15", "*:pid", "s:sleep=60000"});
    options.ranks = workers;
    options.servers = servers;
    return options;
  }
};

TEST_F(HostsOfTasksTest, AWorkerWhoseHostRefusesHoldsUpNobody) {
  touch("down.b");
  LaunchProcess launch(tasks(2, 2, 1), folder());
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(),
              HasSubstr("worker 1 is not started again (its host is lost): the job goes on with 1 worker\n"));
  EXPECT_TRUE(fs::exists(folder() / "pid.rank.w0.0"));
}

TEST_F(HostsOfTasksTest, AServerWhoseHostRefusesEndsTheJob) {
  touch("down.b");
  LaunchProcess launch(tasks(2, 1, 2), folder());
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_THAT(
      launch.err(),
      HasSubstr("server 1 cannot be started (its host is lost), and no worker can train without it: the job ends\n"));
  EXPECT_FALSE(fs::exists(folder() / "pid.rank.w0.0"));
}

TEST_F(HostsOfTasksTest, WithoutAWorkerNothingStarts) {
  touch("down.b");
  touch("down.a");
  LaunchProcess launch(tasks(2, 2, 1), folder());
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_FALSE(fs::exists(folder() / "pid.rank.s0.0"));
}

// The agent lives and beats.
TEST_F(HostsTest, AHostThatOpensNoSocketIsLost) {
  std::ofstream(folder() / "rsh") << "#!/bin/sh\n"
                                     "echo '{\"is\":\"ready\",\"protocol\":"
                                  << kProtocol
                                  << "}'\n"
                                     "while echo '{\"is\":\"beat\"}'; do sleep 0.5; done\n";
  LaunchProcess launch(on_hosts(1, 1, {"*:exit=0"}), folder());
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_THAT(launch.err(), HasSubstr("host a is lost: it has not opened a socket for its ranks within 20.0 s"));
}

} // namespace
} // namespace trireme::launch
