#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/device/choose.h>
#include <trireme/extensions/horovod/horovod.h>
#include <trireme/extensions/horovod/process_set.h>
#include <trireme/monitor/chrome_trace.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <mutex>
#include <numeric>
#include <set>

namespace trireme::horovod {
namespace {

/// State between init() and shutdown().
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
      throw InputError("horovod", concat("HOROVOD_CYCLE_TIME is \"", *cycle, "\""),
                       "Set it to milliseconds, for example 1.");
    }
    options.cycle = std::chrono::microseconds(std::llround(1000 * milliseconds));
  }
  options.stall_check = std::chrono::seconds(
      env::flag("HOROVOD_STALL_CHECK_DISABLE") ? 0 : env::integer("HOROVOD_STALL_CHECK_TIME_SECONDS").value_or(60));
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
    const at::Device device = world.device();
    return device.is_cpu() ? std::nullopt : std::optional(device);
  } catch (const InputError&) { // more ranks than GPUs: tensors on the host, or on GPUs that the program chooses
    return std::nullopt;
  }
}

// Counts the hosts that have a rank with this local rank, however ranks are placed.
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

} // namespace

ProcessSet::State& state_of(const ProcessSet& set) {
  Job& now = started();
  return set.state() ? *set.state() : *now.everyone;
}

ProcessSet::State& member_of(const ProcessSet& set) {
  ProcessSet::State& state = state_of(set);
  if (!state.exchange) {
    throw InputError("horovod",
                     concat("rank ", rank(), " does not belong to the process set, or it has ended with shutdown()"),
                     "Ask ProcessSet::included() first.");
  }
  return state;
}

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
    throw InputError("horovod", concat("rank ", horovod::rank(), " does not belong to the process set"),
                     "Ask included() first.");
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
  if (ranks.empty() || std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size() || ranks.front() < 0 ||
      ranks.back() >= size()) {
    throw InputError(
        "horovod",
        concat("a process set of ", ranks.size(), " ranks, which are not distinct numbers from 0 to ", size() - 1),
        "Name each rank once.");
  }
  const auto found = std::find(ranks.begin(), ranks.end(), rank());
  const int mine = found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  const comm::Group group = now.world->group().subgroup(ranks, "process set");
  auto state = std::make_shared<ProcessSet::State>(std::move(ranks), group, mine, now.options);
  now.sets.push_back(state);
  return ProcessSet(std::move(state));
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
