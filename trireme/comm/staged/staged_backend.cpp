#include <trireme/comm/staged/staged_backend.h>

#include <trireme/base/text.h>
#include <trireme/comm/hierarchy/task_thread.h>
#include <trireme/comm/reduce.h>
#include <trireme/comm/staged/copies.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

namespace trireme::comm {
namespace staged {
namespace {

/// Pieces are multiples of this for every rank, so that the parts of ranks and of vectors equal those of the full
/// tensor.
constexpr int64_t kCut = 64;

/// The unfinished collectives, in order. Copies to the host run ahead of the host's operations, into the next
/// collectives too.
class Queue {
 public:
  explicit Queue(int ahead) : ahead_(ahead) {}

  void push(std::shared_ptr<Collective> op) {
    const std::lock_guard lock(mutex_);
    ops_.push_back(std::move(op));
  }

  /// Runs the oldest, which is `op`, on the backend's thread.
  void run(Collective& op) {
    const Popping popping{*this};
    device::make_current(op.device());
    for (int64_t piece = 0; piece < op.pieces(); ++piece) {
      launch_ahead();
      op.begin();
      if (piece > 0) {
        finish(op);
      }
    }
    finish(op);
    op.end();
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    ops_.clear();
  }

 private:
  struct Popping {
    Queue& queue;
    ~Popping() {
      const std::lock_guard lock(queue.mutex_);
      if (!queue.ops_.empty()) {
        queue.ops_.pop_front();
      }
    }
  };

  void finish(Collective& op) {
    op.finish();
    --launched_;
  }
  void launch_ahead() {
    const std::lock_guard lock(mutex_);
    for (const auto& op : ops_) {
      for (; !op->all_launched(); ++launched_) {
        if (launched_ >= ahead_ + 2) { // the host has two
          return;
        }
        op->launch();
      }
    }
  }

  const int ahead_;
  int launched_ = 0;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Collective>> ops_;
};

/// Turns a failure of this rank only (memory, the device) into one that the other ranks get too.
template <typename F>
void ending_the_group(const F& f) {
  try {
    f();
  } catch (const Trouble&) {
    throw;
  } catch (const std::exception& error) {
    throw Trouble(Trouble::Kind::lost, error.what());
  }
}

class CollectivePending : public Pending {
 public:
  CollectivePending(std::shared_ptr<Pending> on_thread, std::shared_ptr<Collective> op)
      : on_thread_(std::move(on_thread)), op_(std::move(op)) {}
  ~CollectivePending() override {
    if (waited_ || std::uncaught_exceptions() > 0) {
      return; // on_thread_ ends the operation
    }
    try {
      CollectivePending::wait(); // later uses of the tensors come after this operation
    } catch (...) {
      // No caller receives the error.
    }
  }
  void wait() override {
    on_thread_->wait();
    op_->order_current_stream();
    waited_ = true;
  }
  bool done() override { return on_thread_->done() && op_->done(); }
  std::shared_ptr<DeviceMark> mark() override { return op_->course(); }

 private:
  std::shared_ptr<Pending> on_thread_;
  std::shared_ptr<Collective> op_;
  bool waited_ = false;
};

class SendPending : public Pending {
 public:
  SendPending(std::shared_ptr<Pending> on_thread, std::shared_ptr<Send> op)
      : op_(std::move(op)), on_thread_(std::move(on_thread)) {}
  void wait() override {
    on_thread_->wait();
    op_->wait();
  }
  bool done() override { return on_thread_->done() && op_->done(); }
  std::shared_ptr<DeviceMark> mark() override { return op_->course(); }

 private:
  std::shared_ptr<Send> op_; // its host operations end after the thread has released it
  std::shared_ptr<Pending> on_thread_;
};

class StagedBackend : public Backend {
 public:
  StagedBackend(std::shared_ptr<Backend> host, at::DeviceType type, const StagedOptions& options)
      : Backend(host->rank(), host->size()),
        type_(type),
        options_(options),
        shared_(std::make_shared<Shared>(std::move(host), type)),
        queue_(std::make_shared<Queue>(options.ahead)),
        interrupt_([weak = std::weak_ptr(shared_)] {
          if (const auto shared = weak.lock()) {
            shared->interrupted = true;
            shared->host->interrupt();
          }
        }),
        collectives_(std::make_unique<TaskThread>(interrupt_)),
        sends_(std::make_unique<TaskThread>(interrupt_)) {}
  ~StagedBackend() override { StagedBackend::close(); }

  const char* name() const override { return "staged"; }
  bool moves(at::DeviceType type) const override { return type == type_; }

