#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// Memory shared by the ranks of one group, in the arena of its rank 0. It has only growing numbers: a rank that dies
// holds no lock.
namespace trireme::comm::shm {

/// Steps of collectives that a rank may have announced and not finished.
constexpr uint64_t kSteps = 64;
/// Messages from one rank to another that the receiver has not read yet.
constexpr uint64_t kLetters = 128;

/// One rank's part in one step. Addresses are offsets in that rank's arena.
struct alignas(64) Post {
  std::atomic<uint64_t> step{0};
  uint64_t signature = 0;
  uint64_t in = 0;
  uint64_t out = 0;
  /// Bytes from one rank's part to the next one's in a tensor that has one for each.
  uint64_t in_stride = 0;
  uint64_t out_stride = 0;
  /// `out` is a staging area, read again at once.
  uint64_t staged = 0;
};

/// `step << kShift | count`: counts restart with every step without a reset.
struct alignas(64) Counter {
  static constexpr int kShift = 20;
  std::atomic<uint64_t> value{0};

  uint64_t of(uint64_t step) const {
    const uint64_t now = value.load(std::memory_order_acquire);
    return now >> kShift == step ? now & ((uint64_t{1} << kShift) - 1) : 0;
  }
  /// If only one rank counts in this step: equals take(), without reading others' writes.
  void set(uint64_t step, uint64_t count) { value.store(step << kShift | count, std::memory_order_release); }
  /// Adds one below `limit` and returns the count before, or `limit`.
  uint64_t take(uint64_t step, uint64_t limit) {
    uint64_t now = value.load(std::memory_order_relaxed);
    for (;;) {
      if (now >> kShift > step) {
        return limit;
      }
      const uint64_t count = now >> kShift == step ? now & ((uint64_t{1} << kShift) - 1) : 0;
      if (count >= limit) {
        return limit;
      }
      if (value.compare_exchange_weak(now, step << kShift | (count + 1))) {
        return count;
      }
    }
  }
};

/// A message: its type, its offset in the sender's arena, and the offset of the word there that marks it as taken.
struct alignas(64) Letter {
  std::atomic<uint64_t> number{0};
  int64_t tag = 0;
  uint64_t bytes = 0;
  /// at::ScalarType
  uint64_t type = 0;
  uint64_t data = 0;
  uint64_t taken = 0;
};

struct Mailbox {
  /// Letters that the receiver has looked at.
  alignas(64) std::atomic<uint64_t> read{0};
  Letter letters[kLetters];
};

/// Addresses of one group's control block.
class Control {
 public:
  static size_t bytes(int size) {
    const auto n = static_cast<size_t>(size);
    return sizeof(Head) + n * sizeof(Busy) + kSteps * (n * sizeof(Post) + (n + 1) * sizeof(Counter)) +
           n * n * sizeof(Mailbox);
  }
  Control() = default;
  /// `memory`: that many bytes, zeros before the first rank uses it.
  Control(std::byte* memory, int size) : memory_(memory), size_(static_cast<size_t>(size)) {}

  std::byte* memory() const { return memory_; }
  /// 0, or 1 + the rank that gave up: the group is unusable then.
  std::atomic<uint32_t>& broken() const { return reinterpret_cast<Head*>(memory_)->broken; }
  /// 1 while that rank accesses the others' memory. It sets this before reading broken(): a rank that has set broken()
  /// and reads 0 here owns its memory again.
  std::atomic<uint32_t>& busy(int rank) const { return reinterpret_cast<Busy*>(memory_ + sizeof(Head))[rank].value; }
  /// 1 when that rank will not access this block again.
  std::atomic<uint32_t>& left(int rank) const { return reinterpret_cast<Busy*>(memory_ + sizeof(Head))[rank].left; }
  Post& post(int rank, uint64_t step) const {
    return reinterpret_cast<Post*>(posts())[static_cast<size_t>(rank) * kSteps + step % kSteps];
  }
  /// Pieces of part `part` that are taken.
  Counter& taken(uint64_t step, int part) const {
    return counters()[step % kSteps * (size_ + 1) + 1 + static_cast<size_t>(part)];
  }
  /// Pieces of all parts that are done.
  Counter& done(uint64_t step) const { return counters()[step % kSteps * (size_ + 1)]; }
  Mailbox& mailbox(int from, int to) const {
    auto* boxes = reinterpret_cast<Mailbox*>(posts() + kSteps * (size_ * sizeof(Post) + (size_ + 1) * sizeof(Counter)));
    return boxes[static_cast<size_t>(from) * size_ + static_cast<size_t>(to)];
  }

 private:
  struct Head {
    alignas(64) std::atomic<uint32_t> broken{0};
  };
  struct Busy {
    alignas(64) std::atomic<uint32_t> value{0};
    std::atomic<uint32_t> left{0};
  };
  std::byte* posts() const { return memory_ + sizeof(Head) + size_ * sizeof(Busy); }
  Counter* counters() const { return reinterpret_cast<Counter*>(posts() + kSteps * size_ * sizeof(Post)); }

  std::byte* memory_ = nullptr;
  size_t size_ = 0;
};

} // namespace trireme::comm::shm
