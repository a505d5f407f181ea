#include <trireme/horovod/horovod.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/device/choose.h>
#include <trireme/horovod/exchange.h>
#include <trireme/monitor/chrome_trace.h>

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>

namespace trireme::horovod {

/// The exchange of a process set on this rank.
class ProcessSet::State {
 public:
  State(std::vector<int> ranks, const comm::Group& group, int rank, const ExchangeOptions& options) : ranks(std::move(ranks)), rank(rank) {
    if (rank >= 0) {
      exchange = std::make_unique<Exchange>(group, options);
    }
  }
  /// Gives an operation without a name its number: last, so that one that is refused on this rank alone takes none.
  std::shared_ptr<Task> submit(Request request, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs = {}, std::optional<at::ScalarType> type = std::nullopt) {
    if (request.name.empty()) {
      request.name = concat(name_of(request.kind), '.', ++numbers[static_cast<size_t>(request.kind)]);
    }
    return exchange->submit(std::move(request), std::move(inputs), std::move(outputs), type);
  }
  void number_anew() {
    for (auto& number : numbers) {
      number = 0;
    }
  }

  const std::vector<int> ranks; // of the world
  const int rank; // in the set; -1: not in it
  std::unique_ptr<Exchange> exchange;

 private:
  std::array<std::atomic<int64_t>, 8> numbers{};
};

namespace {

/// From init() to shutdown().
struct Job {
  std::optional<comm::World> own;
  comm::World* world = nullptr;
  ExchangeOptions options;
  std::shared_ptr<ProcessSet::State> everyone;
  std::vector<std::shared_ptr<ProcessSet::State>> sets;
  std::optional<std::filesystem::path> timeline;
  int cross_rank = 0;
  int cross_size = 1;
};

std::mutex job_mutex;
std::unique_ptr<Job> job;

Job& started() {
  const std::lock_guard lock(job_mutex);
  if (!job) {
    throw InputError("horovod", "a call before init() or after shutdown()", "Call trireme::horovod::init() first.");
  }
  return *job;
}

ExchangeOptions options_of_environment() {
  ExchangeOptions options;
  options.fusion_bytes = env::integer("HOROVOD_FUSION_THRESHOLD").value_or(options.fusion_bytes);
  if (const auto cycle = env::text("HOROVOD_CYCLE_TIME")) { // may be a fraction
    double milliseconds = 0;
    const auto [end, error] = std::from_chars(cycle->data(), cycle->data() + cycle->size(), milliseconds);
    if (error != std::errc() || end != cycle->data() + cycle->size() || !(milliseconds >= 0 && milliseconds < 1e6)) {
      throw InputError("horovod", concat("HOROVOD_CYCLE_TIME is \"", *cycle, "\""), "Give it milliseconds, for example 1.");
    }
    options.cycle = std::chrono::microseconds(std::llround(1000 * milliseconds));
  }
  options.stall_check = std::chrono::seconds(env::flag("HOROVOD_STALL_CHECK_DISABLE") ? 0 : env::integer("HOROVOD_STALL_CHECK_TIME_SECONDS").value_or(60));
  options.stall_shutdown = std::chrono::seconds(env::integer("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS").value_or(0));
  return options;
}

std::optional<at::Device> device_of(const comm::World& world) {
  const auto kind = device::accelerator();
  if (!kind) {
    return std::nullopt;
  }
  if (*kind != at::kCUDA) {
    return device::with_index(at::Device(*kind));
  }
  try {
    const at::Device device = device::choose("auto", world.local_rank(), world.local_size());
    return device.is_cpu() ? std::nullopt : std::optional(device);
  } catch (const InputError&) { // more ranks than cards: tensors of the host, or of cards that the program chooses
    return std::nullopt;
  }
}

// Hosts as the ranks lie on them: in blocks, or in turns.
void find_hosts(Job& job) {
  const comm::Group& group = job.world->group();
  const at::Tensor mine = at::full({1}, job.world->local_rank(), at::kLong);
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, mine, "local ranks").wait();
  const at::Tensor same = all.eq(mine);
  job.cross_rank = same.slice(0, 0, group.rank()).sum().item<int>();
  job.cross_size = same.sum().item<int>();
}

void start(std::unique_ptr<Job> made) {
  made->options = options_of_environment();
  const comm::World& world = *made->world;
  made->options.device = device_of(world);
  find_hosts(*made);
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  made->everyone = std::make_shared<ProcessSet::State>(std::move(all), world.group(), world.rank(), made->options);
  const auto file = env::text("HOROVOD_TIMELINE");
  {
    const std::lock_guard lock(job_mutex);
    job = std::move(made);
  }
  if (file && rank() == 0) {
    start_timeline(*file);
  }
}

ProcessSet::State& state_of(const ProcessSet& set) {
  Job& now = started();
  return set.state() ? *set.state() : *now.everyone;
}

ProcessSet::State& member_of(const ProcessSet& set) {
  ProcessSet::State& state = state_of(set);
  if (!state.exchange) {
    throw InputError("horovod", concat("rank ", rank(), " does not belong to the process set, or it has ended with shutdown()"), "Ask ProcessSet::included() first.");
  }
  return state;
}

std::string quoted(const Request& request) {
  return request.name.empty() ? concat(name_of(request.kind), " without a name") : concat(name_of(request.kind), " of \"", request.name, '"');
}

Request request_of(Kind kind, const std::string& name, const std::vector<at::Tensor>& tensors) {
  Request request;
  request.kind = kind;
  request.name = name;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      throw InputError("horovod", concat(quoted(request), ": an undefined tensor"), "Give a tensor of zeros where there is nothing.");
    }
    if (tensor.layout() != at::kStrided) {
      throw InputError("horovod", concat(quoted(request), ": a sparse tensor"), "Make it dense.");
    }
    if (tensor.scalar_type() != tensors.front().scalar_type() || tensor.device() != tensors.front().device()) {
      throw InputError("horovod", concat(quoted(request), ": tensors of different types or devices"), "Group those that have the same.");
    }
    request.shapes.push_back(tensor.sizes().vec());
  }
  if (!tensors.empty()) {
    request.type = tensors.front().scalar_type();
    request.on_device = !tensors.front().is_cpu();
  }
  return request;
}

