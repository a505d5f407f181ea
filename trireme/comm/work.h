#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace trireme::comm {

/// Tells whether a device has finished an operation, for the watch: it keeps no tensor alive, and any thread may ask at
/// any time.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Never blocks. Errors: Trouble when the device will not finish it any more.
  virtual bool finished() = 0;
  /// Grows while a long operation goes on: its deadline then begins anew.
  virtual int64_t steps() const {
    return 0;
  }
};

/// An operation in progress in a backend. Backends derive from this.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the operation is done, or, on a device, until what the current stream does next comes after it.
  /// Throws PeerError if it failed or its deadline passed.
  virtual void wait() = 0;
  /// Whether it is finished, on the device too.
  virtual bool done() = 0;
  /// Null for an operation that is finished when wait() returns, and for one of a device that has not been given to it
  /// yet. Asked for when it has begun and, if null, again after wait().
  virtual std::shared_ptr<DeviceMark> mark() {
    return nullptr;
  }
};

/// A collective or message in progress. Copies share it; the destructor of the last copy
/// waits if nobody has waited, so a tensor is never read or written after its Work is
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
  bool done() const {
    return !pending_ || pending_->done();
  }

 private:
  std::shared_ptr<Pending> pending_;
};

/// Returns a Work whose first wait() waits for `work` and then calls f(): to convert a result, or to wait for another
/// Work.
Work then(Work work, std::function<void()> f);

} // namespace trireme::comm
