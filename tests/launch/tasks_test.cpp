// Workers and servers: tasks that live by themselves.
#include "launch_process.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/launch/tasks.h>

#include <gmock/gmock.h>

#include <signal.h>

namespace trireme::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

class TasksTest : public LaunchTest {
 protected:
  /// Servers end when asked, with a word.
  LaunchOptions tasks(int workers, int servers, std::vector<std::string> steps, int max_restarts = 0) const {
    steps.insert(steps.begin(), {"s:answer=15", "*:pid"});
    steps.insert(steps.end(), {"s:sleep=60000"});
    LaunchOptions options = probes(workers, steps);
    options.servers = servers;
    options.max_restarts = max_restarts;
    return options;
  }
  std::string log_of(const std::string& task) const { return read_file(folder() / "logs" / (task + ".log")); }
  bool all_started(int workers, int servers) const {
    for (int i = 0; i < workers + servers; ++i) {
      if (!appears(concat("pid.rank.", i < workers ? "w" : "s", i < workers ? i : i - workers, ".0"))) {
        return false;
      }
    }
    return true;
  }
  void kill_task(const std::string& name) const { ::kill(pid_of("pid.rank." + name), SIGKILL); }
};

TEST_F(TasksTest, EachKnowsWhatItIsAndWhereTheServersAre) {
  LaunchProcess launch(
      tasks(2, 2,
            {"*:env=TRIREME_WORKER", "w:env=TRIREME_LOCAL_WORKER", "*:env=TRIREME_SERVER", "*:env=TRIREME_SERVERS",
             "*:env=RANK", "*:env=WORLD_SIZE", "*:env=TRIREME_STORE_PORT", "s:out=up\n", "w:await=go"}),
      folder());
  ASSERT_TRUE(all_started(2, 2));
  ASSERT_TRUE(eventually([&] { return log_of("server0").ends_with("up\n") && log_of("server1").ends_with("up\n"); }));
  touch("go");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(launch.out(), log_of("worker0")) << "worker 0's output is shown, and nothing else";
  const auto line = [](const std::string& text, const std::string& name) {
    const size_t begin = text.find(name + "=");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  const std::string servers = line(log_of("worker0"), "TRIREME_SERVERS");
  EXPECT_THAT(servers, MatchesRegex("TRIREME_SERVERS=tcp://127.0.0.1:[0-9]+,tcp://127.0.0.1:[0-9]+"));
  for (const std::string task : {"worker0", "worker1", "server0", "server1"}) {
    const std::string log = log_of(task);
    const std::string place = concat(task.back(), "/2\n");
    EXPECT_THAT(log, AllOf(HasSubstr(servers + "\n"), HasSubstr("RANK=0\n"), HasSubstr("WORLD_SIZE=1\n")));
    EXPECT_THAT(log, HasSubstr((task.starts_with("worker") ? "TRIREME_WORKER=" : "TRIREME_SERVER=") + place));
    EXPECT_EQ(log.find(task.starts_with("worker") ? "TRIREME_SERVER=" + place : "TRIREME_WORKER=" + place),
              std::string::npos);
    EXPECT_EQ(log.find("TRIREME_LOCAL_WORKER=" + place) != std::string::npos, task.starts_with("worker"))
        << "both are on this host";
    EXPECT_EQ(log.ends_with("got 15\n"), task.starts_with("server")) << log;
  }
  EXPECT_THAT(servers, HasSubstr(":" + line(log_of("server0"), "TRIREME_STORE_PORT").substr(19) + ","));
  EXPECT_TRUE(nothing_runs());
}

TEST_F(TasksTest, AKilledServerIsStartedAgainAtItsAddress) {
  LaunchProcess launch(
      tasks(1, 2, {"*:env=TRIREME_STORE_PORT", "*:env=TRIREME_SERVERS", "*:env=TRIREME_RESTART", "w:await=go"}, 2),
      folder());
  ASSERT_TRUE(all_started(1, 2));
  // Its socket's port and all addresses, as often as it was started.
  ASSERT_TRUE(eventually([&] { return log_of("server1").find("TRIREME_RESTART") != std::string::npos; }));
  const std::string addresses = log_of("server1").substr(0, log_of("server1").find("TRIREME_RESTART"));
  const auto has_started = [&](size_t times) {
    const std::string log = log_of("server1");
    size_t count = 0;
    for (size_t at = log.find(addresses); at != std::string::npos; at = log.find(addresses, at + 1)) {
      ++count;
    }
    return count == times;
  };
  for (size_t restart = 0; restart < 2; ++restart) {
    kill_task(concat("s1.", restart));
    ASSERT_TRUE(eventually([&] { return has_started(restart + 2); })) << log_of("server1");
  }
  EXPECT_TRUE(is_running(pid_of("pid.rank.s0.0")) && is_running(pid_of("pid.rank.w0.0"))) << "the others live on";
  EXPECT_THAT(log_of("server1"), HasSubstr("TRIREME_RESTART=1\n"));
  touch("go");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(),
              AllOf(HasSubstr("[launch] server 1 was killed by SIGKILL"),
                    HasSubstr("[launch] server 1 was killed by SIGKILL, starting it again (restart 1 of 2)\n"),
                    HasSubstr("starting it again (restart 2 of 2)\n")));
  EXPECT_TRUE(nothing_runs());
}

