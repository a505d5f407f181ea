#pragma once

#include <trireme/comm/world.h>
#include <trireme/extensions/horovod/request.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

/// Horovod's interface for libtorch loops: operations by name, which ranks may request in any order.
///
///   namespace hvd = trireme::horovod;
///   hvd::init();
///   hvd::broadcast_parameters(model->named_parameters(), 0);
///   hvd::DistributedOptimizer optimizer(adam, model->named_parameters());   // distributed_optimizer.h
///   ... loss.backward(); optimizer.step(); ...
///   hvd::shutdown();
///
/// A thread per process set sends requests to the other ranks, and carries out what all have requested, small tensors
/// fused. Operations without a name are numbered by kind, so all ranks must call them in the same order. f_async()
/// returns a handle for synchronize().
///
/// Gradients: f() is differentiable; its gradient is that of the sum of all ranks' losses. Either all ranks or none
/// must pass a tensor that requires gradients, and run backward through the results in the same order. f_async() and
/// f_() (in place) are not differentiable.
///
/// Errors, in synchronize(): InputError if ranks disagree about a tensor (which, and which ranks), PeerError if a rank
/// is lost. A call before init() is an InputError. Source: Sergeev and Del Balso 2018, arXiv:1802.05799.
namespace trireme::horovod {

/// Connects the ranks, as comm::World::connect() does. Collective; a second call does nothing. Reads
/// HOROVOD_FUSION_THRESHOLD (bytes, 128 MiB), HOROVOD_CYCLE_TIME (milliseconds, 1), HOROVOD_STALL_CHECK_TIME_SECONDS
/// (60), HOROVOD_STALL_CHECK_DISABLE, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (0: never) and HOROVOD_TIMELINE (rank 0's
/// file).
void init(const comm::WorldOptions& options = {});
/// The same with ranks that are connected already. `world` must outlive shutdown().
void init(comm::World& world);
/// Ends all exchanges: further requests of other ranks fail. Call it before main() returns.
void shutdown();
bool is_initialized();

int rank();
int size();
int local_rank();
int local_size();
/// Number of the host, and number of hosts, among those with a rank of this local_rank().
int cross_rank();
int cross_size();

/// A set of ranks that run operations among themselves.
class ProcessSet {
 public:
  /// All ranks.
  ProcessSet() = default;

  /// Whether this rank belongs to it.
  bool included() const;
  /// This rank's number in it. Errors: InputError for a rank that does not belong to it.
  int rank() const;
  int size() const;
  /// Ranks of the world, ascending.
  std::vector<int> ranks() const;

  class State;
  explicit ProcessSet(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Collective over all ranks, with the same ranks on each. Valid until shutdown().
ProcessSet add_process_set(std::vector<int> ranks);

class Task;
/// An operation in progress.
using Handle = std::shared_ptr<Task>;

/// Type of tensors in communication.
enum class Compression { none, fp16 };

struct AllreduceOptions {
  /// Empty: "allreduce.N".
  std::string name = {};
  /// Op::average is over the ranks that have not joined; floating point only. Op::adasum needs a number of ranks that
  /// is a power of two.
  Op op = Op::average;
  double prescale = 1;
  double postscale = 1;
  Compression compression = Compression::none;
  ProcessSet process_set = {};
};

/// Waits for the operation and returns its result, the first one of a group. On a GPU it is ready for what is next on
/// the current stream.
at::Tensor synchronize(const Handle& handle);
std::vector<at::Tensor> synchronize_all(const Handle& handle);
/// Whether synchronize() would return at once.
bool poll(const Handle& handle);

Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});
at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
/// In place.
Handle allreduce_async_(at::Tensor tensor, const AllreduceOptions& options = {});
at::Tensor allreduce_(at::Tensor tensor, const AllreduceOptions& options = {});
/// Tensors of one type that are reduced as one operation: all of them or none.
Handle grouped_allreduce_async(const std::vector<at::Tensor>& tensors, const AllreduceOptions& options = {});
std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors, const AllreduceOptions& options = {});

/// The sum or average of sparse tensors (COO), coalesced: indices and values of all ranks are gathered. Cost for R rows
/// per rank: that of an allgather of R rows and their indices. Not after a join(), when a rank has nothing to gather.
struct SparseHandle {
  Handle indices, values;
  std::vector<int64_t> sizes;
  at::ScalarType type;
  double scale;
};
SparseHandle sparse_allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});
at::Tensor sparse_allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
at::Tensor synchronize(const SparseHandle& handle);

/// Concatenates all ranks' tensors in dim 0, in which their sizes may differ.
Handle allgather_async(const at::Tensor& tensor, const std::string& name = "", const ProcessSet& set = {});
at::Tensor allgather(const at::Tensor& tensor, const std::string& name = "", const ProcessSet& set = {});

/// `root`: a rank of the process set.
Handle broadcast_async(const at::Tensor& tensor, int root, const std::string& name = "", const ProcessSet& set = {});
at::Tensor broadcast(const at::Tensor& tensor, int root, const std::string& name = "", const ProcessSet& set = {});
/// In place.
Handle broadcast_async_(at::Tensor tensor, int root, const std::string& name = "", const ProcessSet& set = {});
at::Tensor broadcast_(at::Tensor tensor, int root, const std::string& name = "", const ProcessSet& set = {});

/// Sends splits[r] rows of dim 0 to each rank r; empty: equal parts. Returns the received rows, concatenated by rank,
/// and their number per rank.
std::pair<at::Tensor, std::vector<int64_t>> alltoall(const at::Tensor& tensor, const std::vector<int64_t>& splits = {},
                                                     const std::string& name = "", const ProcessSet& set = {});

/// This rank's rows, in dim 0, of the sum or average. The first ranks get one more if they do not divide evenly.
at::Tensor reducescatter(const at::Tensor& tensor, const AllreduceOptions& options = {});

void barrier(const ProcessSet& set = {});

/// Broadcasts the root's bytes: an object that the program serializes. Horovod's broadcast_object.
std::string broadcast_bytes(const std::string& bytes, int root, const std::string& name = "");

/// Declares that this rank has no more data, and waits for the others, whose sums and averages continue without it.
/// Returns the rank that joined last, which has trained longest. Afterwards the numbers of operations without a name
/// restart at 1 on all ranks.
int join();

/// Copies the tensors of `root` to all ranks, in any order of the list.
void broadcast_parameters(const std::vector<std::pair<std::string, at::Tensor>>& parameters, int root);
template <typename NamedTensors> // of Module::named_parameters() or named_buffers()
void broadcast_parameters(const NamedTensors& parameters, int root) {
  std::vector<std::pair<std::string, at::Tensor>> list;
  for (const auto& item : parameters) {
    list.emplace_back(item.key(), item.value());
  }
  broadcast_parameters(list, root);
}
/// Broadcasts group options and states of any torch optimizer with parameters on one device.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root);

/// Writes this rank's operations as a Chrome trace, with the times of negotiation and execution. stop_timeline() or
/// shutdown() writes the file.
void start_timeline(const std::filesystem::path& file);
void stop_timeline();

} // namespace trireme::horovod
