// All targets in one program, for compilers without libFuzzer: every input of the corpus, then so many deterministic
// mutations of them. Behind the target's name it takes libFuzzer's arguments as far as it has them:
//
//   fuzz_test TARGET [-runs=N] [-seed=S] [-max_len=BYTES] FOLDER-OR-FILE...
//
// It sees no coverage; it repeats exactly. An input that is a finding is written to crash-NAME in the working
// directory.
#include "fuzz.h"
#include "mutate.h"

#include <tests/support/sanitized.h>
#include <trireme/base/file.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

// Where it stands alone a target is called LLVMFuzzerTestOneInput; here CMakeLists.txt has renamed each.
#define FUZZ_TARGET(name) extern "C" int fuzz_##name(const uint8_t* data, size_t size);
#include "targets.inc"
#undef FUZZ_TARGET

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

namespace fs = std::filesystem;

/// One input may take this long; more is a hang.
constexpr unsigned kPatienceSeconds = 120;
/// What all inputs together may map. Sanitizers reserve terabytes of addresses.
constexpr rlim_t kMostMemory = rlim_t{8} << 30;

struct Target {
  std::string name;
  int (*execute)(const uint8_t* data, size_t size);
};

const Target kTargets[] = {
#define FUZZ_TARGET(name) {#name, fuzz_##name},
#include "targets.inc"
#undef FUZZ_TARGET
};

std::string current;
char crash_file[256];

/// Async-signal-safe.
void save_current() {
  const int file = ::open(crash_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  [[maybe_unused]] ssize_t written = ::write(file, current.data(), current.size());
  ::close(file);
  const char words[] = "fuzz: the input is in ";
  written = ::write(STDERR_FILENO, words, sizeof(words) - 1);
  written = ::write(STDERR_FILENO, crash_file, std::strlen(crash_file));
  written = ::write(STDERR_FILENO, "\n", 1);
}

void on_signal(int number) {
  save_current();
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void install_handlers() {
  static char stack[64 << 10];
  stack_t own{};
  own.ss_sp = stack;
  own.ss_size = sizeof(stack);
  ::sigaltstack(&own, nullptr);
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESETHAND;
  for (const int number : {SIGABRT, SIGALRM, SIGXCPU}) {
    ::sigaction(number, &action, nullptr);
  }
  if (!trireme::test::kSanitized) { // a sanitizer has its own, which say more
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
      ::sigaction(number, &action, nullptr);
    }
  }
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(save_current);
  }
}

void execute(const Target& target, std::string input) {
  current = std::move(input);
  // An exact copy on the heap: a sanitizer sees a read behind its end.
  const std::vector<uint8_t> bytes(current.begin(), current.end());
  ::alarm(kPatienceSeconds);
  try {
    target.execute(bytes.data(), bytes.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: neither a result nor an InputError: %s\n", error.what());
    save_current();
    std::exit(1);
  }
  ::alarm(0);
}

uint64_t number_of(const std::string& argument, size_t at) {
  uint64_t value = 0;
  const char* end = argument.data() + argument.size();
  if (std::from_chars(argument.data() + at, end, value).ptr != end || at == argument.size()) {
    std::fprintf(stderr, "fuzz: %s is no number\n", argument.c_str());
    std::exit(2);
  }
  return value;
}

} // namespace

int main(int argc, char** argv) {
  const std::string name = argc < 2 ? "" : argv[1];
  const auto* target =
      std::find_if(std::begin(kTargets), std::end(kTargets), [&](const Target& one) { return one.name == name; });
  if (target == std::end(kTargets)) {
    std::fprintf(stderr, "usage: fuzz_test TARGET [-runs=N] [-seed=S] [-max_len=BYTES] FOLDER-OR-FILE...\ntargets:");
    for (const Target& one : kTargets) {
      std::fprintf(stderr, " %s", one.name.c_str());
    }
    std::fprintf(stderr, "\n");
    return 2;
  }
  uint64_t runs = 0;
  uint64_t seed = 1;
  size_t most_bytes = 4096;
  std::vector<std::string> corpus;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("-runs=", 0) == 0) {
      runs = number_of(argument, 6);
    } else if (argument.rfind("-seed=", 0) == 0) {
      seed = number_of(argument, 6);
    } else if (argument.rfind("-max_len=", 0) == 0) {
      most_bytes = number_of(argument, 9);
    } else if (argument.front() == '-' || !fs::exists(argument)) {
      std::fprintf(stderr, "fuzz: what is %s?\n", argument.c_str());
      return 2;
    } else if (fs::is_directory(argument)) {
      std::vector<fs::path> files;
      for (const auto& entry : fs::directory_iterator(argument)) {
        files.push_back(entry.path());
      }
      std::sort(files.begin(), files.end());
      for (const fs::path& file : files) {
        corpus.push_back(trireme::read_file(file));
      }
    } else {
      corpus.push_back(trireme::read_file(argument));
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz: the corpus is empty\n");
    return 2;
  }
  std::snprintf(crash_file, sizeof(crash_file), "crash-%s", name.c_str());
  install_handlers();
  if (!trireme::test::kSanitized) {
    const rlimit limit{kMostMemory, kMostMemory};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  for (const std::string& input : corpus) {
    execute(*target, input);
  }
  trireme::fuzz::Mutator mutator(corpus, seed, most_bytes);
  for (uint64_t run = 0; run < runs; ++run) {
    execute(*target, mutator.next());
  }
  std::printf("Done %llu runs and %zu inputs of the corpus\n", static_cast<unsigned long long>(runs), corpus.size());
  return 0;
}
