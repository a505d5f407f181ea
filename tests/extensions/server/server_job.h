#pragma once

#include <tests/engine/small_run.h>

#include <trireme/base/file.h>
#include <trireme/extensions/server/parameter_server.h>
#include <trireme/extensions/server/server_sync.h>

#include <tests/support/run_ranks.h>

#include <gtest/gtest.h>

#include <unistd.h>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace trireme::test {

/// A server in a thread, and `body` beside it, in a process of their own: the only one, or that with this place of
/// place + 1. Returns what went wrong.
inline std::vector<std::string> with_server(parallel::ServerOptions options,
                                            const std::function<void(const std::string& address)>& body,
                                            const std::filesystem::path& folder = {}, int place = 0) {
  options.servers = place + 1;
  return run_processes(1, [&](int) {
    std::atomic<bool> stop{false};
    const auto server = rpc::serve("local://server", {});
    parallel::server::ParameterServerOptions of;
    of.server = options;
    of.place = place;
    of.folder = folder;
    of.stop = &stop;
    std::thread thread([&] { parallel::server::serve(*server, of); });
    try {
      body(server->address());
    } catch (...) {
      stop = true;
      thread.join();
      throw;
    }
    stop = true;
    thread.join();
  });
}

/// Processes that are workers (the first ones) and servers of one job. Servers write their addresses into a folder that
/// is removed at the end.
class ServerJob {
 public:
  using Options = parallel::ServerOptions;

  ServerJob(int workers, const Options& options)
      : workers_(workers),
        options_(options),
        folder_(std::filesystem::path(testing::TempDir()) / concat("trireme_servers_", ::getpid(), '_', next()++)) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~ServerJob() { std::filesystem::remove_all(folder_); }

  /// Runs `body` in each worker, with its number and a world of one rank. Returns what run_ranks() does; what the
  /// servers did is in counters().
  std::vector<std::string> run(const std::function<void(int worker, comm::World& world)>& body,
                               std::chrono::milliseconds deadline = std::chrono::milliseconds(60000)) {
    return run_processes(workers_ + static_cast<int>(options_.servers),
                         [&](int rank) {
                           for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                                    "MASTER_ADDR", "MASTER_PORT", "TRIREME_LISTEN_FD"}) {
                             ::unsetenv(name);
                           }
                           at::set_num_threads(1);
                           if (rank < workers_) {
                             comm::World world = comm::World::connect();
                             body(rank, world);
                           } else {
                             serve(rank - workers_);
                           }
                         },
                         {.deadline = deadline, .backend = ""});
  }

  /// One server, until its workers have left.
  void serve(int place) const {
    const auto server = rpc::serve("tcp://127.0.0.1:0", access());
    write_file_atomically(folder_ / concat("address", place), server->address());
    parallel::server::ParameterServerOptions options;
    options.server = options_;
    options.place = place;
    options.folder = folder_;
    const parallel::server::Counters counters = parallel::server::serve(*server, options);
    write_file_atomically(folder_ / concat("counters", place),
                          concat(counters.updates, ' ', counters.accepted, ' ', counters.dropped, ' ', counters.lost,
                                 ' ', counters.largest_staleness));
  }

  parallel::server::WorkerOptions worker(int number) const {
    parallel::server::WorkerOptions options;
    for (int place = 0; place < options_.servers; ++place) {
      const auto file = folder_ / concat("address", place);
      for (int tries = 0; !std::filesystem::exists(file); ++tries) {
        if (tries > 10000) {
          throw Error("test", concat("server ", place, " has not come"));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      options.addresses.push_back(read_file(file));
    }
    options.access = access();
    options.worker = number;
    options.workers = workers_;
    return options;
  }
  /// An engine as in SmallRun, as a worker.
  engine::InitializeOptions engine_options(int number, models::Gpt& model, config::EngineConfig config) const {
    engine::InitializeOptions options;
    options.model = model.ptr();
    options.loss = [gpt = model](const data::Batch& batch) mutable { return gpt->loss(batch.input(), batch.target()); };
    options.config = std::move(config);
    options.config.server = options_;
    options.sync = parallel::server::worker_sync(options_, worker(number));
    options.training_data = std::make_shared<engine::Counting>();
    options.shuffle = false;
    return options;
  }

  /// As a server wrote them at its end.
  parallel::server::Counters counters(int place) const {
    parallel::server::Counters counters;
    std::istringstream text(read_file(folder_ / concat("counters", place)));
    text >> counters.updates >> counters.accepted >> counters.dropped >> counters.lost >> counters.largest_staleness;
    return counters;
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  static int& next() {
    static int number = 0;
    return number;
  }
  static rpc::Access access() { return {.secret = "32 bytes that this job alone has", .job = "test"}; }

  int workers_;
  Options options_;
  std::filesystem::path folder_;
};

} // namespace trireme::test
