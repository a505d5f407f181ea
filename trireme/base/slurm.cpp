#include <trireme/base/slurm.h>

#include <trireme/base/env.h>

#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

namespace trireme {
namespace {

// Steps from this number on are Slurm's own: the batch script, the shell of salloc.
constexpr long long kFirstSpecialStep = 0xffff'fff0;

struct Process {
  std::string name;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
};

std::optional<Process> look_at(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t begin = text.find('(');
  const size_t end = text.rfind(')'); // names may contain any character
  if (begin == std::string::npos || end == std::string::npos) {
    return std::nullopt;
  }
  Process process;
  process.name = text.substr(begin + 1, end - begin - 1);
  std::istringstream fields(text.substr(end + 1));
  std::string state;
  return fields >> state >> process.parent >> process.group >> process.session ? std::optional(process) : std::nullopt;
}

/// The process that traces this one; 0 for none.
pid_t tracer_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;) {
    if (pid_t tracer = 0; word == "TracerPid:" && file >> tracer) {
      return tracer;
    }
  }
  return 0;
}

/// -1 if it is not a number.
long long number(const std::optional<std::string>& text) {
  long long value = -1;
  if (text) {
    std::from_chars(text->data(), text->data() + text->size(), value);
  }
  return value;
}

} // namespace

SlurmPlace slurm_place(const std::function<std::optional<std::string>(const std::string& name)>& lookup,
                       const std::function<bool(pid_t task)>& run_as_task) {
  const auto step = lookup("SLURM_STEP_ID");
  const auto task = lookup("SLURM_PROCID");
  if (!step || !task || !lookup("SLURM_NTASKS")) {
    return SlurmPlace::none;
  }
  if (number(step) >= kFirstSpecialStep) {
    return SlurmPlace::shell;
  }
  if (!lookup("SLURM_PTY_PORT") || number(task) != 0) {
    return SlurmPlace::task;
  }
  const long long pid = number(lookup("SLURM_TASK_PID")); // a task always has it
  return pid > 0 && run_as_task(static_cast<pid_t>(pid)) ? SlurmPlace::task : SlurmPlace::shell;
}

SlurmPlace slurm_place() {
  return slurm_place([](const std::string& name) { return env::text(name.c_str()); }, runs_as_task);
}

bool runs_as_task(pid_t task) {
  const auto of_task = look_at(task);
  if (!of_task) {
    return true;
  }
  pid_t pid = ::getpid();
  while (pid > 1 && pid != task) {
    const auto process = look_at(pid);
    if (!process) {
      return false;
    }
    if (process->parent == task) {
      // timeout makes a process group too, also in a script, and so do debuggers.
      return process->group == of_task->group || process->session != of_task->session || process->name == "timeout" ||
             of_task->name == "lldb" || tracer_of(pid) == task;
    }
    pid = process->parent;
  }
  return pid == task;
}

} // namespace trireme
