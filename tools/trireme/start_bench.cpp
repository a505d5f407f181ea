#include "start_bench.h"

#include "job.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/launcher.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>

namespace trireme::tools {
namespace {

std::string list(const std::vector<int64_t>& numbers) {
  std::vector<std::string> words;
  for (const int64_t number : numbers) {
    words.push_back(std::to_string(number));
  }
  return join(words, ",");
}

std::vector<std::string> rank_command(const BenchCommCommand& command, const std::filesystem::path& rank_program) {
  std::vector<std::string> words = {rank_program.string(),
                                    "bench",
                                    "comm",
                                    "--op",
                                    command.op,
                                    "--bytes",
                                    list(command.bytes),
                                    "--repeats",
                                    std::to_string(command.repeats),
                                    "--backends",
                                    join(command.backends, ","),
                                    "--algorithm",
                                    join(command.algorithms, ",")};
  if (command.json) {
    words.emplace_back("--json");
  }
  return words;
}

/// Runs `words` with these variables set and returns its exit status, 127 when it cannot be started.
int run_program(std::vector<std::string> words, const Variables& variables) {
  std::vector<char*> arguments;
  for (auto& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) {
    throw Error("bench comm", "cannot start another process.");
  }
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (const auto& [name, value] : variables) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    ::execvp(arguments.front(), arguments.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_under_mpi(int64_t ranks, const std::vector<std::string>& program) {
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(ranks)};
  words.insert(words.end(), program.begin(), program.end());
  Variables variables = under_mpirun();
  variables.emplace_back("TRIREME_BACKEND", "mpi");
  const int status = run_program(words, variables);
  if (status == 127) {
    throw InputError("bench comm", "mpirun is not installed, so the backend \"mpi\" cannot be measured.",
                     "Install Open MPI or MPICH, or remove mpi from --backends.");
  }
  return status;
}

} // namespace

int start_bench_comm(const BenchCommCommand& command, const std::filesystem::path& rank_program) {
  if (command.op != "all_reduce" && command.algorithms != std::vector<std::string>{"backend"}) {
    throw InputError("bench comm", concat("--algorithm is for all_reduce, not for ", command.op, "."),
                     "Remove --algorithm.");
  }
  if (!command.json) {
    std::cout << "backend algorithm         ranks       bytes         us     us_min     GB/s  of_limit";
    const bool counts = command.algorithms != std::vector<std::string>{"backend"};
    std::cout << (counts ? "  steps/formula  bytes_sent/formula" : "") << std::endl;
  }
  const std::vector<std::string> program = rank_command(command, rank_program);
  for (const int64_t ranks : command.ranks) {
    for (const std::string& backend : command.backends) {
      int status = 0;
      if (backend == "mpi") {
        status = run_under_mpi(ranks, program);
      } else {
        launch::LaunchOptions options;
        options.ranks = static_cast<int>(ranks);
        options.command = program;
        options.extra_env = {{"TRIREME_BACKEND", backend}};
        status = launch::run(options);
      }
      if (status != 0) {
        return status;
      }
    }
  }
  return 0;
}

} // namespace trireme::tools
