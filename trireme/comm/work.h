#pragma once

#include <functional>
#include <memory>

namespace trireme::comm {

/// An operation in progress in a backend. Backends derive from this.
class Pending {
 public:
  virtual ~Pending() = default;
  /// Blocks until the operation is done. Throws PeerError if it failed or its deadline passed.
  virtual void wait() = 0;
  virtual bool done() = 0;
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

/// Returns a Work whose first wait() waits for `work` and then calls f(): to convert a result, or to wait for another Work.
Work then(Work work, std::function<void()> f);

} // namespace trireme::comm
