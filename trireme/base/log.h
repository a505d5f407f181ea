#pragma once

#include <trireme/base/error.h>

#include <functional>
#include <string>

namespace trireme::log {

enum class Level { debug, info, warning, error, silent };

/// Lines start with "[rank r] " once the rank is known and the world has more
/// than one, except messages of rank 0 for all ranks. Below `warning`, only rank 0 logs
/// unless TRIREME_LOG_ALL_RANKS=1.
/// TRIREME_LOG=debug|info|warning|error|silent sets the level (default info).
void set_rank(int rank, int world_size);
void set_level(Level level);
Level level();
/// "debug", "info", ...; InputError for anything else.
Level parse_level(const std::string& word);

/// Writes one line to stderr in one write(2), so lines of several ranks never mix.
void write(Level level, const std::string& line);

/// Sends every line, with its line end, to `sink` instead of stderr, so that a live progress line can be
/// cleared around it; nullptr restores stderr. On return no thread is inside the old sink. The sink must not
/// log.
void set_sink(std::function<void(const std::string& line)> sink);

template <typename... Args>
void debug(const Args&... args) {
  if (level() <= Level::debug) {
    write(Level::debug, concat(args...));
  }
}
template <typename... Args>
void info(const Args&... args) {
  write(Level::info, concat(args...));
}
template <typename... Args>
void warning(const Args&... args) {
  write(Level::warning, concat(args...));
}
template <typename... Args>
void error(const Args&... args) {
  write(Level::error, concat(args...));
}

} // namespace trireme::log
