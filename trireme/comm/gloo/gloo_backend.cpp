#include <trireme/comm/gloo/gloo_backend.h>

#include <trireme/base/env.h>
#include <trireme/base/text.h>
#include <trireme/comm/c10d_work.h>
#include <trireme/comm/closed_forms.h>
#include <trireme/comm/gloo/door.h>
#include <trireme/comm/gloo/gloo_pending.h>
#include <trireme/comm/gloo/terminate_guard.h>
#include <trireme/comm/reduce.h>
#include <trireme/comm/store_handle.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <limits>

namespace trireme::comm {
namespace {

/// One listening socket and one gloo thread per process serve all groups.
std::shared_ptr<gloo::transport::Device> shared_device(const GroupSetup& setup) {
  static std::mutex mutex;
  static std::weak_ptr<gloo::transport::Device> device;
  const std::lock_guard lock(mutex);
  auto found = device.lock();
  if (!found) {
    const auto interface = env::text("GLOO_SOCKET_IFNAME");
    GlooDoor door;
    try {
      found = interface ? c10d::ProcessGroupGloo::createDeviceForInterface(split(*interface, ',').front())
                        : c10d::ProcessGroupGloo::createDeviceForHostname(setup.address);
    } catch (const std::exception& error) {
      throw InputError(
          "comm",
          concat("cannot listen on ", interface ? "interface " + *interface : setup.address, ": ", plain_text(error),
                 "."),
          "Set GLOO_SOCKET_IFNAME to the network interface that reaches the other hosts (ip addr lists them).");
    }
    door.find();
    device = found;
  }
  return found;
}

/// Our deadline names the ranks, gloo's only ends its threads: ours must come first.
constexpr std::chrono::seconds kAfterOurs{1};

/// A tag that no message of ours uses.
constexpr int kBreakTag = std::numeric_limits<int>::max();

/// Ends all operations of the group, current and later, with an error, on this rank and its peers.
///
/// gloo has no call for it: closing its connections leaves waiting threads asleep until their timeout.
/// But a missing message makes it break the context at the deadline, so this receives one that is never
/// sent.
void break_context(c10d::ProcessGroupGloo& gloo) {
  for (int peer = 0; peer < gloo.getSize(); ++peer) {
    if (peer == gloo.getRank()) {
      continue;
    }
    try {
      std::vector<at::Tensor> nothing = {at::empty({1}, at::kByte)};
      gloo.recv(nothing, peer, kBreakTag)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // Either this broke the context, or the connection to this peer was broken before.
    }
  }
}

class GlooBackend : public Backend {
 public:
  explicit GlooBackend(const GroupSetup& setup)
      : Backend(setup.rank, setup.size), timeout_(setup.patience), shared_(std::make_shared<GlooShared>()) {
    auto options = c10d::ProcessGroupGloo::Options::create();
    const GlooDoor::Opening opening;
    const ProbedConnections probed;
    options->timeout = setup.patience + kAfterOurs;
    options->devices.push_back(shared_device(setup));
    options->threads = 2;
    auto store = c10::make_intrusive<c10d::PrefixStore>(setup.store.prefix(), setup.store.handle().for_c10d());
    try {
      gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank_, size_, options);
    } catch (const std::exception& error) {
      throw Trouble(Trouble::Kind::lost, plain_text(error));
    }
    shared_->break_context = [gloo = gloo_.get()] { break_context(*gloo); };
    guard_gloo_thread(shared_);
    // gloo may defer its last handshakes to the first operation, where they can outlast the deadline.
    try {
      barrier()->wait();
    } catch (...) {
      const std::lock_guard lock(shared_->mutex);
      if (shared_->wedged) {
        gloo_.release(); // as in close(): its own threads may still use it
      }
      throw;
    }
    gloo_->setTimeout(setup.timeout + kAfterOurs);
    timeout_ = setup.timeout;
    bytes_sent_ = 0;
  }

  ~GlooBackend() override { GlooBackend::close(); }

  const char* name() const override { return "gloo"; }

