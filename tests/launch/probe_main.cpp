// A rank for the launcher's tests. Its arguments are steps, done in order: "1:exit=3" is for rank 1 only, "*:pid" for
// all, "s0:" for a server and "w:" for all workers.
//   pid          leaves its pid in $PROBE_DIR
//   out=TEXT     err=TEXT      writes TEXT, no line end added
//   lines=N      writes N numbered lines to stderr
//   env=NAME     fds           writes NAME=value, its open descriptors
//   sleep=MS     exit=CODE     kill=SIGNAL NUMBER (itself)
//   stubborn     ignores SIGTERM and SIGINT from here on
//   answer=NUMBER              from here on writes "got NUMBER" when that signal comes, and ends with 0 unless it is
//   SIGUSR1 finish=NUMBER              the same, and ends with 0 in any case child        daemon        starts a
//   process that sleeps: in its group; in a session of its own with no parent await=FILE                 until
//   $PROBE_DIR/FILE exists; % in it stands for the number of restarts read         writes "read: " and what stdin has
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The rank; of a task "w0" or "s0".
std::string who_am_i() {
  for (const auto& [kind, name] : {std::pair("w", "TRIREME_WORKER"), std::pair("s", "TRIREME_SERVER")}) {
    if (const std::string place = variable(name); !place.empty()) {
      return kind + place.substr(0, place.find('/'));
    }
  }
  return variable("RANK");
}

void put(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote <= 0) {
      ::_exit(99);
    }
    done += static_cast<size_t>(wrote);
  }
}

std::string in_probe_dir(const std::string& name) {
  return variable("PROBE_DIR") + "/" + name;
}

void leave_pid(const std::string& kind) {
  const std::string name =
      in_probe_dir("pid." + kind + "." + who_am_i() + "." + variable("TORCHELASTIC_RESTART_COUNT"));
  std::ofstream(name + ".part") << ::getpid() << "\n";
  std::rename((name + ".part").c_str(), name.c_str());
}

void on_signal(int number) {
  put(1, "got " + std::to_string(number) + "\n");
  if (number != SIGUSR1) {
    ::_exit(0);
  }
}

void on_last_signal(int number) {
  put(1, "got " + std::to_string(number) + "\n");
  ::_exit(0);
}

void sleep_long() {
  for (int second = 0; second < 60; ++second) {
    ::sleep(1);
  }
  ::_exit(0);
}

void start_process(bool daemon) {
  if (::fork() == 0) {
    if (daemon) {
      ::setsid();
      if (::fork() != 0) {
        ::_exit(0);
      }
    }
    leave_pid(daemon ? "daemon" : "child");
    sleep_long();
  }
  const std::string name = in_probe_dir(std::string("pid.") + (daemon ? "daemon" : "child") + "." + who_am_i() + "." +
                                        variable("TORCHELASTIC_RESTART_COUNT"));
  while (::access(name.c_str(), F_OK) != 0) {
    ::usleep(1000);
  }
}

void list_descriptors() {
  std::vector<int> open;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(folder)) {
      open.push_back(fd);
    }
  }
  ::closedir(folder);
  std::sort(open.begin(), open.end());
  std::string line = "fds";
  for (const int fd : open) {
    line += ' ';
    line += std::to_string(fd);
  }
  put(1, line + "\n");
}

void do_step(const std::string& verb, const std::string& argument) {
  const int number = std::atoi(argument.c_str());
  if (verb == "pid") {
    leave_pid("rank");
  } else if (verb == "out" || verb == "err") {
    put(verb == "out" ? 1 : 2, argument);
  } else if (verb == "lines") {
    for (int line = 1; line <= number; ++line) {
      put(2, "line " + std::to_string(line) + "\n");
    }
  } else if (verb == "env") {
    const char* const value = std::getenv(argument.c_str());
    put(1, argument + (value == nullptr ? " is not set" : std::string("=") + value) + "\n");
  } else if (verb == "fds") {
    list_descriptors();
  } else if (verb == "sleep") {
    ::usleep(static_cast<useconds_t>(number) * 1000);
  } else if (verb == "exit") {
    ::_exit(number);
  } else if (verb == "kill") {
    ::signal(number, SIG_DFL); // AddressSanitizer's handler would end with an exit code
    ::raise(number);
  } else if (verb == "stubborn") {
    ::signal(SIGTERM, SIG_IGN);
    ::signal(SIGINT, SIG_IGN);
  } else if (verb == "answer") {
    ::signal(number, on_signal);
  } else if (verb == "finish") {
    ::signal(number, on_last_signal);
  } else if (verb == "child" || verb == "daemon") {
    start_process(verb == "daemon");
  } else if (verb == "await") {
    std::string name = argument;
    if (const size_t mark = name.find('%'); mark != std::string::npos) {
      name.replace(mark, 1, variable("TORCHELASTIC_RESTART_COUNT"));
    }
    while (::access(in_probe_dir(name).c_str(), F_OK) != 0) {
      ::usleep(1000);
    }
  } else if (verb == "read") {
    char buffer[256];
    const ssize_t got = ::read(0, buffer, sizeof(buffer));
    put(1, "read: " + std::string(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0))) + "\n");
  } else {
    put(2, "unknown step " + verb + "\n");
    ::_exit(98);
  }
}

} // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string step = argv[i];
    const size_t colon = step.find(':');
    const size_t equals = step.find('=', colon);
    const std::string who = step.substr(0, colon);
    if (who == "*" || who == who_am_i() || (who.size() == 1 && who_am_i().starts_with(who))) {
      do_step(step.substr(colon + 1, equals == std::string::npos ? equals : equals - colon - 1),
              equals == std::string::npos ? "" : step.substr(equals + 1));
    }
  }
}
