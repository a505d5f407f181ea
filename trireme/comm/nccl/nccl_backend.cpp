#include <trireme/comm/nccl/nccl_backend.h>

#include <trireme/comm/c10d_work.h>
#include <trireme/comm/closed_forms.h>
#include <trireme/comm/store_handle.h>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

namespace trireme::comm {
namespace {

/// ErrorHandlingMode::CleanUpOnly of c10d: its watchdog ends a late operation on the card but not this process, whose
/// error shall name the rank that is missing.
constexpr const char* kCleanUpOnly = "2";

/// The communicators of a group, each with a stream of its own. A message to a higher rank and one to a lower rank that both ends have
/// queued would wait for each other on one stream, so each direction has its own; within one, messages wait for their ends in one
/// direction only, along the ranks. All are made when the group is opened: to make one with the first message would keep the host of a
/// sender until its receiver comes, which may be sending too.
///
/// Kernels of several communicators share a card, and where they do not fit beside each other they must be launched in one order on
/// all ranks. That holds: collectives of all groups are begun by the program's order, which is the same on the ranks they
/// share, and under one lock. A receive is launched when its header has come on the host (DeviceInbox), so
/// after the sender has begun to send: it never holds a place for a send that comes behind a collective that waits for this rank.
enum class Lane { collectives, up, down };
constexpr std::array<const char*, 3> kLanes = {"collectives", "up", "down"};

/// What the operations of one group share.
class Core {
 public:
  using Nccl = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

  Core(const GroupSetup& setup, const c10::intrusive_ptr<c10d::Store>& store)
      : device_(at::kCUDA, setup.device.has_index() ? setup.device.index() : c10::cuda::current_device()) {
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", kCleanUpOnly, /*overwrite=*/0);
    const c10::DeviceGuard on_card(device_);
    for (size_t lane = 0; lane < kLanes.size(); ++lane) {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      options->timeout = setup.timeout;
      options->group_name = concat(setup.name, "/", kLanes[lane]);
      auto own = c10::make_intrusive<c10d::PrefixStore>(kLanes[lane], store);
      lanes_[lane] = c10::make_intrusive<c10d::ProcessGroupNCCL>(own, setup.rank, setup.size, options);
      lanes_[lane]->setBoundDeviceId(device_);
      lanes_[lane]->eagerConnectSingleDevice(device_); // in the same order on all ranks
    }
  }
  ~Core() {
    close();
  }

  void check() const {
    if (interrupted_) {
      throw Trouble(Trouble::Kind::interrupted, "interrupted");
    }
  }
  bool interrupted() const {
    return interrupted_;
  }
  /// Where the group was opened. The thread's current card may be another: threads of autograd and of other groups begin operations too.
  at::Device device() const {
    return device_;
  }

