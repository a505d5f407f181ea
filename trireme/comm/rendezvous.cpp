#include <trireme/comm/rendezvous.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/comm/explain.h>
#include <trireme/comm/meeting_file.h>
#include <trireme/comm/sockets.h>
#include <trireme/comm/store_handle.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kRetry{10};
/// Single calls to a store that answers are immediate; only waiting for ranks takes the user's timeout.
constexpr milliseconds kStoreCall{30'000};

Store open_store(const Endpoint& endpoint, std::optional<int> listen_fd, const std::string& prefix, milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(endpoint.port);
  options.isServer = listen_fd.has_value();
  options.masterListenFd = listen_fd;
  options.waitWorkers = false;
  options.timeout = kStoreCall;
  // In a thread of its own: c10d waits for ever for the answer of a stranger that accepts and says nothing.
  auto opened = std::make_shared<std::promise<std::shared_ptr<Store::Handle>>>();
  auto result = opened->get_future();
  std::thread([opened, options, host = endpoint.host] {
    try {
      auto handle = std::make_shared<Store::Handle>();
      handle->store = c10::make_intrusive<c10d::TCPStore>(host, options);
      opened->set_value(std::move(handle));
    } catch (...) {
      opened->set_exception(std::current_exception());
    }
  }).detach();
  std::string problem = "it does not answer";
  if (result.wait_for(patience) == std::future_status::ready) {
    try {
      return Store(result.get(), prefix);
    } catch (const std::exception& error) {
      problem = plain_text(error);
    }
  }
  throw PeerError("comm", concat("what listens on ", endpoint.host, ":", endpoint.port, " is not the meeting point of this job (", problem, ")."),
                  "Another program may use this port: choose another MASTER_PORT. Or rank 0 has just ended: look at its output.");
}

/// Waits until someone listens, so that the store's client never meets a closed door (it would sleep a second).
void wait_for_listener(const Endpoint& endpoint, const Environment& environment, Clock::time_point deadline, milliseconds timeout) {
  while (!accepts_connections(endpoint)) {
    if (Clock::now() >= deadline) {
      throw PeerError("comm", concat("rank ", environment.rank, " of ", environment.size, ": nobody listens on ", endpoint.host, ":",
                                     endpoint.port, " after ", format_seconds(static_cast<double>(timeout.count()) / 1000), ", so rank 0 has not come."),
                      "Start rank 0 too, with the same MASTER_ADDR and MASTER_PORT, and see that no firewall is between the hosts.");
    }
    std::this_thread::sleep_for(kRetry);
  }
}

struct Opened {
  Store store;
  Endpoint endpoint;
  int store_host;
};

Opened open_as_host(const Environment& environment, const std::string& prefix, milliseconds timeout) {
  Endpoint endpoint{environment.host, environment.port};
  int descriptor = -1;
  if (environment.listen_fd) {
    descriptor = *environment.listen_fd;
    endpoint.port = bound_port(descriptor);
    if (endpoint.port == 0) {
      throw InputError("comm", concat("TRIREME_LISTEN_FD=", descriptor, " is not a listening socket in this process."),
                       "trireme launch sets it; unset it when you start ranks by hand.");
    }
    if (endpoint.host.empty()) {
      endpoint.host = "127.0.0.1";
    }
  } else if (environment.host.empty()) {
    endpoint = {"127.0.0.1", 0};
    descriptor = listen_on(endpoint);
    endpoint.port = bound_port(descriptor);
    publish_meeting(environment.meeting_file, endpoint);
  } else {
    descriptor = listen_on(endpoint);
  }
  return {open_store(endpoint, descriptor, prefix, timeout), endpoint, 0};
}

Opened open_store_for(const Environment& environment, Clock::time_point deadline, milliseconds timeout) {
  const std::string prefix = "trireme/" + environment.key_prefix;
  if (environment.rank == 0 && !environment.store_of_agent) {
    return open_as_host(environment, prefix, timeout);
  }
  Endpoint endpoint{environment.host, environment.port};
  if (endpoint.host.empty()) {
    endpoint = read_meeting(environment.meeting_file, deadline);
  }
  wait_for_listener(endpoint, environment, deadline, timeout);
  return {open_store(endpoint, std::nullopt, prefix, timeout), endpoint, environment.store_of_agent ? -1 : 0};
}

void claim(Store& store, const Environment& environment) {
  const std::string rank = std::to_string(environment.rank);
  const int64_t claims = store.add("claim/" + rank, 1);
  if (claims > 1) {
    throw InputError("comm", concat("two processes claim to be rank ", rank, " of ", environment.size, " (", environment.source, ")."),
                     "Give every process its own rank, or start them with trireme launch; if an old job still runs, choose another MASTER_PORT.");
  }
  store.set("here/" + rank, concat(environment.size, " ", host_identity()));
}

std::string here_key(int rank) {
  return "here/" + std::to_string(rank);
}

/// The host of a rank that is here, after checking that it means the same world.
std::string host_of(Store& store, const Environment& environment, int rank) {
  const std::string here = store.find(here_key(rank)).value_or("");
  const size_t space = here.find(' ');
  if (here.substr(0, space) != std::to_string(environment.size)) {
    throw InputError("comm", concat("rank ", rank, " says the world has ", here.substr(0, space), " ranks, rank ", environment.rank, " says ",
                                    environment.size, "."),
                     "Start all ranks with the same WORLD_SIZE.");
  }
  return here.substr(space + 1);
}

void wait_for_all(Store& store, const Environment& environment, Clock::time_point deadline, milliseconds timeout) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < environment.size; ++rank) {
    keys.push_back(here_key(rank));
  }
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  if (store.wait(keys, std::max(left, milliseconds(1)))) {
    return;
  }
  std::vector<int> missing;
  for (int rank = 0; rank < environment.size; ++rank) {
    if (!store.find(here_key(rank))) {
      missing.push_back(rank);
    } else {
      host_of(store, environment, rank);
    }
  }
  throw PeerError("comm", concat(name_ranks(missing), missing.size() == 1 ? " has" : " have", " not come within ",
                                 format_seconds(static_cast<double>(timeout.count()) / 1000), "; ", environment.size - missing.size(), " of ",
                                 environment.size, " ranks are here."),
                  "Look at the output of the missing ones, or whether they were started at all; TRIREME_TIMEOUT sets the seconds to wait.");
}

} // namespace

