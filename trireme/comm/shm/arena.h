#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace trireme::comm::shm {

/// At the beginning of every arena: how other ranks wake up the process it belongs to.
struct ArenaHeader {
  uint64_t nonce = 0;
  /// Counts rings; sleepers wait on it (futex).
  alignas(64) std::atomic<uint32_t> door{0};
  /// Threads of the owner that sleep, or are about to.
  std::atomic<uint32_t> sleepers{0};
  /// 1 + the core on which the owner was last seen to communicate; 0: not seen yet.
  std::atomic<uint32_t> core{0};

  /// The owner's: the calling thread runs here.
  void note_core();
};

/// Memory of this process that the other ranks of its host map whole: flat buffers, staging areas, control blocks.
///
/// One memory file a process (memfd): it has no name, so nothing is left behind however the process ends. It is as
/// large as the machine's memory, but takes only what is written to. Never unmapped before the process ends.
/// Thread-safe.
class Arena {
 public:
  /// Made by the first call. Errors: Error saying what obstacle() says, or that there are no addresses left (ulimit
  /// -v).
  static Arena& process();
  /// Why this process cannot have one, "" where nothing is known to be in the way: no memory files, or a limit on the
  /// size of files (ulimit -f) below the machine's memory, beyond which the system would end the process with SIGXFSZ.
  static std::string obstacle();

  /// Uninitialised, aligned to 64 bytes, from 4 MiB on to 2 MiB. nullptr when the arena is full.
  void* allocate(size_t bytes);
  /// The same full of zeros. From 4 MiB on it takes memory only where it is touched.
  void* allocate_zeros(size_t bytes);
  /// From 4 MiB on, the memory goes back to the system.
  void release(void* memory);
  bool contains(const void* memory, size_t bytes) const;
  uint64_t offset_of(const void* memory) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(memory) - base_);
  }
  std::byte* base() const {
    return base_;
  }
  ArenaHeader& header() const {
    return *reinterpret_cast<ArenaHeader*>(base_);
  }
  /// What another process of this host needs to map it.
  std::string address() const;
  uint64_t nonce() const {
    return nonce_;
  }
  /// Bytes handed out and not released.
  size_t allocated();
  /// Pages that this process's arena has taken from the system; 0 without one.
  static int64_t bytes_in_use();
  /// From now on released memory is not used again: a rank that was stopped in the middle of an operation may still
  /// write to it.
  void stop_reuse();

 private:
  Arena();

  int descriptor_ = -1;
  uint64_t nonce_ = 0;
  size_t size_ = 0;
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_; // offset -> bytes
  std::map<uint64_t, uint64_t> used_;
  bool reuse_ = true;
};

/// Another process's arena in this one's addresses (or this one's own).
class PeerArena {
 public:
  /// Groups with the same peer share it. Errors: Error when the process is not to be found or not allowed to be looked
  /// at.
  static std::shared_ptr<PeerArena> map(const std::string& address);
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;
  PeerArena& operator=(const PeerArena&) = delete;

  std::byte* base() const {
    return base_;
  }
  ArenaHeader& header() const {
    return *reinterpret_cast<ArenaHeader*>(base_);
  }
  size_t size() const {
    return size_;
  }
  pid_t process() const {
    return process_;
  }
  /// The process has ended (even if nobody has collected its exit status yet). Cost: a system call.
  bool ended() const;
  /// Wakes up its sleeping threads. Cost where none sleeps: a fence and a load.
  void ring() const;

 private:
  PeerArena() = default;

  std::byte* base_ = nullptr;
  size_t size_ = 0;
  pid_t process_ = 0;
  int watch_ = -1;
  bool own_ = false;
};

/// Sleeps until this process's door is rung after `seen`, or the time has passed.
void sleep_at_door(ArenaHeader& header, uint32_t seen, int64_t microseconds);

} // namespace trireme::comm::shm