  /// Starts an operation, unless one before it has failed since somebody looked.
  template <typename Start>
  c10::intrusive_ptr<c10d::Work> start(Lane lane, const Start& begin) {
    check();
    const c10::DeviceGuard on_card(device_);
    const std::lock_guard starting(starting_);
    const auto nccl = handle(lane);
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

  /// Breaks the communicators, so that a host that waits for the card is freed. On a thread of its own: it takes seconds.
  void interrupt() {
    if (interrupted_.exchange(true)) {
      return;
    }
    const std::lock_guard lock(mutex_);
    if (lanes_[0]) {
      aborter_ = std::thread([lanes = lanes_] {
        for (const auto& nccl : lanes) {
          try {
            nccl->abort();
          } catch (...) {
            // The group has failed already; its errors say why.
          }
        }
      });
    }
  }

  void close() {
    std::array<Nccl, kLanes.size()> lanes;
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
            nccl->abort(); // a peer may be waiting in vain, and so would shutdown()
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

  const at::Device device_;

  /// Held for a moment only: interrupt() must not wait for an operation that waits for a peer.
  std::mutex mutex_;
  std::array<Nccl, kLanes.size()> lanes_;
  std::mutex starting_;
  std::vector<c10::intrusive_ptr<c10d::Work>> under_way_;
  std::thread aborter_;
  std::atomic<bool> interrupted_{false};
};

class NcclPending : public Pending {
 public:
  NcclPending(std::shared_ptr<Core> core, c10::intrusive_ptr<c10d::Work> work) : core_(std::move(core)), work_(std::move(work)) {}
  ~NcclPending() override {
    try {
      NcclPending::wait(); // whatever uses the tensors from now on does so after this operation
    } catch (...) {
      // No caller is left for the error.
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
  /// Whether the card has finished, not whether the operation is queued: the watch tells these apart.
  bool done() override {
    return core_->interrupted() || work_->isCompleted();
  }

 private:
  std::shared_ptr<Core> core_;
  c10::intrusive_ptr<c10d::Work> work_;
  bool waited_ = false;
};

class NcclBackend : public Backend {
 public:
  NcclBackend(const GroupSetup& setup, std::shared_ptr<Core> core) : rank_(setup.rank), size_(setup.size), core_(std::move(core)) {
    barrier()->wait(); // uses the communicator now, where a card that cannot be reached is an error of opening the group
  }
  ~NcclBackend() override {
    NcclBackend::close();
  }

  const char* name() const override {
    return "nccl";
  }
  int rank() const override {
    return rank_;
  }
  int size() const override {
    return size_;
  }
  bool moves(at::DeviceType type) const override {
    return type == at::kCUDA;
  }

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
    return start(share(in), [&](c10d::ProcessGroupNCCL& nccl) { return nccl._reduce_scatter_base(target, source, options); });
  }
  std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) override {
    at::Tensor target = flat(out);
    at::Tensor source = flat(in);
    return start(share(out), [&](c10d::ProcessGroupNCCL& nccl) { return nccl._allgather_base(target, source); });
  }
  std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors = {flat(tensor)};
    const bool last = (rank_ - root + size_) % size_ == size_ - 1;
    return start(last ? 0 : static_cast<int64_t>(tensor.nbytes()),
                 [&](c10d::ProcessGroupNCCL& nccl) { return nccl.broadcast(tensors, options); });
  }
  std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) override {
    at::Tensor target = flat(out);
    at::Tensor source = flat(in);
    std::vector<int64_t> equal;
    return start(share(in), [&](c10d::ProcessGroupNCCL& nccl) { return nccl.alltoall_base(target, source, equal, equal); });
  }
  std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) override {
    std::vector<at::Tensor> tensors = {flat(tensor)};
    return start(static_cast<int64_t>(tensor.nbytes()), [&](c10d::ProcessGroupNCCL& nccl) { return nccl.send(tensors, to, tag); }, to > rank_ ? Lane::up : Lane::down);
  }
  std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) override {
    std::vector<at::Tensor> tensors = {flat(tensor)};
    return start(0, [&](c10d::ProcessGroupNCCL& nccl) { return nccl.recv(tensors, from, tag); }, from < rank_ ? Lane::up : Lane::down);
  }
  std::shared_ptr<Pending> barrier() override {
    c10d::BarrierOptions options;
    options.device = core_->device();
    return start(0, [&](c10d::ProcessGroupNCCL& nccl) { return nccl.barrier(options); });
  }

  int64_t bytes_sent() const override {
    return bytes_sent_;
  }
  void interrupt() override {
    core_->interrupt();
  }
  void close() override {
    core_->close();
  }

 private:
  static at::Tensor flat(const at::Tensor& tensor) {
    return tensor.detach().view(-1);
  }
  int64_t share(const at::Tensor& whole) const {
    return share_of_others(static_cast<int64_t>(whole.nbytes()), size_);
  }
  template <typename Start>
  std::shared_ptr<Pending> start(int64_t bytes, const Start& begin, Lane lane = Lane::collectives) {
    auto pending = std::make_shared<NcclPending>(core_, core_->start(lane, begin));
    bytes_sent_ += bytes;
    return pending;
  }

  int rank_;
  int size_;
  std::shared_ptr<Core> core_;
  std::atomic<int64_t> bytes_sent_{0};
};

} // namespace

std::string nccl_card(at::Device device) {
  char name[32] = {};
  const int index = device.has_index() ? device.index() : c10::cuda::current_device();
  return cudaDeviceGetPCIBusId(name, sizeof name, index) == cudaSuccess ? name : concat(index);
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
