#pragma once

#include <trireme/base/clock.h>

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::launch {

using Clock = trireme::Clock;
using Variables = std::vector<std::pair<std::string, std::string>>;

/// Whether the kernel killed a process because memory ran out. perhaps: it killed one process of that control
/// group.
enum class OutOfMemory { no, perhaps, yes };

/// How one rank ended.
struct RankEnd {
  int wait_status = 0;
  pid_t pid = -1;
  /// Its peak memory.
  int64_t peak_rss_bytes = 0;
  OutOfMemory out_of_memory = OutOfMemory::no;
};

/// Receives the events of a place's ranks.
class PlaceEvents {
 public:
  virtual ~PlaceEvents() = default;
  /// Output of the rank on stdout (`stream` 0) or stderr (1).
  virtual void output(int rank, int stream, std::string_view bytes) = 0;
  /// False while the reader of this output is behind: the output stays in the rank's pipe.
  virtual bool wants(int rank, int stream) const = 0;
  /// Called after all output of the rank.
  virtual void ended(int rank, const RankEnd& end) = 0;
  /// A message for the user.
  virtual void say(std::string_view words) = 0;
};

/// Ports of rank 0's host.
struct Ports {
  /// The socket at which the ranks connect; rank 0 inherits it.
  int store = 0;
  /// For the program's own rank 0 (MASTER_PORT): no process listens on it.
  int program = 0;
};

/// One place's part in a start of all ranks.
struct Share {
  int first_rank = 0;
  int local_ranks = 1;
  /// World size of the job.
  int ranks = 1;
  /// Index of this place.
  int node = 0;
  int nodes = 1;
  /// Earlier starts of the job, and the number of restarts allowed.
  int restarts = 0;
  int max_restarts = 0;
  /// Address at which the ranks connect.
  std::string address;
  Ports ports;
  /// Columns of the terminal that shows rank 0's stderr, 0 when none does.
  int terminal_columns = 0;
  /// The program and its arguments.
  std::vector<std::string> command;
  /// For these ranks only, after all other variables.
  Variables variables;
  /// Processes of the job on this host beside these ranks, which share its cores with them.
  int neighbours = 0;
  /// The socket of listen() stays open for later starts: a client that connects while no rank runs waits for the next.
  bool keeps_socket = false;
};

/// The machine that runs ranks: this process's (LocalPlace) or another one (RemotePlace, through an agent that has a
/// LocalPlace).
///
/// connecting --> ready --start()--> running --(no process of the ranks is left)--> ready; lost from any state. No
/// function blocks: the owner polls the descriptors of add_to(), then calls serve(), and advance() at wake() at the
/// latest.
class Place {
 public:
  enum class State { connecting, ready, running, lost };
  virtual ~Place() = default;

  virtual State state() const = 0;
  /// Why the place was lost.
  virtual const std::string& why_lost() const = 0;
  /// Opens, for rank 0, the socket at which `ranks` ranks will connect, on exactly this address and a free port. Also
  /// finds a port for the program; see ports().
  virtual void listen(const std::string& address, int ranks) = 0;
  virtual std::optional<Ports> ports() const = 0;
  /// Errors: InputError and Error, thrown here or, after the program was tried, by advance().
  virtual void start(const Share& share, PlaceEvents& events) = 0;
  /// Sends the signal to the ranks themselves.
  virtual void signal(int number) = 0;
  /// Sends it to their process groups; after the ranks ended, sends SIGTERM to their orphans.
  virtual void stop(int number) = 0;
  /// Sends SIGKILL to all processes, repeatedly, until none is left.
  virtual void kill() = 0;

  virtual void add_to(std::vector<pollfd>& polled) const = 0;
  virtual void serve(const std::vector<pollfd>& polled) = 0;
  virtual void advance() = 0;
  virtual std::optional<Clock::time_point> wake() const = 0;

  /// For a lost place: its ranks may run until then. nullopt: they have ended.
  virtual std::optional<Clock::time_point> leased_until() const { return std::nullopt; }
  /// Ends the process that serves the place; the destructor waits for it.
  virtual void dismiss() {}
};

} // namespace trireme::launch
