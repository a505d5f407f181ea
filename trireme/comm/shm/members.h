#pragma once

#include <trireme/comm/shm/arena.h>
#include <trireme/comm/shm/layout.h>

#include <memory>
#include <vector>

namespace trireme::comm::shm {

/// The ranks of one group and their shared memory.
struct Members {
  int rank = 0;
  int size = 1;
  std::vector<std::shared_ptr<PeerArena>> arenas;
  Control control;

  std::byte* at(int member, uint64_t offset) const { return arenas[static_cast<size_t>(member)]->base() + offset; }
  void ring_others() const {
    for (int member = 0; member < size; ++member) {
      if (member != rank) {
        arenas[static_cast<size_t>(member)]->ring();
      }
    }
  }
  /// True if a thread of another rank sleeps at its door.
  bool others_sleep() const {
    for (int member = 0; member < size; ++member) {
      if (member != rank && arenas[static_cast<size_t>(member)]->header().sleepers.load() != 0) {
        return true;
      }
    }
    return false;
  }
  /// True if another rank was last seen on this one's core: it cannot run while this one is awake.
  bool shares_core() const {
    const uint32_t own = arenas[static_cast<size_t>(rank)]->header().core.load(std::memory_order_relaxed);
    for (int member = 0; member < size; ++member) {
      if (member != rank && arenas[static_cast<size_t>(member)]->header().core.load(std::memory_order_relaxed) == own) {
        return true;
      }
    }
    return false;
  }
  bool broken() const { return control.broken().load(std::memory_order_acquire) != 0; }
};

/// Announces that this rank accesses the others' memory now; false: it must not, the group is broken.
class Touch {
 public:
  explicit Touch(const Members& members) : busy_(members.control.busy(members.rank)) {
    busy_.store(1);
    allowed_ = members.control.broken().load() == 0;
  }
  ~Touch() { busy_.store(0, std::memory_order_release); }
  Touch(const Touch&) = delete;
  Touch& operator=(const Touch&) = delete;
  explicit operator bool() const { return allowed_; }

 private:
  std::atomic<uint32_t>& busy_;
  bool allowed_ = false;
};

} // namespace trireme::comm::shm
