#pragma once

#include <trireme/extensions/server/rpc/grpc/grpc_functions.h>
#include <trireme/extensions/server/rpc/grpc/module_door.h>
#include <trireme/extensions/server/rpc/grpc/module_memory.h>
#include <trireme/extensions/server/rpc/grpc/module_options.h>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

namespace trireme::rpc::grpc {

/// The server's side within the module. A thread of its own lets clients in, takes their requests, sends the rest of
/// long replies and answers their signs of life, however long the caller computes between two calls of next().
class ModuleServer {
 public:
  /// Errors: Failure.
  explicit ModuleServer(const Options& options);
  /// Sends what was replied, to those who take it within a few seconds.
  ~ModuleServer();
  int port() const {
    return port_;
  }
  bool next(std::chrono::milliseconds timeout, Event* event);
  void reply(uint64_t id, std::string header, size_t body_bytes);

 private:
  enum class Step { arrive, opened, read, written, finished };
  struct Connection;
  using Shared = std::shared_ptr<Connection>;
  struct Tag;
  struct Request;
  struct Reply;

  void run();
  void take(const Shared& connection, Step step, bool ok);
  void expect_arrival();
  void arrived(const Shared& connection);
  void challenge(const Shared& connection);
  void open(const Shared& connection);
  void read(const Shared& connection);
  void received(const Shared& connection);
  void complete(const Shared& connection);
  void written(const Shared& connection, bool ok);
  void send_part(const Shared& connection);
  void end(const Shared& connection, const ::grpc::Status& status);
  void finish(const Shared& connection);
  bool use_greeting(const std::string& greeting);

  const Settings settings_;
  ::grpc::AsyncGenericService service_;
  std::unique_ptr<::grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<::grpc::Server> server_;
  int port_ = 0;
  std::unique_ptr<ModuleDoor> door_; // of a socket that listened before
  std::thread thread_;

  // Of the thread alone.
  MemoryPool memory_;
  std::map<std::string, std::chrono::steady_clock::time_point> greetings_;
  std::deque<std::string> greetings_in_order_;

  std::mutex mutex_;
  std::condition_variable news_;
  std::condition_variable ended_;
  /// The server is about to stop, and takes leave; it stops, and begins nothing.
  bool closing_ = false;
  bool stopping_ = false;
  /// Clients that were let in and have not been given their end.
  std::unordered_map<uint64_t, Shared> open_;
  uint64_t last_number_ = 0;
  std::deque<Event> events_;
  /// Taken or not, but not answered.
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_;
};

} // namespace trireme::rpc::grpc
