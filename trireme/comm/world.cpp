#include <trireme/comm/world.h>

#include <trireme/base/cores.h>
#include <trireme/base/env.h>
#include <trireme/base/fault.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/comm/backends.h>
#include <trireme/comm/environment.h>
#include <trireme/comm/group_state.h>
#include <trireme/comm/null/null_backend.h>
#include <trireme/comm/opening.h>
#include <trireme/comm/rendezvous.h>
#include <trireme/comm/wait_graph.h>
#include <trireme/device/choose.h>

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;

/// Time-out while late ranks live.
constexpr milliseconds kEnd{std::chrono::minutes(30)};
/// The same for operations on a device: NCCL's default in PyTorch.
constexpr milliseconds kEndOnDevice{std::chrono::minutes(10)};
constexpr milliseconds kWarnAfter{60'000};
/// For ranks that have not connected at the start, which cannot be queried.
constexpr milliseconds kStart{60'000};
/// Between two checks whether waiting for members is still useful.
constexpr milliseconds kLook{200};
/// For answers of ranks that have not joined.
constexpr milliseconds kAnswers{1000};

/// Kinds of devices that tensors may be on beside the CPU.
constexpr std::array kAccelerators = {at::kCUDA, at::kHIP, at::kXPU, at::kMPS, at::kMTIA, at::kHPU, at::kPrivateUse1};

std::optional<milliseconds> seconds_from(const char* variable, const std::string& unset) {
  const auto text = env::text(variable);
  if (!text) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double seconds = std::strtod(text->c_str(), &end);
  if (*end != '\0' || !(seconds > 0) || seconds > 1e8) {
    throw InputError("comm", concat(variable, " must be a number of seconds above 0, it is \"", *text, "\"."), unset);
  }
  return milliseconds(std::max<int64_t>(1, static_cast<int64_t>(seconds * 1000)));
}

std::optional<milliseconds> timeout_of(const WorldOptions& options) {
  return options.timeout ? options.timeout
                         : seconds_from("TRIREME_TIMEOUT",
                                        "Unset it for 30 minutes while the ranks that are late live, and 60 seconds "
                                        "where no rank will come.");
}

WaitLimits limits_of(const WorldOptions& options, std::optional<milliseconds> timeout) {
  const auto from_environment =
      options.warn_after ? std::nullopt : seconds_from("TRIREME_WARN_AFTER", "Unset it for 60 seconds.");
  const milliseconds end = timeout.value_or(kEnd);
  const milliseconds warn_after = options.warn_after.value_or(from_environment.value_or(kWarnAfter));
  return {.end = end,
          .end_on_device = timeout.value_or(kEndOnDevice),
          .warn_after = warn_after < end ? warn_after : milliseconds(0),
          .gives_up = !timeout};
}

std::string backend_from(const WorldOptions& options) {
  return options.backend == "auto" ? env::text("TRIREME_BACKEND").value_or("auto") : options.backend;
}

/// gloo's writes to sockets raise SIGPIPE when the peer has just died, which would end this process without a message.
/// Stays ignored: gloo's threads may outlive the world after a failure.
void ignore_broken_pipes() {
  struct sigaction current{};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

} // namespace

class World::Impl {
 public:
  Impl(Environment environment, const WorldOptions& options)
      : environment_(std::move(environment)),
        given_timeout_(timeout_of(options)),
        limits_(limits_of(options, given_timeout_)),
        backend_(backend_from(options)),
        exceptions_at_start_(std::uncaught_exceptions()) {
    log::set_rank(environment_.rank, environment_.size);
    if (!environment_.note.empty()) {
      log::info(environment_.note);
    }
    fault::arm_from_environment(environment_.rank, environment_.size);
    if (backend_ != "auto") {
      find_backend(backend_); // fails before any rank waits
    }
    if (environment_.size > 1) {
      ignore_broken_pipes();
      meeting_ = std::make_unique<Meeting>(meet(environment_, patience()));
      watch_ = std::make_shared<Watch>(meeting_->watch_store, environment_.rank, environment_.size,
                                       meeting_->store_host, limits_);
    }
    std::vector<int> all(environment_.size);
    std::iota(all.begin(), all.end(), 0);
    world_ = open(all, "world", "world/0");
  }

  ~Impl() { close(); }

  Group open(const std::vector<int>& ranks, const std::string& name, const std::string& key) {
    const auto open_another = [this](const auto&... args) { return open(args...); };
    const auto place = std::find(ranks.begin(), ranks.end(), environment_.rank);
    if (place == ranks.end() || ranks.size() == 1) {
      return keep(std::make_shared<Group::State>(name, key, std::vector<int>{environment_.rank},
                                                 std::make_unique<Routes>(make_null_backend()), limits_.end, nullptr,
                                                 environment_.size, open_another));
    }
    GroupSetup setup{.name = name,
                     .store = meeting_->store.scoped("group/" + key + "/"),
                     .rank = static_cast<int>(place - ranks.begin()),
                     .size = static_cast<int>(ranks.size()),
                     .members = ranks,
                     .hosts = {},
                     .address = meeting_->address,
                     .timeout = limits_.end,
                     .patience = patience()};
    for (const int rank : ranks) {
      setup.hosts.push_back(meeting_->hosts[static_cast<size_t>(rank)]);
    }
    if (const Gathered all = gather(setup, key); !all.missing.empty()) {
      refuse_to_open(setup, all);
    }
    auto routes = std::make_unique<Routes>(connect(setup, candidates(setup, at::kCPU)), device_routes(setup));
    auto state =
        std::make_shared<Group::State>(name, key, ranks, std::move(routes), limits_.end, watch_, environment_.size,
                                       open_another, launch_order(setup), limits_.end_on_device);
    watch_->add(state);
    return keep(std::move(state));
  }

  void close() {
    if (closed_) {
      return;
    }
    closed_ = true;
    if (watch_) {
      const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
      watch_->leave(unwinding ? "an exception ended it; see its output" : "", limits_.end);
    }
    for (const auto& [members, order] : orders_) {
      order->close();
    }
    for (auto state = states_.rbegin(); state != states_.rend(); ++state) {
      (*state)->close();
    }
    watch_.reset();
    meeting_.reset();
  }

  const Environment& environment() const { return environment_; }
  const Meeting* meeting() const { return meeting_.get(); }
  const Group& world() const { return world_; }

 private:
  /// Keeps libtorch's own lines about broken connections ("recvValue failed on SocketImpl...") off
  /// stderr while a world lives: our errors name the rank, those a file descriptor. TORCH_CPP_LOG_LEVEL
  /// brings them back.
  class QuietLibtorch {
   public:
    QuietLibtorch() {
#ifndef C10_USE_GLOG
      if (!env::text("TORCH_CPP_LOG_LEVEL")) {
        before_ = FLAGS_caffe2_log_level;
        FLAGS_caffe2_log_level = std::max(before_, kErrorLevel);
      }
#endif
    }
    ~QuietLibtorch() {
#ifndef C10_USE_GLOG
      if (!env::text("TORCH_CPP_LOG_LEVEL")) {
        FLAGS_caffe2_log_level = before_;
      }
#endif
    }
    QuietLibtorch(const QuietLibtorch&) = delete;
    QuietLibtorch& operator=(const QuietLibtorch&) = delete;

   private:
    static constexpr int kErrorLevel = 2;
    int before_ = 0;
  };

  /// Backends for the tensors of such a device: the requested one if it is among these, otherwise those that
  /// suit.
  std::vector<const BackendEntry*> candidates(const GroupSetup& setup, at::DeviceType device) const {
    if (backend_ != "auto" && moves(find_backend(backend_), device)) {
      return {&find_backend(backend_)};
    }
    std::vector<const BackendEntry*> found;
    for (const auto& entry : backends()) {
      // A device's backend is taken if it is available, because no other rank can know how opening it ends; the next
      // one is for devices that have none.
      if (moves(entry, device) && entry.suits(setup) && (device == at::kCPU || (found.empty() && entry.available()))) {
        found.push_back(&entry);
      }
    }
    return found;
  }

  /// The backend that all members can use for their devices. Another member may lack this one's choice, or share its
  /// GPU, which that backend may refuse: an error if it was requested by name. Also distinguishes a member that does
  /// not arrive from one that cannot connect.
  const BackendEntry* agree(GroupSetup& setup, const BackendEntry* choice) {
    if (const Gathered all = gather(setup, setup.store.prefix());
        !all.missing.empty()) { // the operation that opens the backend names the missing ones
      throw Trouble(all.in_time ? Trouble::Kind::lost : Trouble::Kind::deadline, "a member did not come");
    }
    const bool fits = suits_all(*choice, backend_ == choice->name, setup,
                                exchange(setup, "come", announcement(*choice, setup.device)));
    if (!fits && setup.rank == 0 && choice->card != nullptr &&
        reported_.insert(concat(choice->name, " does not fit")).second) {
      log::warning("group \"", setup.name, "\" goes through host memory (staged): ", choice->name,
                   " needs its own device for each rank, and some rank has none");
    }
    return fits ? choice : &find_backend("staged");
  }

  static bool moves(const BackendEntry& entry, at::DeviceType device) {
    return entry.device ? *entry.device == device : device != at::kCPU;
  }

  std::map<at::DeviceType, Routes::Open> device_routes(const GroupSetup& setup) {
    std::map<at::DeviceType, Routes::Open> routes;
    for (const at::DeviceType type : kAccelerators) {
      if (!candidates(setup, type).empty()) {
        routes[type] = [this, setup](at::Device device) {
          GroupSetup own = setup;
          own.device = device;
          own.timeout = limits_.end_on_device;
          own.store = setup.store.scoped(concat(c10::DeviceTypeName(device.type(), /*lower_case=*/true), "/"));
          const BackendEntry* const entry = agree(own, candidates(own, device.type()).front());
          own.connect_host = [this, setup](const std::string& suffix) {
            GroupSetup host = setup;
            host.name = concat(setup.name, " (", suffix, ")");
            host.store = setup.store.scoped(suffix + "/");
            return connect(host, candidates(host, at::kCPU));
          };
          return connect(own, {entry});
        };
      }
    }
    return routes;
  }

  /// Of all groups of these ranks; null without TRIREME_CHECK.
  std::shared_ptr<LaunchOrder> launch_order(const GroupSetup& setup) {
    if (!env::flag("TRIREME_CHECK")) {
      return nullptr;
    }
    std::shared_ptr<LaunchOrder>& order = orders_[setup.members];
    if (!order) {
      order = std::make_shared<LaunchOrder>(setup.members, [this, setup] {
        GroupSetup own = setup;
        own.name = concat(setup.name, " (launch order)");
        std::vector<std::string> ranks;
        for (const int rank : setup.members) {
          ranks.push_back(std::to_string(rank));
        }
        own.store = meeting_->store.scoped(concat("order/", join(ranks, "."), '/'));
        return connect(own, candidates(own, at::kCPU));
      });
    }
    return order;
  }

  /// Over the first of the candidates that can be connected. All members decide that in common, while they connect: the
  /// others cannot see what one of them lacks (a limit of its shell).
  std::shared_ptr<Backend> connect(const GroupSetup& setup, const std::vector<const BackendEntry*>& candidates) {
    for (const BackendEntry* entry : candidates) {
      try {
        return entry->connect(setup);
      } catch (const Trouble& trouble) {
        if (entry != candidates.back()) {
          if (setup.rank == 0 && reported_.insert(concat(entry->name, trouble.happened)).second) {
            log::warning("group \"", setup.name, "\" cannot use ", entry->name,
                         " and goes on with the next backend: ", trouble.happened);
          }
          continue;
        }
        throw PeerError(
            "comm",
            concat("group \"", setup.name, "\" (world ranks ", name_ranks(setup.members).substr(6),
                   ") could not be connected over ", entry->name, ": ", trouble.happened, "."),
            "Look at the output of the other ranks; between hosts check GLOO_SOCKET_IFNAME and the firewall.");
      }
    }
    throw Error("comm", concat("no backend suits group \"", setup.name, "\"."));
  }

  /// Time that ranks wait for each other at the start, and present members for each other's answers.
  milliseconds patience() const { return given_timeout_.value_or(kStart); }

  struct Gathered {
    /// World ranks that have not joined.
    std::vector<int> missing = {};
    /// They will not join, which was found before the time-out.
    bool in_time = false;
    double seconds = 0;
  };

  /// Waits for every member: a missing one is named instead of a broken handshake, and a late one gets time. `key` is
  /// unique.
  Gathered gather(GroupSetup& setup, const std::string& key) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < setup.size; ++rank) {
      keys.push_back("here/" + std::to_string(rank));
    }
    const auto opening = std::make_shared<Opening>("open/" + key, setup.name, setup.members);
    const auto deadline = std::chrono::steady_clock::now() + limits_.end;
    setup.store.set(keys[setup.rank], "1");
    watch_->add(opening);
    while (!opening->over()) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
      if (setup.store.wait(keys, std::clamp(left, milliseconds(1), kLook))) {
        return {};
      }
      if (left <= kLook) {
        break;
      }
    }
    Gathered all{.in_time = opening->over(),
                 .seconds = opening->over() ? opening->seconds() : static_cast<double>(limits_.end.count()) / 1000};
    for (int rank = 0; rank < setup.size; ++rank) {
      if (!setup.store.find(keys[rank])) {
        all.missing.push_back(setup.members[rank]);
      }
    }
    return all;
  }

  [[noreturn]] void refuse_to_open(const GroupSetup& setup, const Gathered& all) {
    const RollCall roll_call = watch_->roll_call(all.missing, "", kAnswers);
    std::map<int, PeerView> ranks = roll_call.peers;
    ranks[environment_.rank] = roll_call.own;
    std::vector<std::string> causes;
    for (const int rank : all.missing) {
      const auto found = roll_call.peers.find(rank);
      const PeerView peer = found == roll_call.peers.end() ? PeerView() : found->second;
      const bool ended = peer.left || peer.vanished();
      const WaitGraph graph = ended ? WaitGraph() : follow_waits(ranks, rank);
      const auto wait = graph.waits.find(rank);
      const std::string what = !peer.error.empty()
                                   ? concat(ended ? " has ended with an error: " : " has given up: ", peer.error)
                               : wait == graph.waits.end() ? (ended ? " has ended" : " has not come")
                                                           : " has not come: it " + describe(wait->second);
      causes.push_back(concat("rank ", rank, what));
    }
    throw PeerError(
        "comm",
        concat("group \"", setup.name, "\" is not open after ", format_seconds(all.seconds), " on rank ",
               environment_.rank, " of ", environment_.size, ": ", join(causes, ", "), "."),
        "Every rank of the world must make the same groups in the same order; look at the output of the missing ones.");
  }

  Group keep(std::shared_ptr<Group::State> state) {
    states_.push_back(state);
    return Group(std::move(state));
  }

  QuietLibtorch quiet_;
  Environment environment_;
  /// From the options or the environment.
  std::optional<milliseconds> given_timeout_;
  WaitLimits limits_;
  std::string backend_;
  int exceptions_at_start_;
  std::unique_ptr<Meeting> meeting_;
  std::shared_ptr<Watch> watch_;
  std::map<std::vector<int>, std::shared_ptr<LaunchOrder>> orders_; // by members
  std::vector<std::shared_ptr<Group::State>> states_;
  Group world_;
  /// Reasons why backends could not be used that are reported already.
  std::set<std::string> reported_;
  bool closed_ = false;
};

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

