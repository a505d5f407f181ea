#include <trireme/comm/nccl/nccl_backend.h>

#include <trireme/comm/c10d_work.h>
#include <trireme/comm/nccl/lanes.h>
#include <trireme/comm/store_handle.h>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

namespace trireme::comm {
namespace {

/// ErrorHandlingMode::CleanUpOnly of c10d: its watchdog ends a late operation on the GPU but not this process, whose
/// error must name the missing rank.
constexpr const char* kCleanUpOnly = "2";

/// Another thread of c10d ends the whole process when its watchdog is silent for minutes, as it is while a program
/// loads kernels or saves; the watch of trireme asks for what that looks for.
constexpr const char* kNoMonitor = "0";

/// libtorch's watchdog must be second to notice a hang: its errors do not name the missing rank.
constexpr std::chrono::seconds kAfterUs{30};

/// Lanes are communicators of their own, not split from the first with shared resources: NCCL then shares the
/// connections of each channel, which two kernels at a time may not use.
///
/// Messages have lanes if the group was opened for them. Creating one with the first message would block a sender's
/// host until its receiver arrives, which may be sending too.
///
/// Kernels of several communicators share a GPU; if they do not fit beside each other, all ranks must launch them in
/// one order. That holds: collectives of all groups begin in the program's order, which is the same on the ranks
/// they share, and under one lock. A receive is launched when its header has arrived on the host (DeviceInbox), so
/// after the sender began to send. It never occupies the GPU for a send behind a collective that waits for this
/// rank.
using Lanes = std::array<c10::intrusive_ptr<c10d::ProcessGroupNCCL>, kLanes.size()>;

/// State shared by the operations of one group.
class Core {
 public:
  using Nccl = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

  Core(const GroupSetup& setup, c10::intrusive_ptr<c10d::Store> store)
      : name_(setup.name),
        rank_(setup.rank),
        size_(setup.size),
        timeout_(setup.timeout),
        store_(std::move(store)),
        device_(at::kCUDA, setup.device.has_index() ? setup.device.index() : c10::cuda::current_device()) {
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", kCleanUpOnly, /*overwrite=*/0);
    ::setenv("TORCH_NCCL_ENABLE_MONITORING", kNoMonitor, /*overwrite=*/0);
    open(Lane::collectives);
  }
  ~Core() { close(); }

  /// Creates a communicator unless it exists: in the same order on all ranks.
  void open(Lane lane) {
    check();
    if (handle(lane)) {
      return;
    }
    const c10::DeviceGuard on_card(device_);
    const char* const name = kLanes[static_cast<size_t>(lane)];
    // A collective that waits behind the kernels of a layer delays all ranks: its own kernels go first.
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = timeout_ + kAfterUs;
    options->group_name = concat(name_, "/", name);
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>(name, store_), rank_,
                                                            size_, options);
    nccl->setBoundDeviceId(device_);
    nccl->eagerConnectSingleDevice(device_);
    {
      const std::lock_guard lock(mutex_);
      if (!interrupted_) {
        lanes_[static_cast<size_t>(lane)] = std::move(nccl);
        return;
      }
    }
    nccl->abort();
    check();
  }

  void check() const {
    if (interrupted_) {
      throw Trouble(Trouble::Kind::interrupted, "interrupted");
    }
  }
  bool interrupted() const { return interrupted_; }
  /// The GPU on which the group was opened. A thread's current GPU may differ: threads of autograd and of other groups
  /// begin operations too.
  at::Device device() const { return device_; }

  /// Starts an operation, unless an earlier one has failed since the last check.
  template <typename Start>
  c10::intrusive_ptr<c10d::Work> start(Lane lane, const Start& begin) {
    check();
    const c10::DeviceGuard on_card(device_);
    const std::lock_guard starting(starting_);
    const auto nccl = handle(lane);
    if (!nccl && handle(Lane::collectives)) {
      throw Error("comm", concat("group \"", name_, "\" over nccl was not opened for these messages."),
                  "Call Group::open(device, Neighbours::chain), or ring where the last rank sends to the first, on "
                  "every rank of the group before the first message.");
    }
    if (!nccl) {
      throw Trouble(Trouble::Kind::lost, "the group is closed");
    }
    try {
      std::erase_if(under_way_, [](const auto& work) {
        if (!work->isCompleted()) {
          return false;
        }
        if (const auto error = work->exception()) {
          std::rethrow_exception(error);
        }
        return true;
      });
      under_way_.push_back(begin(*nccl));
      return under_way_.back();
    } catch (...) {
      throw trouble_of(std::current_exception());
    }
  }

