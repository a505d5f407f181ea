#include <trireme/comm/mpi/mpi_backend.h>

#include <trireme/comm/closed_forms.h>
#include <trireme/comm/mpi/mpi_pending.h>
#include <trireme/comm/reduce.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <unistd.h>

#include <algorithm>

namespace trireme::comm {
namespace {

using namespace mpi;

/// Every MPI has at least these.
constexpr size_t kTags = 32767;

/// True if every member on this host can have a core. Counts all cores of the host: mpirun binds each rank to one or
/// two of them.
bool fits(const GroupSetup& setup) {
  const int here = setup.hosts[static_cast<size_t>(setup.rank)];
  return std::count(setup.hosts.begin(), setup.hosts.end(), here) <= ::sysconf(_SC_NPROCESSORS_ONLN);
}

class MpiBackend : public Backend {
 public:
  MpiBackend(const GroupSetup& setup, Communicator communicator)
      : Backend(setup.rank, setup.size),
        core_(std::make_shared<Core>(setup.timeout, fits(setup))),
        patience_(setup.patience),
        exceptions_at_start_(std::uncaught_exceptions()) {
    core_->communicator = communicator;
    Runtime::process().group_opened();
    const std::lock_guard lock(Runtime::process().mutex);
    largest_tag_ = Runtime::process().functions().largest_tag();
  }
  ~MpiBackend() override { MpiBackend::close(); }

  const char* name() const override { return "mpi"; }

  std::shared_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    const auto element = element_of(tensor.scalar_type(), "all_reduce", "MPI");
    return start("MPI_Iallreduce", 2 * share(tensor), {tensor.detach()},
                 [&](const Functions& mpi, Operation* operation) {
                   return mpi.all_reduce(core_->communicator, tensor.data_ptr(), tensor.numel(), element,
                                         combine_of(op), operation);
                 });
  }

  std::shared_ptr<Pending> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    const auto element = element_of(in.scalar_type(), "reduce_scatter", "MPI");
    const bool narrow = element == kernels::Element::f16 || element == kernels::Element::bf16;
    const at::Tensor target = out.detach();
    if (narrow) {
      const at::Tensor parts = at::empty_like(in.detach());
      return start(
          "MPI_Ialltoall", share(in), {in.detach(), target, parts},
          [&](const Functions& mpi, Operation* operation) {
            return mpi.all_to_all(core_->communicator, in.const_data_ptr(), parts.data_ptr(), slice(in), operation);
          },
          [target, parts, element, op] { combine_slices(target, parts, element, op); });
    }
    // MPI forbids a result inside the input.
    const bool inside = starts_inside(out, in);
    const at::Tensor result = inside ? at::empty_like(target) : target;
    std::function<void()> copy_back;
    if (inside) {
      copy_back = [target, result] {
        const at::NoGradGuard no_grad;
        target.copy_(result);
      };
    }
    return start(
        "MPI_Ireduce_scatter_block", share(in), {in.detach(), result},
        [&](const Functions& mpi, Operation* operation) {
          return mpi.reduce_scatter(core_->communicator, in.const_data_ptr(), result.data_ptr(), out.numel(), element,
                                    combine_of(op), operation);
        },
        copy_back);
  }

