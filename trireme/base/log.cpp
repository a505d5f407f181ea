#include <trireme/base/log.h>

#include <trireme/base/env.h>
#include <trireme/base/text.h>

#include <unistd.h>

#include <atomic>
#include <mutex>

namespace trireme::log {
namespace {

std::atomic<int> current_rank{0};
std::atomic<int> current_world_size{1};
std::atomic<int> current_level{-1};

struct Destination {
  std::mutex mutex;
  std::function<void(const std::string&)> sink;
};

Destination& destination() {
  static auto* const leaked = new Destination; // threads may log while statics are destroyed
  return *leaked;
}

// An unknown word counts as yes: the first log call may be where no exception is caught.
bool wants_all_ranks() {
  try {
    return env::flag("TRIREME_LOG_ALL_RANKS");
  } catch (const InputError&) {
    return true;
  }
}

} // namespace

void set_sink(std::function<void(const std::string& line)> sink) {
  const std::lock_guard lock(destination().mutex);
  destination().sink = std::move(sink);
}

Level parse_level(const std::string& word) {
  const std::vector<std::string> names = {"debug", "info", "warning", "error", "silent"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (lower(word) == names[i]) {
      return static_cast<Level>(i);
    }
  }
  throw InputError("log", concat("unknown log level \"", word, '"'), did_you_mean(word, names));
}

void set_rank(int rank, int world_size) {
  current_rank = rank;
  current_world_size = world_size;
}

void set_level(Level level) {
  current_level = static_cast<int>(level);
}

Level level() {
  if (current_level < 0) {
    set_level(Level::info);
    if (const auto word = env::text("TRIREME_LOG")) {
      try {
        set_level(parse_level(*word));
      } catch (const InputError& error) { // the first log call may be where it is not caught
        warning("TRIREME_LOG: ", error.what());
      }
    }
  }
  return static_cast<Level>(current_level.load());
}

void write(Level line_level, const std::string& text) {
  if (line_level < level()) {
    return;
  }
  static const bool all_ranks = wants_all_ranks();
  if (line_level < Level::warning && current_rank != 0 && !all_ranks) {
    return;
  }
  std::string line;
  const bool usual = current_rank == 0 && line_level < Level::warning; // rank 0 logs it for all ranks
  if (current_world_size > 1 && !usual) {
    line = concat("[rank ", current_rank.load(), "] ");
  }
  if (line_level == Level::warning) {
    line += "warning: ";
  } else if (line_level == Level::error) {
    line += "error: ";
  }
  line += clean_utf8(text, "?"); // messages contain names and values from files
  line += '\n';
  {
    const std::lock_guard lock(destination().mutex);
    if (destination().sink) {
      destination().sink(line);
      return;
    }
  }
  // A failed write to stderr cannot be reported.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

} // namespace trireme::log
