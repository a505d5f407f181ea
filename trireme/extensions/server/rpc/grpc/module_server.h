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

/// A server within the module. Its thread accepts clients, receives their requests, sends the rest of long responses
/// and answers pings, however long the caller computes between two calls of next().
class ModuleServer {
 public:
  /// Errors: Failure.
  explicit ModuleServer(const Options& options);
  /// Sends pending replies, for a few seconds at most.
  ~ModuleServer();
  int port() const { return port_; }
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
  std::unique_ptr<ModuleDoor> door_; // for a socket that already listened
  std::thread thread_;

  // Used by the thread alone.
  MemoryPool memory_;
  std::map<std::string, std::chrono::steady_clock::time_point> greetings_;
  std::deque<std::string> greetings_in_order_;

  std::mutex mutex_;
  std::condition_variable news_;
  std::condition_variable ended_;
  /// closing_: the server sends its last replies. stopping_: no operation starts any more.
  bool closing_ = false;
  bool stopping_ = false;
  /// Connected clients whose end has not been reported.
  std::unordered_map<uint64_t, Shared> open_;
  uint64_t last_number_ = 0;
  std::deque<Event> events_;
  /// Requests without a reply.
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_;
};

} // namespace trireme::rpc::grpc
