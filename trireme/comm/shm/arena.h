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

/// At the start of every arena: lets other ranks wake its process.
struct ArenaHeader {
  uint64_t nonce = 0;
  /// Counts rings; sleepers wait on it (futex).
  alignas(64) std::atomic<uint32_t> door{0};
  /// Threads of the owner that sleep, or are about to.
  std::atomic<uint32_t> sleepers{0};
  /// 1 + the core on which the owner was last seen to communicate; 0: not seen yet.
  std::atomic<uint32_t> core{0};

  /// Called by the owner: records the calling thread's core.
  void note_core();
};

/// Memory of this process that the other ranks of its host map entirely: flat buffers, staging areas, control blocks.
///
/// One memory file per process (memfd): it has no name, so nothing remains however the process ends. It is as large
/// as the machine's memory, but uses only pages that are written. Never unmapped before the process ends.
/// Thread-safe.
class Arena {
 public:
  /// Created by the first call. Errors: Error with obstacle()'s reason, or that no addresses are left (ulimit
  /// -v).
  static Arena& process();
  /// The reason why this process cannot have one, "" if none is known: no memory files, or a limit on file sizes
  /// (ulimit -f) below the machine's memory, beyond which SIGXFSZ would end the process.
  static std::string obstacle();

  /// Uninitialised, aligned to 64 bytes, from 4 MiB to 2 MiB. nullptr when the arena is full.
  void* allocate(size_t bytes);
  /// The same, zeroed. From 4 MiB it takes only touched pages.
  void* allocate_zeros(size_t bytes);
  /// From 4 MiB, returns the memory to the system.
  void release(void* memory);
  bool contains(const void* memory, size_t bytes) const;
  uint64_t offset_of(const void* memory) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(memory) - base_);
  }
  std::byte* base() const { return base_; }
  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(base_); }
  /// The text from which another process of this host maps it.
  std::string address() const;
  uint64_t nonce() const { return nonce_; }
  /// Bytes allocated and not released.
  size_t allocated();
  /// Bytes of this process's arena taken from the system; 0 without one.
  static int64_t bytes_in_use();
  /// Released memory is not reused from now on: a rank that was stopped during an operation may still write to
  /// it.
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

/// Another process's arena (or this one's own) in this one's address space.
class PeerArena {
 public:
  /// Groups with the same peer share it. Errors: Error if the process is not found or may not be
  /// inspected.
  static std::shared_ptr<PeerArena> map(const std::string& address);
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;
  PeerArena& operator=(const PeerArena&) = delete;

  std::byte* base() const { return base_; }
  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(base_); }
  size_t size() const { return size_; }
  pid_t process() const { return process_; }
  /// True if the process has ended, even if it is a zombie. Cost: a system call.
  bool ended() const;
  /// Wakes its sleeping threads. Cost if none sleeps: a fence and a load.
  void ring() const;

 private:
  PeerArena() = default;

  std::byte* base_ = nullptr;
  size_t size_ = 0;
  pid_t process_ = 0;
  int watch_ = -1;
  bool own_ = false;
};

/// Sleeps until this process's door is rung after `seen`, or until the time is over.
void sleep_at_door(ArenaHeader& header, uint32_t seen, int64_t microseconds);

} // namespace trireme::comm::shm