void check_rows(const Request& request) {
  if (request.shapes.front().empty()) {
    throw InputError("horovod", concat(quoted(request), ": a tensor without dims"), "Reshape it to [1].");
  }
}

Request reduction_of(Kind kind, const std::vector<at::Tensor>& tensors, const AllreduceOptions& options) {
  if (tensors.empty()) {
    throw InputError("horovod", concat(name_of(kind), " of no tensors"), "Give at least one.");
  }
  Request request = request_of(kind, options.name, tensors);
  request.op = options.op;
  request.prescale = options.prescale;
  request.postscale = options.postscale;
  if (!tensors.front().is_floating_point() && (options.op == Op::average || options.op == Op::adasum || options.prescale != 1 || options.postscale != 1)) {
    throw InputError("horovod", concat(quoted(request), ": ", name_of(options.op), " of numbers of type ", at::toString(request.type)), "Use Op::sum without factors for whole numbers, or a floating-point tensor.");
  }
  const int ranks = static_cast<int>(state_of(options.process_set).ranks.size());
  if (options.op == Op::adasum && (ranks & (ranks - 1)) != 0) {
    throw InputError("horovod", concat("Adasum over ", ranks, " ranks: their number is to be a power of two"), "Use Op::average, or another number of ranks.");
  }
  return request;
}

std::vector<at::Tensor> compressed(const std::vector<at::Tensor>& tensors, Compression compression) {
  if (compression == Compression::none) {
    return tensors;
  }
  std::vector<at::Tensor> halves;
  for (const at::Tensor& tensor : tensors) {
    halves.push_back(tensor.defined() && tensor.is_floating_point() ? tensor.to(at::kHalf) : tensor);
  }
  return halves;
}

Handle reduce_async(Kind kind, std::vector<at::Tensor> tensors, const AllreduceOptions& options, bool in_place) {
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.defined() ? tensor.detach() : tensor;
  }
  std::vector<at::Tensor> sent = compressed(tensors, options.compression);
  Request request = reduction_of(kind, sent, options); // refuses undefined ones
  if (kind == Kind::reducescatter) {
    check_rows(request);
    if (options.op != Op::average && options.op != Op::sum) {
      throw InputError("horovod", concat("reducescatter with ", name_of(options.op)), "It knows sums and averages.");
    }
  }
  const at::ScalarType type = tensors.front().scalar_type();
  return member_of(options.process_set).submit(std::move(request), std::move(sent), in_place ? std::move(tensors) : std::vector<at::Tensor>(), type);
}

