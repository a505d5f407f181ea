#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/closed_forms.h>
#include <trireme/comm/host_memory.h>
#include <trireme/comm/work.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace trireme::comm {

enum class ReduceOp { sum, max, min };

/// Ranks that exchange messages on a device: none; rank and rank + 1; also the last and the first.
enum class Neighbours { none, chain, ring };

/// Thrown by a backend's Pending; Group turns it into the error message for the user.
class Trouble : public PeerError {
 public:
  enum class Kind {
    deadline,    ///< not done in time
    lost,        ///< a connection broke
    interrupted, ///< interrupt() was called
    mismatch,    ///< the ranks called different operations
    on_device,   ///< a device has not done it in time, and no thread waits
    by_device,   ///< the device itself failed
  };
  Trouble(Kind kind, const std::string& happened) : PeerError("comm", happened), kind(kind), happened(happened) {}
  Kind kind;
  std::string happened;
};

/// Moves tensors between the ranks of one group. One folder per
/// implementation; all other code uses Group.
///
/// Tensors are contiguous, 1-D or more, and alive until the Pending is done.
/// Every rank of the group calls the same operations in the same order. A null Pending
/// means that the operation is already done.
class Backend {
 public:
  Backend(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Backend() = default;
  /// "null", "gloo", "shm", "mpi", "nccl", "staged".
  virtual const char* name() const = 0;
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// True if it moves tensors on such a device.
  virtual bool moves(at::DeviceType type) const { return type == at::kCPU; }

  virtual std::shared_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  /// `in` is [size * n], `out` is [n]: rank r receives the reduction of slice r. `out` may be slice r of `in`.
  virtual std::shared_ptr<Pending> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) = 0;
  /// `in` is [n], `out` is [size * n]. `in` may be slice r of `out`.
  virtual std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) = 0;
  virtual std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) = 0;
  /// Both [size * n]: slice j of `in` arrives as slice rank() of rank j's `out`.
  virtual std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) = 0;
  virtual std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) = 0;
  virtual std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) = 0;
  virtual std::shared_ptr<Pending> barrier() = 0;

  /// Opens what messages between these ranks need. Collective. Optional for backends that need nothing.
  virtual void open_messages(Neighbours) {}

  /// Allocates host memory that this backend's collectives use without a copy: not initialised, 64-byte aligned,
  /// `numel` elements of `type`.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType type) { return allocate_host(numel, type); }

  /// Bytes of tensors that this rank has sent, by the closed form of the algorithms in use.
  virtual int64_t bytes_sent() const { return bytes_sent_; }

  /// Makes every current and later wait() throw Trouble. Thread-safe.
  virtual void interrupt() = 0;

  /// Ends outstanding operations with an error and joins every thread. Idempotent.
  virtual void close() = 0;

 protected:
  static at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view(-1); }
  /// Bytes of all slices of `whole` but one.
  int64_t share(const at::Tensor& whole) const { return share_of_others(static_cast<int64_t>(whole.nbytes()), size_); }

  const int rank_;
  const int size_;
  std::atomic<int64_t> bytes_sent_{0};
};

} // namespace trireme::comm