  std::shared_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    check_type(tensor, "all_reduce");
    const at::Tensor whole = flat(tensor);
    Collective::Steps steps{.in = {whole, 1, 0}, .out = {whole, 1, 0}, .columns = whole.numel()};
    steps.on_host = [host = shared_->host, op](const at::Tensor& out, const at::Tensor&) {
      return host->all_reduce(out, op);
    };
    return run(tensor, std::move(steps));
  }
  std::shared_ptr<Pending> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    check_type(in, "reduce_scatter");
    Collective::Steps steps{
        .in = {flat(in), size_, 0}, .out = {flat(out), 1, rank_}, .columns = out.numel(), .buffer_rows = size_};
    steps.on_host = [host = shared_->host, rank = rank_, size = size_, op](const at::Tensor& all, const at::Tensor&) {
      const int64_t slice = all.numel() / size;
      return host->reduce_scatter(all.narrow(0, rank * slice, slice), all, op);
    };
    return run(in, std::move(steps));
  }
  std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) override {
    Collective::Steps steps{
        .in = {flat(in), 1, rank_}, .out = {flat(out), size_, 0}, .columns = in.numel(), .buffer_rows = size_};
    steps.on_host = [host = shared_->host, rank = rank_, size = size_](const at::Tensor& all, const at::Tensor&) {
      const int64_t slice = all.numel() / size;
      return host->all_gather(all, all.narrow(0, rank * slice, slice));
    };
    return run(out, std::move(steps));
  }
  std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) override {
    const Rows whole{flat(tensor), 1, 0};
    Collective::Steps steps{
        .in = root == rank_ ? whole : Rows{}, .out = root == rank_ ? Rows{} : whole, .columns = tensor.numel()};
    steps.on_host = [host = shared_->host, root](const at::Tensor& all, const at::Tensor&) {
      return host->broadcast(all, root);
    };
    return run(tensor, std::move(steps));
  }
  std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) override {
    Collective::Steps steps{.in = {flat(in), size_, 0},
                            .out = {flat(out), size_, 0},
                            .columns = in.numel() / size_,
                            .buffer_rows = size_,
                            .apart = true};
    steps.on_host = [host = shared_->host](const at::Tensor& to, const at::Tensor& from) {
      return host->all_to_all(to, from);
    };
    return run(in, std::move(steps));
  }
  std::shared_ptr<Pending> barrier() override {
    return thread(collectives_).run([host = shared_->host] {
      if (const auto pending = host->barrier()) {
        pending->wait();
      }
    });
  }

  std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) override {
    TaskThread& sends = thread(sends_);
    if (tensor.numel() == 0) {
      return nullptr;
    }
    auto op = std::make_shared<Send>(shared_, flat(tensor), elements(tensor));
    auto on_thread = sends.run([op, to, tag] { ending_the_group([&] { op->post(to, tag); }); });
    return std::make_shared<SendPending>(std::move(on_thread), std::move(op));
  }
  std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) override {
    thread(sends_);
    return tensor.numel() == 0 ? nullptr
                               : std::make_shared<Receive>(shared_, flat(tensor), from, tag, elements(tensor));
  }

  int64_t bytes_sent() const override { return shared_->host->bytes_sent(); }
  void interrupt() override { interrupt_(); }
  void close() override {
    if (!collectives_) {
      return;
    }
    interrupt();
    collectives_.reset();
    sends_.reset();
    queue_->clear();
    shared_->host->close();
  }

 private:
  /// On the caller's thread: on the backend's an error would end the group.
  static void check_type(const at::Tensor& tensor, const char* op) { element_of(tensor.scalar_type(), op, "the host"); }
  static TaskThread& thread(const std::unique_ptr<TaskThread>& thread) {
    if (!thread) {
      throw Trouble(Trouble::Kind::lost, "the group is closed");
    }
    return *thread;
  }
  int64_t elements(const at::Tensor& tensor) const {
    return std::max<int64_t>(1, options_.piece_bytes / static_cast<int64_t>(tensor.element_size()));
  }

  /// `whole` is the larger tensor.
  std::shared_ptr<Pending> run(const at::Tensor& whole, Collective::Steps steps) {
    TaskThread& runs = thread(collectives_);
    if (whole.numel() == 0) {
      return nullptr;
    }
    const int64_t cut = kCut * size_;
    const int64_t piece = std::max(cut, elements(whole) / steps.buffer_rows / cut * cut);
    auto op = std::make_shared<Collective>(shared_, whole.device(), whole.scalar_type(), std::move(steps), piece);
    const std::lock_guard starting(starting_); // the queue and the thread keep one order
    queue_->push(op);
    auto on_thread = runs.run([queue = queue_, op] { ending_the_group([&] { queue->run(*op); }); });
    return std::make_shared<CollectivePending>(std::move(on_thread), std::move(op));
  }

  const at::DeviceType type_;
  const StagedOptions options_;
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Queue> queue_;
  /// Interrupts the host's backend. An operation may outlive this object.
  const std::function<void()> interrupt_;
  std::mutex starting_;
  std::unique_ptr<TaskThread> collectives_;
  std::unique_ptr<TaskThread> sends_;
};

} // namespace
} // namespace staged

std::shared_ptr<Backend> make_staged_backend(std::shared_ptr<Backend> host, at::DeviceType type,
                                             const StagedOptions& options) {
  return std::make_shared<staged::StagedBackend>(std::move(host), type, options);
}

std::shared_ptr<Backend> connect_staged(const GroupSetup& setup) {
  return make_staged_backend(setup.connect_host("staged"), setup.device.type());
}

} // namespace trireme::comm