Handle submit_one(Kind kind, const at::Tensor& tensor, const std::string& name, const ProcessSet& set, const std::function<void(Request&)>& more = nullptr, std::vector<at::Tensor> outputs = {}) {
  const at::Tensor input = tensor.defined() ? tensor.detach() : tensor;
  Request request = request_of(kind, name, {input});
  if (more) {
    more(request);
  }
  return member_of(set).submit(std::move(request), {input}, std::move(outputs));
}

} // namespace

void init(const comm::WorldOptions& options) {
  if (!is_initialized()) {
    auto made = std::make_unique<Job>();
    made->own.emplace(comm::World::connect(options));
    made->world = &*made->own;
    start(std::move(made));
  }
}

void init(comm::World& world) {
  if (!is_initialized()) {
    auto made = std::make_unique<Job>();
    made->world = &world;
    start(std::move(made));
  }
}

void shutdown() {
  stop_timeline();
  std::unique_ptr<Job> last;
  {
    const std::lock_guard lock(job_mutex);
    last = std::move(job);
  }
  if (last) {
    for (const auto& set : last->sets) {
      set->exchange.reset();
    }
    last->everyone->exchange.reset();
  }
}

bool is_initialized() {
  const std::lock_guard lock(job_mutex);
  return job != nullptr;
}

int rank() {
  return started().world->rank();
}
int size() {
  return started().world->size();
}
int local_rank() {
  return started().world->local_rank();
}
int local_size() {
  return started().world->local_size();
}
int cross_rank() {
  return started().cross_rank;
}
int cross_size() {
  return started().cross_size;
}

bool ProcessSet::included() const {
  return state_of(*this).rank >= 0;
}
int ProcessSet::rank() const {
  if (!included()) {
    throw InputError("horovod", concat("rank ", horovod::rank(), " does not belong to the process set"), "Ask included() first.");
  }
  return state_of(*this).rank;
}
int ProcessSet::size() const {
  return static_cast<int>(state_of(*this).ranks.size());
}
std::vector<int> ProcessSet::ranks() const {
  return state_of(*this).ranks;
}

ProcessSet add_process_set(std::vector<int> ranks) {
  Job& now = started();
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty() || std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size() || ranks.front() < 0 || ranks.back() >= size()) {
    throw InputError("horovod", concat("a process set of ", ranks.size(), " ranks that are not different numbers from 0 to ", size() - 1), "Name each rank once.");
  }
  const auto found = std::find(ranks.begin(), ranks.end(), rank());
  const int mine = found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  const comm::Group group = now.world->group().subgroup(ranks, "process set");
  auto state = std::make_shared<ProcessSet::State>(std::move(ranks), group, mine, now.options);
  now.sets.push_back(state);
  return ProcessSet(std::move(state));
}

std::vector<at::Tensor> synchronize_all(const Handle& handle) {
  handle->wait();
  return handle->operands.outputs;
}
at::Tensor synchronize(const Handle& handle) {
  return synchronize_all(handle).front();
}
bool poll(const Handle& handle) {
  return handle->done();
}

Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return reduce_async(Kind::allreduce, {tensor}, options, false);
}
at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return synchronize(allreduce_async(tensor, options));
}
Handle allreduce_async_(at::Tensor tensor, const AllreduceOptions& options) {
  return reduce_async(Kind::allreduce, {std::move(tensor)}, options, true);
}
at::Tensor allreduce_(at::Tensor tensor, const AllreduceOptions& options) {
  synchronize(allreduce_async_(tensor, options));
  return tensor;
}
Handle grouped_allreduce_async(const std::vector<at::Tensor>& tensors, const AllreduceOptions& options) {
  return reduce_async(Kind::allreduce, tensors, options, false);
}
std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors, const AllreduceOptions& options) {
  return synchronize_all(grouped_allreduce_async(tensors, options));
}

Handle allgather_async(const at::Tensor& tensor, const std::string& name, const ProcessSet& set) {
  return submit_one(Kind::allgather, tensor, name, set, [](Request& request) { check_rows(request); });
}
at::Tensor allgather(const at::Tensor& tensor, const std::string& name, const ProcessSet& set) {
  return synchronize(allgather_async(tensor, name, set));
}

