#include <trireme/data/fetch_command.h>

#include <trireme/base/descriptor.h>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

extern char** environ;

namespace trireme::data {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      throw Error("data", concat("cannot make a pipe: ", std::strerror(errno)));
    }
    read = Descriptor(ends[0]);
    write = Descriptor(ends[1]);
  }
  Descriptor read;
  Descriptor write;
};

struct SpawnActions {
  SpawnActions() { posix_spawn_file_actions_init(&actions); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  posix_spawn_file_actions_t actions;
};

// Reads both at once: a program that fills one pipe while we wait for the other would hang.
void drain(Descriptor& first, std::string& first_text, Descriptor& second, std::string& second_text) {
  std::array<pollfd, 2> waiting{pollfd{first.get(), POLLIN, 0}, pollfd{second.get(), POLLIN, 0}};
  const std::array<std::string*, 2> texts{&first_text, &second_text};
  std::array<char, 16384> buffer;
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) {
      return;
    }
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) {
        continue;
      }
      const ssize_t got = ::read(waiting[i].fd, buffer.data(), buffer.size());
      if (got > 0) {
        texts[i]->append(buffer.data(), static_cast<size_t>(got));
      } else if (got == 0 || errno != EINTR) {
        waiting[i].fd = -1; // poll() ignores negative descriptors
      }
    }
  }
}

} // namespace

CommandResult run_command(const std::vector<std::string>& arguments, const std::filesystem::path& folder) {
  Pipe out;
  Pipe err;
  SpawnActions spawn;
  posix_spawn_file_actions_addopen(&spawn.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&spawn.actions, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, err.write.get(), STDERR_FILENO);
  posix_spawn_file_actions_addchdir_np(&spawn.actions, folder.c_str());

  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  pid_t child = 0;
  const int code = ::posix_spawnp(&child, argv[0], &spawn.actions, nullptr, argv.data(), environ);
  if (code == ENOENT || code == EACCES) {
    if (!std::filesystem::is_directory(folder)) {
      throw Error("data", concat("the folder ", folder.string(), " to run ", arguments[0], " in does not exist"));
    }
    throw CommandMissing("data", concat("the program ", arguments[0], " is not installed"),
                         "Install it, or add its folder to PATH.");
  }
  if (code != 0) {
    throw Error("data", concat("cannot start ", arguments[0], ": ", std::strerror(code)));
  }
  out.write.close();
  err.write.close();

  CommandResult result;
  drain(out.read, result.out, err.read, result.err);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      throw Error("data", concat("cannot wait for ", arguments[0], ": ", std::strerror(errno)));
    }
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

} // namespace trireme::data
