#pragma once

#include <trireme/comm/shm/members.h>

#include <ATen/core/Tensor.h>

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace trireme::comm::shm {

/// A send or recv of this rank.
struct Parcel {
  at::Tensor tensor;
  int peer = 0;
  int64_t tag = 0;
  uint64_t bytes = 0;
  at::ScalarType type = at::kByte;
  bool done = false;
  /// Error of the received message, "" for none.
  std::string error;

  // For a send: the word that the receiver sets, followed by a copy of the tensor if the sender made one.
  std::byte* block = nullptr;
  uint64_t data = 0;
  bool eager = false;
};

/// The messages of one group on this rank.
///
/// A letter in the pair's mailbox gives the message's offset in the sender's arena; the receiver copies it from there.
/// The sender copies first up to 16 KiB, and from memory outside the arena. A small send is done once its letter is in
/// the mailbox, a large one when the receiver has it. Receivers keep letters without a receive, so a sender may be any
/// number of messages ahead. Not thread-safe: the caller holds the progress lock.
class Messages {
 public:
  explicit Messages(Members& members)
      : members_(members), outgoing_(members.size), numbers_(members.size), letters_(members.size) {}

  void send(const std::shared_ptr<Parcel>& parcel);
  void recv(const std::shared_ptr<Parcel>& parcel);
  /// Empties the mailboxes, also of letters without a receive, so that no sender waits for room.
  void fetch();
  /// Does all pending work; returns whether there was any.
  bool progress();
  bool pending() const { return waiting_sends_ != 0 || !sent_.empty() || !expected_.empty(); }
  /// A send or receive is unfinished on either side; small messages in transit do not count.
  bool unfinished() const;

 private:
  struct Arrived {
    int64_t tag;
    uint64_t bytes;
    at::ScalarType type;
    uint64_t data;
    uint64_t taken;
  };

  bool push(int to);
  bool collect_taken();
  bool deliver();
  bool look(int from);
  bool take(Parcel& parcel);

  Members& members_;
  /// Sends whose letters do not fit into the mailbox yet, by receiver.
  std::vector<std::deque<std::shared_ptr<Parcel>>> outgoing_;
  size_t waiting_sends_ = 0;
  /// Number of the last letter to each receiver.
  std::vector<uint64_t> numbers_;
  /// In a mailbox, not taken yet.
  std::list<std::shared_ptr<Parcel>> sent_;
  std::list<std::shared_ptr<Parcel>> expected_;
  /// Letters read without a receive, by sender.
  std::vector<std::deque<Arrived>> letters_;
};

} // namespace trireme::comm::shm