Meeting meet(const Environment& environment, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  Opened opened = open_store_for(environment, deadline, timeout);
  claim(opened.store, environment);
  const bool wrote_file = environment.rank == 0 && environment.host.empty() && !environment.listen_fd;
  try {
    wait_for_all(opened.store, environment, deadline, timeout);
  } catch (...) {
    if (wrote_file) {
      remove_meeting(environment.meeting_file);
    }
    throw;
  }
  if (wrote_file) {
    remove_meeting(environment.meeting_file); // everybody has read it
  }
  std::vector<std::string> names;
  std::vector<int> hosts;
  for (int rank = 0; rank < environment.size; ++rank) {
    names.push_back(host_of(opened.store, environment, rank));
    hosts.push_back(static_cast<int>(std::find(names.begin(), names.end(), names.back()) - names.begin()));
  }
  const int own = hosts[static_cast<size_t>(environment.rank)];
  const auto before = static_cast<int>(std::count(hosts.begin(), hosts.begin() + environment.rank, own));
  const auto local = static_cast<int>(std::count(hosts.begin(), hosts.end(), own));
  const bool one_host = local == environment.size;
  return {.store = opened.store,
          .watch_store = open_store(opened.endpoint, std::nullopt, opened.store.prefix(), timeout),
          .store_host = opened.store_host,
          .local_rank = environment.local_rank >= 0 ? environment.local_rank : before,
          .local_size = environment.local_size > 0 ? environment.local_size : local,
          .hosts = std::move(hosts),
          .address = one_host ? "127.0.0.1" : own_address_towards(opened.endpoint.host)};
}

} // namespace trireme::comm
