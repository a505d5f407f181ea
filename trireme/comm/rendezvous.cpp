#include <trireme/comm/rendezvous.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/comm/explain.h>
#include <trireme/comm/meeting_file.h>
#include <trireme/comm/store_handle.h>
#include <trireme/store/sockets.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <future>
#include <thread>

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using store::Endpoint;

/// A store counts as lost one second after the longest operation: the operation's own error is more precise and must
/// come first.
constexpr milliseconds kAfterOperations{1000};

/// Ranks of a job connect within seconds of each other.
constexpr milliseconds kSayWhoIsMissing{5000};
constexpr size_t kNamedRanks = 8;

/// The address of the store, and the secret.
struct Place {
  Endpoint endpoint;
  store::Secret secret;
  std::string job;
  std::string prefix;
  bool of_agent = false;
};

/// The store of torchrun's agent. `left`: to reach it; `patience`: for every call.
Store open_agent_store(const Place& place, milliseconds left, milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.endpoint.port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = left;
  // Runs in its own thread: c10d waits without a limit for a listener that accepts and does not answer.
  auto opened = std::make_shared<std::promise<c10::intrusive_ptr<c10d::Store>>>();
  auto result = opened->get_future();
  std::thread([opened, options, host = place.endpoint.host] {
    try {
      opened->set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      opened->set_exception(std::current_exception());
    }
  }).detach();
  std::string problem = "it does not answer";
  if (result.wait_for(left) == std::future_status::ready) {
    try {
      auto agent = result.get();
      agent->setTimeout(patience);
      return Store(handle_of(std::move(agent)), place.prefix);
    } catch (const std::exception& error) {
      problem = plain_text(error);
    }
  }
  throw PeerError("comm",
                  concat("the store of torchrun's agent on ", place.endpoint.host, ":", place.endpoint.port,
                         " cannot be reached (", problem, ")."),
                  "TORCHELASTIC_USE_AGENT_STORE=True means that there is one: unset it if torchrun has not started "
                  "this process, otherwise look at its output.");
}

/// The secret of the job; if this rank was given none, the one that rank 0 wrote for the ranks of its host. Over a
/// network there is none.
store::SecretSource secret_of(const Place& place) {
  return store::SecretSource([&place](int socket) {
    if (place.secret.empty() && store::peer_on_loopback(socket)) {
      const std::string file = meeting_path({store::peer_name(socket), place.endpoint.port}, place.job);
      const auto note = find_meeting(file);
      if (!note || note->secret.empty()) {
        throw store::ConnectError(
            store::ConnectError::Reason::wrong_secret,
            concat("the secret is wrong: this rank was given none, and rank 0 has left none in ", file, "."),
            "Start all ranks of a host as one user with the same TMPDIR, or give every rank the same "
            "TRIREME_SECRET_FILE. If another "
            "job uses that port, choose another MASTER_PORT.");
      }
      return note->secret; // not kept: the next attempt may reach another server
    }
    return place.secret;
  });
}

Store open_store(Place& place, const Environment& environment, Clock::time_point deadline, milliseconds timeout) {
  const milliseconds patience = timeout + kAfterOperations;
  if (place.of_agent) {
    return open_agent_store(place, std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), patience);
  }
  try {
    return Store(handle_of(store::Client::connect(place.endpoint, secret_of(place), place.job, deadline, patience)),
                 place.prefix);
  } catch (const store::ConnectError& error) {
    if (error.reason == store::ConnectError::Reason::nobody) {
      throw PeerError("comm",
                      concat("rank ", environment.rank, " of ", environment.size, ": ",
                             error.happened.substr(0, error.happened.size() - 1), ", so rank 0 has not come."),
                      "Start rank 0 too, with the same MASTER_ADDR and MASTER_PORT, and see that no firewall is "
                      "between the hosts.");
    }
    const std::string happened = concat("rank ", environment.rank, " of ", environment.size, ": ", error.happened);
    if (error.exit_code() == 2) {
      throw InputError("comm", happened, error.next);
    }
    throw PeerError("comm", happened, error.next);
  }
}