TEST_F(TasksTest, AWorkerIsStartedAgainAndThenDropped) {
  LaunchProcess launch(tasks(2, 1, {"w:await=go"}, 1), folder());
  ASSERT_TRUE(all_started(2, 1));
  kill_task("w1.0");
  ASSERT_TRUE(appears("pid.rank.w1.1"));
  kill_task("w1.1");
  ASSERT_TRUE(eventually([&] {
    return launch.err().find(
               "worker 1 is not started again (all 1 restarts are used): the job goes on with 1 worker\n") !=
           std::string::npos;
  })) << launch.err();
  touch("go");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_TRUE(nothing_runs());
}

TEST_F(TasksTest, WithoutAWorkerTheJobHasFailed) {
  LaunchProcess launch(tasks(2, 1, {"w0:exit=3", "w1:exit=4"}), folder());
  const int code = launch.wait();
  EXPECT_TRUE(code == 3 || code == 4) << code << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr("and no other worker runs\n"));
  EXPECT_TRUE(nothing_runs());
}

// The signal that ends a server is not the job's failure.
TEST_F(TasksTest, TheCodeIsTheWorkersWhereServersHaveNoHandler) {
  LaunchOptions options = probes(1, {"s:sleep=60000", "w0:exit=3"});
  options.servers = 1;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 3) << launch.err();
  EXPECT_TRUE(nothing_runs());
}

TEST_F(TasksTest, AServerThatCannotBeStartedAgainEndsTheJob) {
  LaunchProcess launch(tasks(2, 2, {"w:sleep=60000"}), folder());
  ASSERT_TRUE(all_started(2, 2));
  kill_task("s0.0");
  EXPECT_EQ(launch.wait(), 137);
  EXPECT_THAT(launch.err(), HasSubstr("[launch] server 0 is not started again (all 0 restarts are used), and its "
                                      "state is lost: the job ends\n"));
  EXPECT_TRUE(nothing_runs());
}

TEST_F(TasksTest, AServerThatEndsTooEarlyIsStartedAgain) {
  LaunchProcess launch(tasks(1, 1, {"s:await=end%", "s:exit=0"}, 1), folder());
  EXPECT_EQ(launch.wait(), 0) << "the worker was done";
  LaunchProcess other(tasks(1, 1, {"s:await=end%", "s:exit=0", "w:await=go"}, 1), folder());
  touch("end0");
  ASSERT_TRUE(appears("pid.rank.s0.1"));
  touch("go");
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_THAT(other.err(),
              HasSubstr("server 0 ended although there are workers, starting it again (restart 1 of 1)\n"));
}

TEST_F(TasksTest, WrongInputOfAnyEndsAllAndIsTold) {
  LaunchProcess launch(tasks(2, 1, {"w1:err=no such key\n", "w1:exit=2", "w0:sleep=60000"}, 5), folder());
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_THAT(launch.err(),
              AllOf(HasSubstr("worker 1 ended with exit code 2: no such key\n"), Not(HasSubstr("starting it again"))));
  EXPECT_TRUE(nothing_runs());
}

TEST_F(TasksTest, WorkersSaveBeforeTheirServersEnd) {
  LaunchOptions options =
      tasks(2, 1, {"w0:answer=15", "w1:stubborn", "w:out=ready\n", "w0:sleep=60000", "w1:await=saved"});
  options.preemptible = true;
  LaunchProcess launch(options, folder());
  ASSERT_TRUE(all_started(2, 1));
  ASSERT_TRUE(
      eventually([&] { return log_of("worker0").ends_with("ready\n") && log_of("worker1").ends_with("ready\n"); }));
  ::kill(launch.pid(), SIGTERM);
  ASSERT_TRUE(eventually([&] { return !is_running(pid_of("pid.rank.w0.0")); }));
  EXPECT_TRUE(is_running(pid_of("pid.rank.s0.0"))) << "worker 1 still saves";
  touch("saved");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(log_of("server0"), HasSubstr("got 15\n"));
  EXPECT_TRUE(nothing_runs());
}

TEST_F(TasksTest, AnInterruptGoesToAll) {
  LaunchProcess launch(tasks(1, 1, {"s:answer=2", "w:answer=2", "*:out=ready\n", "w:sleep=60000"}), folder());
  ASSERT_TRUE(all_started(1, 1));
  ASSERT_TRUE(
      eventually([&] { return log_of("worker0").ends_with("ready\n") && log_of("server0").ends_with("ready\n"); }));
  ::kill(launch.pid(), SIGINT);
  EXPECT_EQ(launch.wait(), 130);
  EXPECT_THAT(log_of("worker0"), HasSubstr("got 2\n"));
  EXPECT_THAT(log_of("server0"), HasSubstr("got 2\n"));
  EXPECT_TRUE(nothing_runs());
}

TEST(HostsOfTasks, WorkersFillSlotsAndServersGoRound) {
  std::vector<Host> hosts(2);
  hosts[0].name = "a";
  hosts[0].slots = 2;
  hosts[1].name = "b";
  hosts[1].slots = 4;
  std::string names;
  for (const Host& host : hosts_of_tasks(hosts, 3, 3)) {
    EXPECT_EQ(host.slots, 1);
    names += host.name;
  }
  EXPECT_EQ(names, "aababa") << "aab: workers; aba: servers";
  EXPECT_THROW(hosts_of_tasks(hosts, 7, 1), InputError);
}

} // namespace
} // namespace trireme::launch
