#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace trireme::comm {

/// Reports whether a device has finished an operation, for the watch: it keeps no tensor alive, and is
/// thread-safe.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Never blocks. Errors: Trouble if the device will never finish it.
  virtual bool finished() = 0;
  /// Grows while a long operation progresses: its deadline then restarts.
  virtual int64_t steps() const { return 0; }
};

/// An operation in progress in a backend. Backends derive from this.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the operation is done, or, on a device, until later work of the current stream is ordered after it.
  /// Throws PeerError if it failed or its deadline passed.
  virtual void wait() = 0;
  /// True if it is finished, on the device too.
  virtual bool done() = 0;
  /// Null for an operation that is finished when wait() returns, and for one that has not been launched on its device
  /// yet. Queried when the operation has begun and, if null, again after wait().
  virtual std::shared_ptr<DeviceMark> mark() { return nullptr; }
};

/// A collective or message in progress. Copies share it. The destructor of the last copy
/// waits if wait() was not called, so a tensor is never read or written after its Work is
/// destroyed.
class Work {
 public:
  /// Nothing to wait for.
  Work() = default;
  explicit Work(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}

  /// Blocks until done; afterwards results are in place. May be called again.
  /// Throws PeerError naming group, operation number, bytes and the missing ranks.
  void wait() {
    if (pending_) {
      pending_->wait();
      pending_.reset();
    }
  }
  bool done() const { return !pending_ || pending_->done(); }

 private:
  std::shared_ptr<Pending> pending_;
};

/// Returns a Work whose first wait() waits for `work` and then calls f(): to convert a result, or to wait for another
/// Work.
Work then(Work work, std::function<void()> f);

} // namespace trireme::comm