/// The launcher's socket, or one on the environment's address; sets `endpoint` to its address.
int open_door(const Environment& environment, Endpoint& endpoint) {
  int listening = -1;
  if (environment.listen_fd) {
    listening = *environment.listen_fd;
    endpoint.port = store::bound_port(listening);
    if (endpoint.port == 0) {
      throw InputError("comm", concat("TRIREME_LISTEN_FD=", listening, " is not a listening socket in this process."),
                       "trireme launch sets it; unset it when you start ranks by hand.");
    }
    if (endpoint.host.empty()) {
      endpoint.host = "127.0.0.1";
    }
  } else if (endpoint.host.empty()) {
    endpoint = {"127.0.0.1", 0};
    listening = store::listen_on(endpoint);
    endpoint.port = store::bound_port(listening);
  } else {
    listening = store::listen_on(endpoint);
  }
  return listening;
}

/// Writes a note for the other ranks of this host with the address and the secret, unless they have both. If the job
/// has no secret, one is made: otherwise every user of this host could join.
PublishedMeeting leave_note(int listening, const Environment& environment, Place& place) {
  const bool made = place.secret.empty() && store::bound_to_loopback(listening);
  const bool address_unknown = environment.host.empty() && !environment.listen_fd;
  if (!made && !address_unknown) {
    return {};
  }
  if (made) {
    place.secret = store::Secret::random();
  }
  return {address_unknown ? meeting_path(environment.meeting_file)
                          : meeting_path({store::bound_host(listening), place.endpoint.port}, place.job),
          MeetingNote{place.endpoint, made ? place.secret : store::Secret()}};
}

/// Warns of settings that the user may not have intended.
void check_door(int listening, const Environment& environment, const Place& place) {
  if (place.secret.empty()) {
    log::warning("the ranks connect on ", place.endpoint.host, ":", place.endpoint.port,
                 " without a secret: any program that reaches that port can join the job. "
                 "Start with trireme launch, or give every rank TRIREME_SECRET_FILE=FILE, a file of 32 random bytes "
                 "with mode 0600.");
  }
  if (store::bound_to_loopback(listening) && !store::is_loopback(place.endpoint.host) && environment.local_size >= 0 &&
      environment.local_size < environment.size) {
    log::warning("MASTER_ADDR=", place.endpoint.host,
                 " is a loopback address on this host (see /etc/hosts), so ranks on other hosts cannot come. "
                 "Set it to the address under which they reach this host.");
  }
}

bool runs_store(const Environment& environment) {
  return environment.rank == 0 && !environment.store_of_agent && !environment.store_elsewhere;
}

Place place_of(const Environment& environment, Clock::time_point deadline) {
  const bool host = runs_store(environment);
  Place place{.endpoint = {environment.host, environment.port},
              .secret = environment.store_of_agent ? store::Secret() : store::Secret::from_environment(),
              .job = environment.job,
              .prefix = "trireme/" + environment.key_prefix,
              .of_agent = environment.store_of_agent};
  if (!host && place.endpoint.host.empty()) {
    const MeetingNote note = read_meeting(meeting_path(environment.meeting_file), deadline);
    place.endpoint = note.endpoint;
    place.secret = place.secret.empty() ? note.secret : place.secret;
  }
  return place;
}

void claim(Store& store, const Environment& environment) {
  const std::string rank = std::to_string(environment.rank);
  const int64_t claims = store.add("claim/" + rank, 1);
  if (claims > 1) {
    throw InputError(
        "comm",
        concat("two processes claim to be rank ", rank, " of ", environment.size, " (", environment.source, ")."),
        "Give every process its own rank, or start them with trireme launch; if an old job still runs, choose another "
        "MASTER_PORT.");
  }
  store.set("here/" + rank, concat(environment.size, " ", store::host_identity()));
}

std::vector<std::string> here_keys(const Environment& environment) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < environment.size; ++rank) {
    keys.push_back("here/" + std::to_string(rank));
  }
  return keys;
}

/// The host of each rank, "" for absent ones, after checking that all agree on the world size.
std::vector<std::string> hosts_of(Store& store, const Environment& environment) {
  std::vector<std::string> hosts;
  for (const auto& here : store.find_all(here_keys(environment))) {
    const size_t space = here ? here->find(' ') : 0;
    if (here && here->substr(0, space) != std::to_string(environment.size)) {
      throw InputError("comm",
                       concat("rank ", hosts.size(), " has a world of ", here->substr(0, space), " ranks, rank ",
                              environment.rank, " one of ", environment.size, "."),
                       "Start all ranks with the same WORLD_SIZE.");
    }
    hosts.push_back(here ? here->substr(space + 1) : "");
  }
  return hosts;
}

