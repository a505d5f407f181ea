#pragma once

#include <functional>
#include <memory>

namespace trireme::comm {

/// What a backend is still doing for us. Backends derive from this.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the operation is done. Throws PeerError when it failed or its deadline passed.
  virtual void wait() = 0;
  virtual bool done() = 0;
};

/// A collective or message on its way. Copies share it; dropping the last copy
/// without waiting waits in the destructor of the backend's object, so a tensor is
/// never read or written after its Work is gone.
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

/// `work`, and f() once it is done, called by the first wait(): for a result that is to be converted, or another work to be waited for.
Work then(Work work, std::function<void()> f);

} // namespace trireme::comm