namespace {

Handle broadcast_into(const at::Tensor& tensor, int root, const std::string& name, const ProcessSet& set, std::vector<at::Tensor> outputs) {
  return submit_one(
      Kind::broadcast, tensor, name, set,
      [&](Request& request) {
        if (root < 0 || root >= set.size()) {
          throw InputError("horovod", concat(quoted(request), " from rank ", root, ", and there are ", set.size()), "Name a rank from 0 on.");
        }
        request.root = root;
      },
      std::move(outputs));
}

} // namespace

Handle broadcast_async(const at::Tensor& tensor, int root, const std::string& name, const ProcessSet& set) {
  return broadcast_into(tensor, root, name, set, {});
}
at::Tensor broadcast(const at::Tensor& tensor, int root, const std::string& name, const ProcessSet& set) {
  return synchronize(broadcast_async(tensor, root, name, set));
}
Handle broadcast_async_(at::Tensor tensor, int root, const std::string& name, const ProcessSet& set) {
  return broadcast_into(tensor, root, name, set, {tensor.defined() ? tensor.detach() : tensor});
}
at::Tensor broadcast_(at::Tensor tensor, int root, const std::string& name, const ProcessSet& set) {
  synchronize(broadcast_async_(tensor, root, name, set));
  return tensor;
}

std::pair<at::Tensor, std::vector<int64_t>> alltoall(const at::Tensor& tensor, const std::vector<int64_t>& splits, const std::string& name, const ProcessSet& set) {
  const Handle handle = submit_one(Kind::alltoall, tensor, name, set, [&](Request& request) {
    check_rows(request);
    const int64_t rows = request.shapes.front()[0];
    request.splits = splits;
    if (splits.empty()) {
      if (rows % set.size() != 0) {
        throw InputError("horovod", concat(quoted(request), ": ", rows, " rows do not divide by ", set.size(), " ranks"), "Give splits.");
      }
      request.splits.assign(static_cast<size_t>(set.size()), rows / set.size());
    }
    const bool fits = std::ssize(request.splits) == set.size() && std::all_of(request.splits.begin(), request.splits.end(), [](int64_t split) { return split >= 0; }) &&
                      std::accumulate(request.splits.begin(), request.splits.end(), int64_t{0}) == rows;
    if (!fits) {
      throw InputError("horovod", concat(quoted(request), ": ", request.splits.size(), " splits for ", set.size(), " ranks and ", rows, " rows"),
                       "Give one number of rows for each rank, which add up to all of them.");
    }
  });
  at::Tensor result = synchronize(handle);
  return {std::move(result), handle->operands.received};
}

at::Tensor reducescatter(const at::Tensor& tensor, const AllreduceOptions& options) {
  return synchronize(reduce_async(Kind::reducescatter, {tensor}, options, false)).to(tensor.scalar_type());
}

void barrier(const ProcessSet& set) {
  member_of(set).submit(request_of(Kind::barrier, "", {}), {})->wait();
}

int join() {
  const Handle handle = member_of({}).submit(request_of(Kind::join, "join", {}), {});
  handle->wait();
  state_of({}).number_anew(); // ranks have done different numbers of operations
  return handle->last_joined;
}

void broadcast_parameters(const std::vector<std::pair<std::string, at::Tensor>>& parameters, int root) {
  std::vector<Handle> handles;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.defined()) {
      handles.push_back(broadcast_async_(tensor, root, "broadcast." + name));
    }
  }
  for (const Handle& handle : handles) {
    handle->wait();
  }
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root) {
  std::string bytes;
  if (rank() == root) {
    std::ostringstream stream;
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to(stream);
    bytes = stream.str();
  }
  const at::Tensor length = broadcast(at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong), root, "length of the optimizer's state");
  at::Tensor all = at::empty({length.item<int64_t>()}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), all.mutable_data_ptr<uint8_t>());
  broadcast_(all, root, "the optimizer's state");
  if (rank() != root) {
    std::istringstream stream(std::string(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()), static_cast<size_t>(all.numel())));
    torch::serialize::InputArchive archive;
    archive.load_from(stream, optimizer.param_groups().front().params().front().device()); // the root's may be another one
    optimizer.state().clear(); // what the root has not got
    optimizer.load(archive);
  }
}

void start_timeline(const std::filesystem::path& file) {
  started().timeline = file;
  monitor::tracer().start(rank());
}

void stop_timeline() {
  const std::lock_guard lock(job_mutex);
  if (job && job->timeline) {
    monitor::tracer().stop();
    monitor::tracer().write(*job->timeline);
    job->timeline.reset();
  }
}

} // namespace trireme::horovod
