#pragma once

#include <trireme/comm/shm/members.h>

#include <cstddef>
#include <mutex>
#include <vector>

namespace trireme::comm::shm {

/// The control blocks in this process's arena, one per group whose rank 0 it is.
///
/// A block is released when every member has left its group or has ended: until then a member may still read it.
/// Checked whenever a block is created or given up. Thread-safe.
class ControlBlocks {
 public:
  static ControlBlocks& process();

  /// A block of zeros for a group of `size`. Errors: Error when the arena is full.
  std::byte* make(int size);
  /// Rank 0 of the group does not need its block any more.
  void give_up(const Members& members);
  /// Releases what can be released.
  void sweep();

 private:
  void sweep_locked();

  std::mutex mutex_;
  std::vector<Members> given_up_;
};

/// Leaves the group on destruction. Declare it after `members`, before all users of the control block.
class Leaving {
 public:
  explicit Leaving(const Members& members) : members_(members) {}
  ~Leaving() {
    members_.control.left(members_.rank).store(1, std::memory_order_release);
    if (members_.rank == 0) {
      ControlBlocks::process().give_up(members_);
    }
  }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

 private:
  const Members& members_;
};

} // namespace trireme::comm::shm
