#pragma once

#include <trireme/extensions/horovod/request.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace trireme::horovod {

/// A name that all ranks have requested, or whose requests disagree.
struct Response {
  std::string name;
  /// Each rank's request; none from ranks that have joined.
  std::vector<std::optional<Request>> of_rank;
  /// Empty: to be carried out.
  std::string error;

  /// The request of the first rank that has one.
  const Request& any() const;
};

/// Determines which operations all ranks have requested, and their order.
///
/// Every rank has one and adds the same requests in the same order, so all reach the same result without a coordinator.
/// Ranks may request names in different orders. A rank that has joined takes part in allreduce and barrier from then
/// on, with zeros.
class Negotiation {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Negotiation(int ranks);

  /// Adds a request of a rank.
  void add(int rank, Request request, Clock::time_point now = Clock::now());
  /// Removes and returns what is ready, in the order of the requests. When all ranks have joined, the last response is
  /// "join", its root is the rank that joined last, and no rank counts as joined any more.
  std::vector<Response> take_ready();

  /// One line per name that only some ranks requested `age` ago, with the missing ranks. Reports each name once.
  std::vector<std::string> stalled(std::chrono::duration<double> age, Clock::time_point now = Clock::now());
  /// The age of the oldest waiting name; zero if there is none.
  std::chrono::duration<double> oldest(Clock::time_point now = Clock::now()) const;

 private:
  struct PendingOperation {
    std::vector<std::optional<Request>> of_rank;
    int64_t number; // order of the first requests
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