  /// Aborts the communicators, so that a host that waits for the GPU is released. On its own thread, because it takes
  /// seconds.
  void interrupt() {
    if (interrupted_.exchange(true)) {
      return;
    }
    const std::lock_guard lock(mutex_);
    if (lanes_[0]) {
      aborter_ = std::thread([lanes = lanes_] {
        for (const auto& nccl : lanes) {
          try {
            if (nccl) {
              nccl->abort();
            }
          } catch (...) {
            // The group has failed already; its errors give the reason.
          }
        }
      });
    }
  }

  void close() {
    Lanes lanes;
    std::thread aborter;
    {
      const std::lock_guard lock(mutex_);
      lanes.swap(lanes_);
      aborter = std::move(aborter_);
      interrupted_ = true;
    }
    if (aborter.joinable()) {
      aborter.join();
    } else {
      for (const auto& nccl : lanes) {
        try {
          if (nccl && std::uncaught_exceptions() > 0) {
            nccl->abort(); // a peer may wait forever, and so would shutdown()
          } else if (nccl) {
            nccl->shutdown();
          }
        } catch (...) {
          // Only needs the threads to end.
        }
      }
    }
    const std::lock_guard starting(starting_);
    under_way_.clear();
  }

 private:
  Nccl handle(Lane lane) {
    const std::lock_guard lock(mutex_);
    return lanes_[static_cast<size_t>(lane)];
  }

  const std::string name_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const at::Device device_;

  /// Held briefly: interrupt() must not wait for an operation that waits for a peer.
  std::mutex mutex_;
  Lanes lanes_;
  std::mutex starting_;
  std::vector<c10::intrusive_ptr<c10d::Work>> under_way_;
  std::thread aborter_;
  std::atomic<bool> interrupted_{false};
};

/// libtorch's copy of an operation without its tensors, made for its watchdog: the event after the operation.
class NcclMark : public DeviceMark {
 public:
  NcclMark(const c10d::ProcessGroupNCCL::WorkNCCL& work, at::Device device, std::weak_ptr<Core> core)
      : copy_(work), device_(device), core_(std::move(core)) {}

  bool finished() override {
    if (const auto core = core_.lock(); core && core->interrupted()) { // before anything that waits for an abort
      throw Trouble(Trouble::Kind::interrupted, "interrupted");
    }
    const c10::DeviceGuard there(device_); // otherwise CUDA creates a context on GPU 0 for the watch's thread
    return copy_.ended();
  }

 private:
  class Copy : public c10d::ProcessGroupNCCL::WorkNCCL {
   public:
    explicit Copy(const WorkNCCL& work) : WorkNCCL(work) {}
    /// True if the kernel has ended and was not aborted.
    bool ended() {
      if (!finishedGPUExecutionInternal()) {
        return false;
      }
      if (ncclComm_ && checkForNCCLErrors()) { // also after an abort; NCCLComm::isAborted() is not exported
        throw Trouble(Trouble::Kind::lost, "NCCL has given up the communicator");
      }
      return true;
    }
  };
  Copy copy_;
  const at::Device device_;
  const std::weak_ptr<Core> core_;
};

class NcclPending : public Pending {
 public:
  NcclPending(std::shared_ptr<Core> core, c10::intrusive_ptr<c10d::Work> work)
      : core_(std::move(core)), work_(std::move(work)) {
    if (const auto* nccl = dynamic_cast<const c10d::ProcessGroupNCCL::WorkNCCL*>(work_.get())) {
      mark_ = std::make_shared<NcclMark>(*nccl, core_->device(), core_);
    }
  }
  ~NcclPending() override {
    try {
      NcclPending::wait(); // later uses of the tensors come after this operation
    } catch (...) {
      // No caller receives the error.
    }
  }

  void wait() override {
    if (waited_) {
      return;
    }
    core_->check();
    try {
      work_->wait();
      if (const auto error = work_->exception()) {
        std::rethrow_exception(error);
      }
    } catch (...) {
      throw trouble_of(std::current_exception());
    }
    waited_ = true;
  }
  /// True if the GPU has finished, not only if the operation is queued.
  bool done() override { return core_->interrupted() || work_->isCompleted(); }
  std::shared_ptr<DeviceMark> mark() override { return mark_; }

 private:
  std::shared_ptr<Core> core_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::shared_ptr<DeviceMark> mark_;
  bool waited_ = false;
};

class NcclBackend : public Backend {
 public:
  NcclBackend(const GroupSetup& setup, std::shared_ptr<Core> core)
      : Backend(setup.rank, setup.size), core_(std::move(core)) {
    barrier()->wait(); // uses the communicator now: an unreachable GPU is then an error of opening the group
  }
  ~NcclBackend() override { NcclBackend::close(); }

  const char* name() const override { return "nccl"; }
  bool moves(at::DeviceType type) const override { return type == at::kCUDA; }

