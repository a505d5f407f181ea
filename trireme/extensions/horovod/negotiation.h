#pragma once

#include <trireme/extensions/horovod/request.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace trireme::horovod {

/// A name for which all ranks have asked, or whose requests do not fit together.
struct Response {
  std::string name;
  /// What each rank of the group asked for; none of ranks that have joined.
  std::vector<std::optional<Request>> of_rank;
  /// Empty: to be carried out.
  std::string error;

  /// The request of the first rank that has one.
  const Request& any() const;
};

/// Finds out which operations all ranks have asked for, and in which order they are carried out.
///
/// Every rank has one and gives it the same requests in the same order, so all come to the same answers: nobody
/// coordinates. Ranks may ask for names in different orders. A rank that has joined takes part in allreduce and barrier
/// from then on, with nothing to add.
class Negotiation {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Negotiation(int ranks);

  /// Adds a request of a rank.
  void add(int rank, Request request, Clock::time_point now = Clock::now());
  /// Returns what has become ready, in the order of asking, and forgets it. When all ranks have joined, the last
  /// response is "join", and they have not joined any more; its root is the rank that joined last.
  std::vector<Response> take_ready();

  bool has_joined(int rank) const {
    return joined_[static_cast<size_t>(rank)];
  }
  /// Names that some ranks asked for `age` ago, and others have not: a line for each, with the ranks that are missing.
  /// Tells of a name once.
  std::vector<std::string> stalled(std::chrono::duration<double> age, Clock::time_point now = Clock::now());
  /// The age of the oldest name that waits; zero if none does.
  std::chrono::duration<double> oldest(Clock::time_point now = Clock::now()) const;

 private:
  struct PendingOperation {
    std::vector<std::optional<Request>> of_rank;
    int64_t number; // in the order in which names were first asked for
    Clock::time_point since;
    bool told = false;
  };

  bool complete(const PendingOperation& waiting) const;

  std::map<std::string, PendingOperation> waiting_;
  std::vector<bool> joined_;
  int64_t next_number_ = 0;
  int last_joined_ = 0;
};

} // namespace trireme::horovod