std::vector<int> missing_ranks(Store& store, const Environment& environment) {
  const std::vector<std::string> hosts = hosts_of(store, environment);
  std::vector<int> missing;
  for (int rank = 0; rank < environment.size; ++rank) {
    if (hosts[static_cast<size_t>(rank)].empty()) {
      missing.push_back(rank);
    }
  }
  return missing;
}

/// Rank 0 reports the ranks that it waits for: a user who meant one rank would otherwise learn it after the time-out.
void say_who_is_missing(Store& store, const Environment& environment, const Place& place, milliseconds timeout) {
  const std::vector<int> missing = environment.rank == 0 ? missing_ranks(store, environment) : std::vector<int>();
  if (missing.empty()) {
    return;
  }
  const bool slurm = environment.source == "Slurm";
  const std::string who = missing.size() <= kNamedRanks ? name_ranks(missing) : concat(missing.size(), " ranks");
  log::warning("rank 0 of ", environment.size,
               environment.source.empty()
                   ? ""
                   : concat(" (", environment.source, slurm ? ": SLURM_PROCID and SLURM_NTASKS)" : ")"),
               " waits for ", who, " at ", place.endpoint.host, ":", place.endpoint.port, ", for ",
               format_seconds(static_cast<double>(timeout.count()) / 1000), " in all.",
               slurm ? " To train alone, unset SLURM_STEP_ID; srun starts ranks." : "");
}

void wait_for_all(Store& store, const Environment& environment, const Place& place, Clock::time_point deadline,
                  milliseconds timeout) {
  const auto wait_until = [&](Clock::time_point until) {
    const auto left = std::chrono::duration_cast<milliseconds>(std::min(until, deadline) - Clock::now());
    return store.wait(here_keys(environment), std::max(left, milliseconds(1)));
  };
  const auto soon = Clock::now() + kSayWhoIsMissing;
  if (soon < deadline) {
    if (wait_until(soon)) {
      return;
    }
    say_who_is_missing(store, environment, place, timeout);
  }
  if (wait_until(deadline)) {
    return;
  }
  const std::vector<int> missing = missing_ranks(store, environment);
  throw PeerError("comm",
                  concat(name_ranks(missing), missing.size() == 1 ? " has" : " have", " not come within ",
                         format_seconds(static_cast<double>(timeout.count()) / 1000), "; ",
                         environment.size - missing.size(), " of ", environment.size, " ranks are connected."),
                  "Look at the output of the missing ones, or whether they were started at all; TRIREME_TIMEOUT sets "
                  "the seconds to wait.");
}

} // namespace

Meeting meet(const Environment& environment, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  Place place = place_of(environment, deadline);
  std::unique_ptr<store::Server> server;
  PublishedMeeting note;
  if (runs_store(environment)) {
    const int listening = open_door(environment, place.endpoint);
    note = leave_note(listening, environment, place);
    check_door(listening, environment, place);
    server = std::make_unique<store::Server>(listening, store::ServerOptions{.secret = place.secret, .job = place.job});
  }
  Store store = open_store(place, environment, deadline, timeout);
  claim(store, environment);
  wait_for_all(store, environment, place, deadline, timeout);
  if (environment.host.empty()) {
    note = {}; // all have read it; a rank that connects again must wait for the next one
  }
  const std::vector<std::string> names = hosts_of(store, environment);
  std::vector<int> hosts;
  for (const auto& name : names) {
    hosts.push_back(static_cast<int>(std::find(names.begin(), names.end(), name) - names.begin()));
  }
  const int own = hosts[static_cast<size_t>(environment.rank)];
  const auto before = static_cast<int>(std::count(hosts.begin(), hosts.begin() + environment.rank, own));
  const auto local = static_cast<int>(std::count(hosts.begin(), hosts.end(), own));
  const bool one_host = local == environment.size;
  return {.server = std::move(server),
          .note = std::move(note),
          .store = store,
          .watch_store = open_store(place, environment, Clock::now() + timeout, timeout),
          .store_host = place.of_agent || environment.store_elsewhere ? -1 : 0,
          .local_rank = environment.local_rank >= 0 ? environment.local_rank : before,
          .local_size = environment.local_size > 0 ? environment.local_size : local,
          .hosts = std::move(hosts),
          .address = one_host ? "127.0.0.1" : store::own_address_towards(place.endpoint.host)};
}

} // namespace trireme::comm
