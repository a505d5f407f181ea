#pragma once

#include <trireme/base/descriptor.h>

#include <grpcpp/server_builder.h>

#include <memory>
#include <thread>

namespace trireme::rpc::grpc {

/// Hands a server of gRPC the connections of a socket that listens already, which gRPC cannot take over by itself. A
/// thread of its own.
class ModuleDoor {
 public:
  using Acceptor = ::grpc::experimental::ExternalConnectionAcceptor;

  /// `listening` stays the caller's, and open for as long as this lives. The server has been started. Errors: Failure.
  ModuleDoor(int listening, std::unique_ptr<Acceptor> acceptor);
  /// Before the server is shut down: nobody is let in any more.
  ~ModuleDoor();

 private:
  void run();

  int listening_;
  std::unique_ptr<Acceptor> acceptor_;
  Descriptor end_; // readable when the thread is to end
  std::thread thread_;
};

} // namespace trireme::rpc::grpc
