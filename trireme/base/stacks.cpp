#include <trireme/base/stacks.h>

#include <trireme/base/error.h>

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

namespace trireme {
namespace {

constexpr int kFrames = 96;
constexpr size_t kMostThreads = 64;
constexpr size_t kLongName = 200;
/// The handler and the kernel's frame that calls it.
constexpr int kHandlerFrames = 2;

/// Time for a thread to start running the handler; once it has begun, it may have to load pages.
constexpr std::chrono::milliseconds kUntilItBegins{100};
constexpr std::chrono::milliseconds kUntilItIsTaken{500};

enum Stage : int64_t { idle, asked, taking, taken };

/// A request to one thread, which only fills in the frames.
struct Request {
  /// The thread's id and the stage: a late signal for a thread that was given up cannot answer the next request.
  std::atomic<int64_t> state{idle};
  int depth = 0;
  void* frames[kFrames] = {};

  static int64_t state_of(int64_t thread, Stage stage) { return thread * 4 + stage; }
};

constinit Request first_request;
/// The current request. A thread that hangs while it fills its frames keeps them for good.
constinit std::atomic<Request*> request{&first_request};
constinit std::atomic<bool> prepared{false};

void on_signal(int) {
  const int before = errno;
  const auto self = static_cast<int64_t>(syscall(SYS_gettid));
  Request* const mine = request.load();
  int64_t expected = Request::state_of(self, asked);
  if (mine->state.compare_exchange_strong(expected, Request::state_of(self, taking))) {
    mine->depth = backtrace(mine->frames, kFrames);
    mine->state.store(Request::state_of(self, taken));
  }
  errno = before;
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// The letter of /proc/.../stat after the last ')': names may contain any character. 0: no such process.
char state_letter(const std::string& folder) {
  const std::string line = first_line(folder + "/stat");
  const size_t end = line.rfind(')');
  return end == std::string::npos || end + 2 >= line.size() ? '\0' : line[end + 2];
}

const char* thread_state(char letter) {
  switch (letter) {
    case 'R':
      return "runs";
    case 'S':
      return "sleeps";
    case 'D':
      return "waits for a disk or driver";
    case 'T':
    case 't':
      return "stopped";
    case 'Z':
    case 'X':
    case '\0':
      return kProcessEnded;
    default:
      return "";
  }
}

std::string symbol(void* address, bool interrupted) {
  // A return address may be the first of the next function; the call is the instruction before it.
  auto* inside = static_cast<char*>(address) - (interrupted ? 0 : 1);
  Dl_info info{};
  if (dladdr(inside, &info) == 0) {
    return concat(address);
  }
  char text[32];
  if (info.dli_sname == nullptr) {
    std::snprintf(text, sizeof text, "+0x%zx", static_cast<size_t>(inside - static_cast<char*>(info.dli_fbase)));
    return std::filesystem::path(info.dli_fname == nullptr ? "?" : info.dli_fname).filename().string() + text;
  }
  int status = 0;
  char* plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? plain : info.dli_sname;
  std::free(plain);
  if (name.size() > kLongName) {
    name = name.substr(0, kLongName) + "...";
  }
  std::snprintf(text, sizeof text, " + 0x%zx",
                static_cast<size_t>(static_cast<char*>(address) - static_cast<char*>(info.dli_saddr)));
  return name + text;
}

std::vector<std::string> symbols(void* const* frames, int depth) {
  std::vector<std::string> names;
  for (int frame = 0; frame < depth; ++frame) {
    names.push_back(symbol(frames[frame], frame == 0));
  }
  return names;
}

/// Waits for the interrupted thread. False if it does not run or hangs in its own stack walk.
bool wait_until_taken(Request& asked_for, int64_t thread) {
  const auto start = std::chrono::steady_clock::now();
  while (asked_for.state.load() != Request::state_of(thread, taken)) {
    const auto waited = std::chrono::steady_clock::now() - start;
    int64_t expected = Request::state_of(thread, asked);
    if (waited >= kUntilItBegins && asked_for.state.compare_exchange_strong(expected, idle)) {
      return false;
    }
    if (waited >= kUntilItIsTaken && asked_for.state.load() == Request::state_of(thread, taking)) {
      request.store(new Request);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

} // namespace

void prepare_stack_capture() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (prepared) {
    return;
  }
  void* frame = nullptr;
  backtrace(&frame, 1); // the first call loads a library and allocates
  struct sigaction current{};
  if (sigaction(SIGURG, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) {
    return;
  }
  struct sigaction ours{};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  prepared = sigaction(SIGURG, &ours, nullptr) == 0;
}

ThreadStack capture_stack(int64_t thread) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::string folder = "/proc/self/task/" + std::to_string(thread);
  ThreadStack stack{thread,
                    thread == static_cast<int64_t>(getpid()),
                    first_line(folder + "/comm"),
                    thread_state(state_letter(folder)),
                    {}};
  if (thread == static_cast<int64_t>(syscall(SYS_gettid))) {
    void* frames[kFrames];
    stack.frames = symbols(frames + 1, backtrace(frames, kFrames) - 1);
    return stack;
  }
  if (!prepared) {
    return stack;
  }
  Request& mine = *request.load();
  mine.state.store(Request::state_of(thread, asked));
  if (syscall(SYS_tgkill, getpid(), thread, SIGURG) == 0 && wait_until_taken(mine, thread)) {
    stack.frames = symbols(mine.frames + kHandlerFrames, std::max(0, mine.depth - kHandlerFrames));
  }
  return stack;
}

std::vector<ThreadStack> capture_stacks() {
  std::vector<int64_t> threads = {static_cast<int64_t>(getpid())};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const int64_t thread = std::strtoll(entry.path().filename().c_str(), nullptr, 10);
    if (thread != threads.front() && threads.size() < kMostThreads) {
      threads.push_back(thread);
    }
  }
  std::vector<ThreadStack> stacks;
  for (const int64_t thread : threads) {
    stacks.push_back(capture_stack(thread));
  }
  return stacks;
}

std::string process_state(int64_t process) {
  if (process <= 0) {
    return "";
  }
  switch (state_letter("/proc/" + std::to_string(process))) {
    case '\0':
    case 'Z':
    case 'X':
      return kProcessEnded;
    case 'T':
      return "is stopped (state T: SIGSTOP, or Ctrl-Z)";
    case 't':
      return "is stopped by a debugger";
    case 'D':
      return "waits for a disk or driver (state D)";
    case 'R':
      return "runs";
    case 'S':
      return "sleeps";
    default:
      return "";
  }
}

std::string process_place() {
  std::error_code error;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", error);
  return first_line("/proc/sys/kernel/random/boot_id") + "/" + space.string();
}

} // namespace trireme