WorldOptions with_timeout(WorldOptions options, milliseconds timeout) {
  if (!options.timeout && !env::text("TRIREME_TIMEOUT")) {
    options.timeout = timeout;
  }
  return options;
}

World World::connect(const WorldOptions& options) {
  return connect(read_environment([](const std::string& name) { return env::text(name.c_str()); }), options);
}

World World::connect(const Environment& environment, const WorldOptions& options) {
  World world(std::make_unique<Impl>(environment, options));
  // If each rank uses all cores, they wait for each other's threads and are many times slower.
  if (world.local_size() > 1 && !env::text("OMP_NUM_THREADS")) {
    at::set_num_threads(std::max(1, usable_cores() / world.local_size()));
  }
  return world;
}

int World::rank() const {
  return impl_->environment().rank;
}

int World::size() const {
  return impl_->environment().size;
}

int World::local_rank() const {
  return impl_->meeting() != nullptr ? impl_->meeting()->local_rank : std::max(0, impl_->environment().local_rank);
}

int World::local_size() const {
  return impl_->meeting() != nullptr ? impl_->meeting()->local_size : 1;
}

at::Device World::device() const {
  return device::choose("auto", local_rank(), local_size());
}

const Group& World::group() const {
  return impl_->world();
}

Group World::subgroup(const std::vector<int>& ranks, const std::string& name) {
  return group().subgroup(ranks, name);
}

void World::close() {
  impl_->close();
}

} // namespace trireme::comm
