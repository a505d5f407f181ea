#pragma once

#include <trireme/comm/world.h>

#include <chrono>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

namespace trireme::test {

struct RunOptions {
  /// Ranks that still run after this long are killed and reported.
  std::chrono::milliseconds deadline{120'000};
  /// Time-out of the world's operations.
  std::chrono::milliseconds timeout{30'000};
  /// Backend of the world; "": the environment's.
  std::string backend = {};
  /// Ranks believe that they run on this many hosts, evenly, rank 0 and its neighbours on the first.
  int hosts = 1;
};

/// Forks `world_size` ranks that meet on a socket of this process, runs `body` in each
/// and returns one line per rank that did not end well: the text of its exception, its failed
/// expectations, its signal or the deadline. Empty: all is well.
///
/// Expectations inside the body count. The parent must not have started threads: keep
/// torch out of it, apart from tensors too small for a thread pool. Children leave by _exit, so
/// nothing of the parent runs twice.
std::vector<std::string> run_ranks(int world_size, const std::function<void(comm::World&)>& body,
                                   const RunOptions& options = {});

/// The same; every such line is a failure of the test, at the caller's line.
///
///   on_ranks(3, [](comm::World& world) { ... });
void on_ranks(int world_size, const std::function<void(comm::World&)>& body, const RunOptions& options = {},
              std::source_location caller = std::source_location::current());

/// The same without a world: the environment of every rank is set (RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TRIREME_LISTEN_FD) and the body does the rest.
std::vector<std::string> run_processes(int world_size, const std::function<void(int rank)>& body,
                                       const RunOptions& options = {});

} // namespace trireme::test
