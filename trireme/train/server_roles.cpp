#include <trireme/train/server_roles.h>

#include <trireme/train/read_run.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/run_token.h>
#include <trireme/base/text.h>
#include <trireme/config/run_file.h>
#include <trireme/extensions/averaging/elastic_averaging_sync.h>
#include <trireme/extensions/server/parameter_server.h>
#include <trireme/extensions/server/rpc/grpc/grpc_transport.h>
#include <trireme/extensions/server/rpc/tcp/tcp.h>
#include <trireme/extensions/server/server_sync.h>
#include <trireme/extensions/server/snapshot.h>
#include <trireme/store/secret.h>
#include <trireme/store/server.h>

#include <ATen/Parallel.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace trireme::train {
namespace {

std::atomic<bool> asked_to_stop{false};

rpc::Access access_of_job() {
  return {.secret = std::string(store::Secret::from_environment().bytes()),
          .job = env::text("TRIREME_RUN_ID").value_or("")};
}

// Runs the rendezvous of replicas that join and leave. Its state ends with it.
int keep_store() {
  const auto listening = env::integer("TRIREME_LISTEN_FD");
  if (!listening) {
    throw InputError("train", "the store of replicas that come and go has no socket", "trireme train starts it.");
  }
  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    sigaddset(&ends, number);
  }
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGUSR1, SIG_IGN);
  const store::Server server(static_cast<int>(*listening), {.secret = store::Secret::from_environment(),
                                                            .job = env::text("TRIREME_RUN_ID").value_or("")});
  int number = 0;
  sigwait(&ends, &number);
  return 0;
}

// Server `place`'s socket: its address, or the launcher's socket with the address's transport.
std::string socket_of(int64_t place) {
  const std::string address = split(env::text("TRIREME_SERVERS").value_or(""), ',').at(static_cast<size_t>(place));
  const auto given = env::text("TRIREME_LISTEN_FD");
  return !given ? address
                : concat(address.starts_with("tcp://") ? "" : concat(address.substr(0, address.find("://")), '+'),
                         "fd://", *given);
}

} // namespace

parallel::SyncFactory worker_sync(const config::EngineConfig& config, const WorkerPlace& place) {
  const std::vector<std::string> addresses = split(env::text("TRIREME_SERVERS").value_or(""), ',');
  if (!config.averaging.elastic) {
    parallel::server::WorkerOptions options;
    options.worker = place.worker;
    options.workers = place.workers;
    options.addresses = addresses;
    options.access = access_of_job();
    options.restarted = env::flag("TRIREME_RESTART");
    return parallel::server::worker_sync(config.server, std::move(options));
  }
  parallel::ReplicaOptions options;
  options.replica = place.worker;
  options.replicas = place.workers;
  options.store = rpc::tcp::parse_address(addresses.empty() ? "" : addresses.front());
  options.secret = store::Secret::from_environment();
  options.job = env::text("TRIREME_RUN_ID").value_or("");
  if (const auto seconds = env::text("TRIREME_TIMEOUT")) { // World::connect() has checked that it is a number
    options.patience = std::chrono::milliseconds(static_cast<int64_t>(std::strtod(seconds->c_str(), nullptr) * 1000));
  }
  return parallel::replica_sync(config.averaging, std::move(options));
}

int serve_parameters(const TrainCommand& command, const config::RunTypes& types) {
  const config::RunConfig run = read_run_to_train(command, types, continues(command));
  if (run.engine.averaging.elastic) {
    return keep_store();
  }
  const auto [place, servers] = *env::place("TRIREME_SERVER");
  if (run.engine.server.servers != servers) {
    throw InputError("train",
                     concat("TRIREME_SERVER has ", servers, " servers, but parallel.sync ", run.engine.server.servers),
                     "trireme train sets it from the run file.");
  }
  std::signal(SIGTERM, [](int) { asked_to_stop = true; });
  std::signal(SIGUSR1, SIG_IGN);
  parallel::server::ParameterServerOptions options;
  options.server = run.engine.server;
  options.place = place;
  options.folder = command.out / "servers";
  options.check_claim = [token = RunToken::of_environment(command.out / "logs")] { token.check_job(); };
  options.stop = &asked_to_stop;
  options.until_stopped =
      env::text("TRIREME_LISTEN_FD").has_value(); // the launcher tells when no further worker can join
  std::error_code error;
  if (!env::flag("TRIREME_RESTART")) {
    std::filesystem::remove(parallel::server::snapshot_file(options.folder, place), error); // of an earlier run
  }
  const auto server = rpc::serve(socket_of(place), access_of_job());
  log::info("server ", place, " of ", servers, " at ", server->address());
  const parallel::server::Counters counters = parallel::server::serve(*server, options);
  log::info("server ", place, ": ", counters.updates, " updates of ", counters.accepted, " gradients; ",
            counters.dropped, " came too late, ", counters.lost, " were lost, ", counters.workers_lost,
            " workers were lost");
  return 0;
}

std::string grpc_version() {
  return rpc::grpc::version();
}

} // namespace trireme::train