  std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) override {
    return start("MPI_Iallgather", share(out), {out.detach(), in.detach()},
                 [&](const Functions& mpi, Operation* operation) {
                   return mpi.all_gather(core_->communicator, in.const_data_ptr(), out.data_ptr(),
                                         static_cast<int64_t>(in.nbytes()), operation);
                 });
  }

  std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) override {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    const int distance = (rank_ - root + size_) % size_;
    return start("MPI_Ibcast", bytes * children_in_binomial_tree(distance, size_), {tensor.detach()},
                 [&](const Functions& mpi, Operation* operation) {
                   return mpi.broadcast(core_->communicator, tensor.data_ptr(), bytes, root, operation);
                 });
  }

  std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) override {
    return start(
        "MPI_Ialltoall", share(in), {out.detach(), in.detach()}, [&](const Functions& mpi, Operation* operation) {
          return mpi.all_to_all(core_->communicator, in.const_data_ptr(), out.data_ptr(), slice(in), operation);
        });
  }

  std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) override {
    check_tag(tag);
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    return start("MPI_Isend", bytes, {tensor.detach()}, [&](const Functions& mpi, Operation* operation) {
      return mpi.send(core_->communicator, tensor.const_data_ptr(), bytes, to, tag, operation);
    });
  }

  std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) override {
    check_tag(tag);
    return start("MPI_Irecv", 0, {tensor.detach()}, [&](const Functions& mpi, Operation* operation) {
      return mpi.recv(core_->communicator, tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), from, tag,
                      operation);
    });
  }

  std::shared_ptr<Pending> barrier() override {
    return start("MPI_Ibarrier", 0, {}, [&](const Functions& mpi, Operation* operation) {
      return mpi.barrier(core_->communicator, operation);
    });
  }

  void interrupt() override { core_->interrupted = true; }

  void close() override {
    Runtime& runtime = Runtime::process();
    {
      const std::lock_guard lock(runtime.mutex);
      if (closed_) {
        return;
      }
      closed_ = true;
    }
    const bool failed =
        core_->interrupted.exchange(true) || core_->under_way > 0 || std::uncaught_exceptions() > exceptions_at_start_;
    if (failed) {
      runtime.give_up();
    } else {
      const std::lock_guard lock(runtime.mutex);
      runtime.functions().close(core_->communicator);
    }
    runtime.group_closed(patience_);
  }

 private:
  int64_t slice(const at::Tensor& whole) const { return static_cast<int64_t>(whole.nbytes()) / size_; }
  static bool starts_inside(const at::Tensor& part, const at::Tensor& whole) {
    const auto* first = static_cast<const std::byte*>(whole.const_data_ptr());
    const auto* start = static_cast<const std::byte*>(part.const_data_ptr());
    return start >= first && start < first + whole.nbytes();
  }
  void check_tag(int tag) const {
    if (tag < 0 || tag > largest_tag_) {
      throw Error("comm", concat("tag ", tag, " is not possible over MPI."),
                  concat("Use tags from 0 to ", largest_tag_, "."));
    }
  }

  template <typename Begin>
  std::shared_ptr<Pending> start(const char* call, int64_t bytes, std::vector<at::Tensor> memory, const Begin& begin,
                                 std::function<void()> after = nullptr) {
    Runtime& runtime = Runtime::process();
    Operation operation = nullptr;
    {
      const std::lock_guard lock(runtime.mutex);
      if (closed_) {
        throw Trouble(Trouble::Kind::lost, "the group is closed");
      }
      if (core_->interrupted) {
        throw Trouble(Trouble::Kind::interrupted, "interrupted");
      }
      runtime.check(begin(runtime.functions(), &operation), call);
      bytes_sent_ += bytes;
    }
    return std::make_shared<MpiPending>(core_, operation, std::move(memory), std::move(after));
  }

  std::shared_ptr<Core> core_;
  std::chrono::milliseconds patience_;
  int exceptions_at_start_;
  int64_t largest_tag_ = 0;
  bool closed_ = false;
};

/// Each member's rank in MPI_COMM_WORLD, usually but not always its world rank here.
std::vector<int> places(const GroupSetup& group) {
  GroupSetup setup = group;
  Runtime& runtime = Runtime::process();
  std::vector<int> ranks;
  for (const auto& place : exchange(setup, "mpi", std::to_string(runtime.rank()))) {
    ranks.push_back(std::stoi(place));
  }
  if (runtime.size() < setup.size) {
    throw InputError("comm",
                     concat("backend \"mpi\" over ", runtime.library(), " sees ", runtime.size(), " of the ",
                            setup.size, " ranks of group \"", setup.name, "\": another launcher started them."),
                     "Start all ranks with one mpirun, of the same MPI.");
  }
  return ranks;
}

} // namespace

bool mpi_available() {
  return Runtime::process().available();
}

std::shared_ptr<Backend> connect_mpi(const GroupSetup& setup) {
  Runtime& runtime = Runtime::process();
  runtime.start();
  const auto ranks = places(setup);
  // The members share a tag, so that groups opened at the same time are not confused.
  const auto tag = static_cast<int>(std::hash<std::string>()(setup.store.prefix()) % kTags);
  Communicator communicator = nullptr;
  {
    const std::lock_guard lock(runtime.mutex);
    runtime.check(runtime.functions().open(ranks.data(), setup.size, tag, &communicator), "MPI_Comm_create_group");
  }
  return std::make_shared<MpiBackend>(setup, communicator);
}

} // namespace trireme::comm