  std::shared_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    std::vector<at::Tensor> tensors = {flat(tensor)};
    return start(2 * share(tensor), [&](c10d::ProcessGroupNCCL& nccl) { return nccl.allreduce(tensors, options); });
  }
  std::shared_ptr<Pending> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d_op(op);
    at::Tensor target = flat(out);
    at::Tensor source = flat(in);
    return start(share(in),
                 [&](c10d::ProcessGroupNCCL& nccl) { return nccl._reduce_scatter_base(target, source, options); });
  }
  std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) override {
    at::Tensor target = bytes_of(out);
    at::Tensor source = bytes_of(in);
    return start(share(out), [&](c10d::ProcessGroupNCCL& nccl) { return nccl._allgather_base(target, source); });
  }
  std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors = {bytes_of(tensor)};
    const bool last = (rank_ - root + size_) % size_ == size_ - 1;
    return start(last ? 0 : static_cast<int64_t>(tensor.nbytes()),
                 [&](c10d::ProcessGroupNCCL& nccl) { return nccl.broadcast(tensors, options); });
  }
  std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) override {
    at::Tensor target = bytes_of(out);
    at::Tensor source = bytes_of(in);
    std::vector<int64_t> equal;
    return start(share(in),
                 [&](c10d::ProcessGroupNCCL& nccl) { return nccl.alltoall_base(target, source, equal, equal); });
  }
  std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) override {
    std::vector<at::Tensor> tensors = {bytes_of(tensor)};
    return start(
        static_cast<int64_t>(tensor.nbytes()),
        [&](c10d::ProcessGroupNCCL& nccl) { return nccl.send(tensors, to, tag); }, lane_of(rank_, to, size_));
  }
  std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) override {
    std::vector<at::Tensor> tensors = {bytes_of(tensor)};
    return start(
        0, [&](c10d::ProcessGroupNCCL& nccl) { return nccl.recv(tensors, from, tag); }, lane_of(from, rank_, size_));
  }
  std::shared_ptr<Pending> barrier() override {
    c10d::BarrierOptions options;
    options.device = core_->device();
    return start(0, [&](c10d::ProcessGroupNCCL& nccl) { return nccl.barrier(options); });
  }

  /// Sends one byte in both directions: NCCL connects two ranks with the first message, which blocks both hosts until
  /// both have it.
  void open_messages(Neighbours who) override {
    const bool ring = who == Neighbours::ring;
    const int64_t before = bytes_sent_;
    try {
      std::vector<std::shared_ptr<Pending>> sent;
      for (const Lane lane : message_lanes(size_, ring)) {
        core_->open(lane);
        for (const auto& [from, to] : neighbours(size_, ring)) {
          if (lane_of(from, to, size_) == lane && (from == rank_ || to == rank_)) { // one at most
            at::Tensor byte = at::zeros({1}, at::TensorOptions(core_->device()).dtype(at::kByte));
            sent.push_back(from == rank_ ? send(byte, to, 0) : recv(byte, from, 0));
          }
        }
      }
      for (const auto& pending : sent) {
        pending->wait();
      }
    } catch (...) {
      throw trouble_of(std::current_exception());
    }
    barrier()->wait();
    bytes_sent_ = before;
  }

  void interrupt() override { core_->interrupt(); }
  void close() override { core_->close(); }

 private:
  /// Copied data may have any type; NCCL has no int16.
  static at::Tensor bytes_of(const at::Tensor& tensor) { return flat(tensor).view(at::kByte); }
  template <typename Start>
  std::shared_ptr<Pending> start(int64_t bytes, const Start& begin, Lane lane = Lane::collectives) {
    auto pending = std::make_shared<NcclPending>(core_, core_->start(lane, begin));
    bytes_sent_ += bytes;
    return pending;
  }

  std::shared_ptr<Core> core_;
};

} // namespace

std::string nccl_card(at::Device device) {
  char name[32] = {};
  const int index = device.has_index() ? device.index() : c10::cuda::current_device();
  return cudaDeviceGetPCIBusId(name, sizeof name, index) == cudaSuccess ? name : concat(index);
}

std::string nccl_version() {
  return c10d::getNcclVersion();
}

bool nccl_available() {
  return c10::cuda::device_count() > 0;
}

std::shared_ptr<Backend> connect_nccl(const GroupSetup& setup) {
  try {
    auto store = c10::make_intrusive<c10d::PrefixStore>(setup.store.prefix(), setup.store.handle().for_c10d());
    return std::make_shared<NcclBackend>(setup, std::make_shared<Core>(setup, store));
  } catch (...) {
    throw trouble_of(std::current_exception());
  }
}

} // namespace trireme::comm
