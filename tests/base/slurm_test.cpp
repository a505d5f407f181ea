#include <trireme/base/slurm.h>

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>

namespace trireme {
namespace {

using Variables = std::map<std::string, std::string>;

SlurmPlace place(const Variables& variables, bool as_task = true) {
  return slurm_place(
      [&](const std::string& name) {
        return variables.contains(name) ? std::optional(variables.at(name)) : std::nullopt;
      },
      [&](pid_t task) { return as_task && task == 61; });
}

TEST(SlurmTest, StepsHaveTasks) {
  EXPECT_EQ(place({}), SlurmPlace::none);
  EXPECT_EQ(place({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), SlurmPlace::none) << "a batch script";
  EXPECT_EQ(place({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "0"}}, false), SlurmPlace::task);
  EXPECT_EQ(place({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "4294967290"}}), SlurmPlace::shell)
      << "of salloc";
}

TEST(SlurmTest, AStepWithATerminalIsAShellUnlessTheProgramIsItsTask) {
  Variables step = {{"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "8"},
                    {"SLURM_STEP_ID", "3"},
                    {"SLURM_PTY_PORT", "1"},
                    {"SLURM_TASK_PID", "61"}};
  EXPECT_EQ(place(step), SlurmPlace::task);
  EXPECT_EQ(place(step, false), SlurmPlace::shell);
  step.erase("SLURM_TASK_PID");
  EXPECT_EQ(place(step), SlurmPlace::shell);
  step["SLURM_PROCID"] = "1"; // only task 0 has the terminal
  EXPECT_EQ(place(step, false), SlurmPlace::task);
}

/// What a process says that runs below a task: runs_as_task() there.
bool below(const std::function<void()>& before) {
  const pid_t task = ::fork();
  if (task == 0) {
    ::setsid();
    const pid_t self = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
      before();
      const pid_t grandchild = ::fork();
      if (grandchild == 0) {
        ::_exit(runs_as_task(self) ? 1 : 0);
      }
      int status = 0;
      ::waitpid(grandchild, &status, 0);
      ::_exit(WEXITSTATUS(status));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ::_exit(WEXITSTATUS(status));
  }
  int status = 0;
  ::waitpid(task, &status, 0);
  return WEXITSTATUS(status) == 1;
}

TEST(SlurmTest, AShellAtATerminalMakesGroups) {
  EXPECT_TRUE(runs_as_task(::getpid()));
  EXPECT_TRUE(below([] {})) << "as a script starts it";
  EXPECT_FALSE(below([] { ::setpgid(0, 0); }));
  EXPECT_TRUE(below([] { ::setsid(); })) << "no shell does that";
}

TEST(SlurmTest, AProcessElsewhereIsNoTask) {
  const pid_t other = ::fork();
  if (other == 0) {
    ::pause();
  }
  EXPECT_FALSE(runs_as_task(other));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  EXPECT_TRUE(runs_as_task(other)) << "there is none with this number: a container has numbers of its own";
}

// What runs_as_task() says in a program that the task traces, in a process group of its own: as gdb starts it.
TEST(SlurmTest, AProgramUnderADebuggerIsItsTask) {
  const pid_t task = ::fork();
  if (task == 0) {
    ::setsid();
    const pid_t self = ::getpid();
    const pid_t program = ::fork();
    if (program == 0) {
      ::setpgid(0, 0);
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
        ::_exit(2);
      }
      ::_exit(runs_as_task(self) ? 1 : 0);
    }
    int status = 0;
    ::waitpid(program, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
  }
  int status = 0;
  ::waitpid(task, &status, 0);
  if (WEXITSTATUS(status) == 2) {
    GTEST_SKIP() << "no process may trace another one here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

} // namespace
} // namespace trireme
