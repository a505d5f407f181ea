#pragma once

#include <trireme/base/error.h>
#include <trireme/store/client.h>
#include <trireme/store/membership.h>
#include <trireme/store/secret.h>
#include <trireme/store/sockets.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::store {

struct MeetingOptions {
  /// The job's store, of a process that outlives all ranks.
  Endpoint store;
  Secret secret;
  std::string job;
  /// From 1 on: of the trainings in this store, which a program runs one after the other.
  int training = 1;
  /// A round has at least so many ranks. Each waits for more until `patience` is over.
  int min_ranks = 1;
  /// And at most so many; others wait until one of them is lost. 0: any number.
  int max_ranks = 0;
  /// Of those that come for the same first round, the lower place has the lower rank.
  int place = 0;
  /// The first round, and one after the loss of all members, waits so long for max_ranks, and then begins with
  /// min_ranks. So long a process waits for the store.
  std::chrono::milliseconds start_patience{30'000};
  /// A round goes on without a member of the last one that lives and does not come within so long after another member.
  std::chrono::milliseconds late_patience{120'000};
  /// What Meeting::state() said before this process lost its connection, or all lost the store: it goes on as one that
  /// trains, and who has no state begins nothing while it lives. "": it has none.
  std::string state = {};
  /// For min_ranks, and for the one that saves at the end. A process that waits for members that still train waits as
  /// long as they live.
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

/// The training has been finished while this process waited. It has nothing to do, and ends with status 0.
class FinishedError : public Error {
 public:
  explicit FinishedError(int64_t round);
  int exit_code() const noexcept override {
    return 0;
  }
};

/// Where processes that come and go agree on who takes part in the next round.
///
/// Each has a number, the next one for each process that comes, and a last will, by which the store knows that it is
/// gone. While members of the last round live, only they propose the next round: when all of them have come, or
/// `late_patience` after their own coming. So a process that waits never begins by itself while others train. When all
/// members are gone, those who wait begin again. The store takes the first proposal (membership.h has the rules).
/// Ranks: members keep their order; new ones come behind, in the order of the first rounds that they came for, then of
/// places and numbers. So rank 0 is one that has been there for longest, and a new process is not rank 0 while a member
/// is there. Cost: about 20 small requests a second while it waits, one for changed(); no thread. Errors: ConnectError,
/// LostError (both PeerError) where the store is not there or ends.
class Meeting {
 public:
  explicit Meeting(MeetingOptions options);
  /// Over a connection that is there already, instead of one to options.store.
  Meeting(MeetingOptions options, std::shared_ptr<Client> client);
  /// The others go on without this process.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Says that this process is there, before it comes for its first round.
  void announce();
  /// The last round, if this process's state is that of the training as far as it knows; else "".
  std::string state() const {
    return last_.has_member(id_) || continues_ ? last_.text() : "";
  }
  /// After announce() with MeetingOptions::state: whether nobody has gone on without this process.
  bool is_counted() const {
    return continues_ || last_.number == 0;
  }
  /// Waits for the others, and begins the next round. A process that is not in it comes again as a new one and waits
  /// on. Errors: PeerError where fewer than min_ranks came in time; FinishedError where a member has said finish().
  Round next_round();
  /// Whether another round would have other members: one of this round's is gone, or another process has come for which
  /// there is room, or the others have gone on without this process.
  bool changed();
  /// What the round was for has been done, or has failed here: waits until all members know how it ended, and returns
  /// the same on all of them. True: all have said true. False: one of them has said false, is gone, or has said nothing
  /// within late_patience; then none may keep what it has done. Once a round. True implies settle().
  bool conclude(bool well);
  /// This process has the training's state, from other members of this round. Until then a member that is new neither
  /// proposes a round nor is rank 0 while one with the state lives.
  void settle();
  /// Whether the others have gone on without this process, or have finished: what it has is old, and it must write no
  /// results.
  bool left_behind();
  /// The training is over and its results are safe: who waits, or comes later, gets FinishedError. False: the others
  /// have gone on without this process, and finish by themselves.
  bool finish();
  /// For a member that has nothing left to do: waits until another one says finish(). False: `first` (a rank) is gone,
  /// or has not finished within `patience`, and so are all ranks before this one: it is this one's turn to save the
  /// results.
  bool wait_for_finish(int first);

 private:
  /// Says that this process waits for the round after the last one.
  void come();
  Decision newest_decision();
  View look();
  void propose(const View& view);
  /// This process's place in a round that was decided; nullopt: it has none and waits for the next one.
  std::optional<Round> take(const Decision& decision);
  void say_what_it_waits_for(const View& view) const;
  std::string key(const char* what) const;
  std::string key(const char* what, int64_t number) const;
  int64_t next() const {
    return last_.number + 1;
  }
  bool has_room() const {
    return options_.max_ranks == 0 || std::ssize(last_.members) < options_.max_ranks;
  }

  const MeetingOptions options_;
  const std::string prefix_; // of all keys
  std::shared_ptr<Client> client_;
  int64_t id_ = 0;         // 0: not entered yet
  bool continues_ = false; // under a number that is not among the members of the last round
  Decision last_;          // that this process knows; in a round, that of the round
  int64_t changes_ = 0;    // seen by this round
};

} // namespace trireme::store
