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
  /// The job's store; its process must outlive all ranks.
  Endpoint store;
  Secret secret;
  std::string job;
  /// Number of the training in this store, from 1 on: a program may run several in sequence.
  int training = 1;
  /// Least number of ranks of a round. Each waits for more until `patience` is over.
  int min_ranks = 1;
  /// Largest number of ranks of a round; others wait until a rank is lost. 0: any number.
  int max_ranks = 0;
  /// Orders ranks that join in the same first round: a lower place has a lower rank.
  int place = 0;
  /// Time for which the first round, and a round after the loss of all members, waits for max_ranks before it begins
  /// with min_ranks. Also the time to wait for the store.
  std::chrono::milliseconds start_patience{30'000};
  /// A round begins without a living member of the previous one that has not joined this long after another member.
  std::chrono::milliseconds late_patience{120'000};
  /// The last Meeting::state() before this process lost its connection, or the store was lost. The process continues as
  /// a trained one, and processes without state propose no round while it lives. "": none.
  std::string state = {};
  /// Time to wait for min_ranks, and for the rank that saves at the end. Members that still train are waited for as
  /// long as they live.
  std::chrono::milliseconds patience{600'000};
};

/// The processes that train in one round: until one is lost or another one joins.
struct Round {
  int64_t number = 0; // from 1 on
  int rank = 0;
  int size = 1;
  /// By rank: the number of its process, which is never reused, and its MeetingOptions::place.
  std::vector<int64_t> members = {};
  std::vector<int> places = {};
};

/// The training finished while this process waited. It has nothing to do, and ends with status 0.
class FinishedError : public Error {
 public:
  explicit FinishedError(int64_t round);
  int exit_code() const noexcept override { return 0; }
};

/// Rendezvous of changing processes: agrees on the members of each round.
///
/// Each process has a number and a last will, from which the store knows that it has ended. While members of the last
/// round live, only they propose the next one: once all of them have joined, or `late_patience` after they joined
/// themselves. A waiting process thus never starts a round while others train. When all members are gone, waiting
/// processes start again. The store accepts the first proposal (membership.h has the rules).
///
/// Ranks: members keep their order. Joining processes follow, ordered by the first round that they waited for, then by
/// place and number. So rank 0 is among the longest members, and a joining process is never rank 0 while a member is
/// present. Cost: about 20 small requests per second while waiting, one for changed(); no thread. Errors: ConnectError,
/// LostError (both PeerError) if the store cannot be reached or ends.
class Meeting {
 public:
  explicit Meeting(MeetingOptions options);
  /// Uses an existing connection instead of one to options.store.
  Meeting(MeetingOptions options, std::shared_ptr<Client> client);
  /// The other processes go on without this one.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Registers this process before it joins its first round.
  void announce();
  /// The last round, if this process has the training's state as far as it knows; else "".
  std::string state() const { return last_.has_member(id_) || continues_ ? last_.text() : ""; }
  /// After announce() with MeetingOptions::state: whether no round has begun without this process.
  bool is_counted() const { return continues_ || last_.number == 0; }
  /// Joins, waits for the others, and begins the next round. A process that is not in it joins again as a new one and
  /// keeps waiting. Errors: PeerError if fewer than min_ranks joined in time; FinishedError if a member has called
  /// finish().
  Round next_round();
  /// Whether the next round would have other members: one is gone, another process waits and there is room, or a round
  /// has begun without this process.
  bool changed();
  /// Reports whether this process succeeded in the round's work, waits until all members have reported, and returns the
  /// same result on all of them. True: all reported true. False: one reported false, is gone, or reported nothing
  /// within late_patience; then none may keep its results. Call it once per round. True implies settle().
  bool conclude(bool well);
  /// This process has received the training's state from other members of this round. Until then a new member neither
  /// proposes a round nor is rank 0 while one with the state lives.
  void settle();
  /// Whether a round has begun without this process, or the training has finished: its state is old, and it must not
  /// write results.
  bool left_behind();
  /// The training has ended and its results are saved: waiting and later processes get FinishedError. False: a round
  /// has begun without this process, and the others will finish.
  bool finish();
  /// For a member with nothing left to do: waits until another one calls finish(). False: this process must save the
  /// results, because rank `first` is gone or has not finished within `patience`, and all ranks before this one are
  /// gone.
  bool wait_for_finish(int first);

 private:
  /// Waits for the round after the last one.
  void come();
  Decision newest_decision();
  View look();
  void propose(const View& view);
  /// This process's place in a decided round; nullopt: it has none and waits for the next one.
  std::optional<Round> take(const Decision& decision);
  void say_what_it_waits_for(const View& view) const;
  std::string key(const char* what) const;
  std::string key(const char* what, int64_t number) const;
  int64_t next() const { return last_.number + 1; }
  bool has_room() const { return options_.max_ranks == 0 || std::ssize(last_.members) < options_.max_ranks; }

  const MeetingOptions options_;
  const std::string prefix_; // of all keys
  std::shared_ptr<Client> client_;
  int64_t id_ = 0;         // 0: not registered yet
  bool continues_ = false; // under a number that is not a member of the last round
  Decision last_;          // the last known decision; in a round, the round's
  int64_t changes_ = 0;    // seen by this round
};

} // namespace trireme::store
