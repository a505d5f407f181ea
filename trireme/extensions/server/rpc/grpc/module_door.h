#pragma once

#include <trireme/base/descriptor.h>

#include <grpcpp/server_builder.h>

#include <memory>
#include <thread>

namespace trireme::rpc::grpc {

/// Accepts the connections of a socket that already listens and passes them to a gRPC server, which cannot take such a
/// socket itself. Runs a thread.
class ModuleDoor {
 public:
  using Acceptor = ::grpc::experimental::ExternalConnectionAcceptor;

  /// `listening` stays the caller's and must stay open while this lives. The server has been started. Errors: Failure.
  ModuleDoor(int listening, std::unique_ptr<Acceptor> acceptor);
  /// Stops accepting; call it before the server is shut down.
  ~ModuleDoor();

 private:
  void run();

  int listening_;
  std::unique_ptr<Acceptor> acceptor_;
  Descriptor end_; // readable when the thread must end
  std::thread thread_;
};

} // namespace trireme::rpc::grpc