  std::shared_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    count(2 * share(tensor));
    std::vector<at::Tensor> tensors = {flat(tensor)};
    return collective([&](c10d::ProcessGroupGloo& gloo) { return gloo.allreduce(tensors, options); });
  }

  std::shared_ptr<Pending> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    const auto element = element_of(out.scalar_type(), "reduce_scatter", "gloo");
    count(share(in));
    at::Tensor source = flat(in);
    at::Tensor parts = at::empty_like(source);
    std::vector<int64_t> equal;
    return collective([&](c10d::ProcessGroupGloo& gloo) { return gloo.alltoall_base(parts, source, equal, equal); },
                      [out = flat(out), parts, element, op] { combine_slices(out, parts, element, op); });
  }

  std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) override {
    count(share(out));
    at::Tensor target = flat(out);
    at::Tensor source = flat(in);
    return collective([&](c10d::ProcessGroupGloo& gloo) { return gloo._allgather_base(target, source); });
  }

  std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    count(children_in_binomial_tree((rank_ - root + size_) % size_, size_) * static_cast<int64_t>(tensor.nbytes()));
    std::vector<at::Tensor> tensors = {flat(tensor)};
    return collective([&](c10d::ProcessGroupGloo& gloo) { return gloo.broadcast(tensors, options); });
  }

  std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) override {
    count(share(in));
    at::Tensor target = flat(out);
    at::Tensor source = flat(in);
    std::vector<int64_t> equal;
    return collective([&](c10d::ProcessGroupGloo& gloo) { return gloo.alltoall_base(target, source, equal, equal); });
  }

  std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) override {
    count(static_cast<int64_t>(tensor.nbytes()));
    std::vector<at::Tensor> tensors = {flat(tensor)};
    return message([&](c10d::ProcessGroupGloo& gloo) { return gloo.send(tensors, to, tag); });
  }

  std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) override {
    std::vector<at::Tensor> tensors = {flat(tensor)};
    return message([&](c10d::ProcessGroupGloo& gloo) { return gloo.recv(tensors, from, tag); });
  }

  std::shared_ptr<Pending> barrier() override {
    // Not gloo's own barrier: that first waits on a worker thread for all earlier operations, without a deadline.
    return all_reduce(at::zeros({1}, at::kByte), ReduceOp::max);
  }

  void interrupt() override { shared_->interrupt(); }

  void close() override {
    const std::lock_guard closing(close_mutex_);
    if (!gloo_) {
      return;
    }
    interrupt();
    std::unique_lock lock(shared_->mutex);
    shared_->break_connections(lock);
    if (shared_->wedged) {
      gloo_.release(); // lost for the rest of the process
      return;
    }
    lock.unlock();
    gloo_.reset();
  }

 private:
  void count(int64_t bytes) { bytes_sent_ += bytes; }

  template <typename Start>
  c10::intrusive_ptr<c10d::Work> start(const Start& begin) {
    if (!gloo_) {
      throw Trouble(Trouble::Kind::lost, "the group is closed");
    }
    {
      const std::lock_guard lock(shared_->mutex);
      if (shared_->wedged) { // its locks are never released
        throw Trouble(Trouble::Kind::lost, "gloo's thread has ended with an error");
      }
    }
    try {
      return begin(*gloo_);
    } catch (const std::exception& error) {
      throw Trouble(Trouble::Kind::lost, plain_text(error));
    }
  }
  template <typename Start>
  std::shared_ptr<Pending> collective(const Start& begin, std::function<void()> after = nullptr) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    return std::make_shared<GlooCollective>(start(begin), shared_, deadline, std::move(after));
  }
  template <typename Start>
  std::shared_ptr<Pending> message(const Start& begin) {
    return std::make_shared<GlooMessage>(start(begin), shared_, timeout_);
  }

  std::chrono::milliseconds timeout_;
  std::shared_ptr<GlooShared> shared_;
  std::mutex close_mutex_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

} // namespace

std::shared_ptr<Backend> connect_gloo(const GroupSetup& setup) {
  return std::make_shared<GlooBackend>(setup);
}

} // namespace trireme::comm
