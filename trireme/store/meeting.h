#pragma once

#include <trireme/store/client.h>
#include <trireme/store/secret.h>
#include <trireme/store/sockets.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme::store {

struct MeetingOptions {
  /// The job's store, of a process that outlives all ranks.
  Endpoint store;
  Secret secret;
  std::string job;
  /// A round has at least so many ranks. Each waits for more until `patience` is over.
  int min_ranks = 1;
  /// And at most so many; others wait until one of them is lost. 0: any number.
  int max_ranks = 0;
  /// Of those that come for the same first round, the lower place has the lower rank.
  int place = 0;
  /// The first round waits so long for max_ranks, and then goes on with min_ranks. So long a process waits for the store.
  std::chrono::milliseconds start_patience{30'000};
  /// A round goes on without a process that lives and does not come within so long: it is stopped, or hangs.
  std::chrono::milliseconds late_patience{120'000};
  std::chrono::milliseconds patience{600'000};
};

/// The processes that train together until one of them is lost or another one comes.
struct Round {
  int64_t number = 0; // from 1 on
  int rank = 0;
  int size = 1;
  /// Of each rank its process's number, which another process does not get, and its MeetingOptions::place.
  std::vector<int64_t> members = {};
  std::vector<int> places = {};
};

/// Where processes that come and go agree on who takes part in the next round.
///
/// Each has a number, the next one for each process that comes, and a last will, by which the store knows that it is gone. A round's members are the processes that have come when all that live have; their
/// ranks are in the order of the first rounds that they came for, then of their places and numbers, so rank 0 is one that has been there for longest. Nobody decides alone: whoever sees that all are there
/// proposes, and the store takes the first proposal.
/// Cost: about 20 small requests a second while it waits, one for changed(); no thread.
/// Errors: ConnectError, LostError (both PeerError) where the store is not there or ends.
class Meeting {
 public:
  explicit Meeting(MeetingOptions options);
  /// The others go on without this process.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Waits for the others, and begins the next round. Errors: PeerError where fewer than min_ranks came in time.
  Round next_round();
  /// Whether another round would have other members: one of this round's is gone, or another process has come for which there is room.
  bool changed();
  /// What the round was for has been done, or has failed here: waits until all members know how it ended, and returns the same on all of them. True: all have said true. False: one of them has said false, is
  /// gone, or has said nothing within late_patience; then none may keep what it has done. Once a round.
  bool conclude(bool well);

 private:
  using Clock = std::chrono::steady_clock;
  /// What the store knows of the processes.
  struct View {
    int64_t changes = 0;
    std::set<int64_t> living;
    std::set<int64_t> come; // of the living: for the round that this process waits for, or a later one
  };

  void enter();
  View look();
  /// Whether the round may begin with those who have come.
  bool complete(const View& view, Clock::time_point since) const;
  void propose(const View& view);
  /// This process's place in a round that was decided; nullopt: it has none and waits for the next one.
  std::optional<Round> take(const std::string& decision);

  const MeetingOptions options_;
  std::shared_ptr<Client> client_;
  int64_t id_ = 0; // 0: not entered yet
  int64_t wanted_ = 0; // the round that this process waits for, or is in
  std::set<int64_t> members_; // of this round
  std::set<int64_t> spares_; // that this round has no room for
  int64_t changes_ = 0; // seen by this round
};

} // namespace trireme::store
