#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/extensions/server/rpc/rpc.h>

#include <memory>
#include <string>

/// Requests over gRPC: "grpc://HOST:PORT", and with TLS "grpcs://HOST:PORT". For workers in other languages and
/// networks that require TLS; slower than tcp:// (figures in docs/grpc.md). parameter_server.proto defines the
/// protocol.
///
/// A thread in the module moves a server's bytes, and one thread those of each client. The peer's time-outs therefore
/// do not depend on how long this side computes. Environment (docs/grpc.md):
///
/// - TRIREME_TLS_CERTIFICATE, TRIREME_TLS_KEY: PEM files of this side. A grpcs:// server needs them; a client needs
/// them
///   if the server requires client certificates.
///
/// - TRIREME_TLS_CA: authority that a client trusts (default: the system's authorities).
///
/// - TRIREME_TLS_CLIENT_CA: a server accepts only clients with a certificate of this authority.
///
/// - TRIREME_GRPC_SILENCE: seconds after which a silent peer is taken for lost (default 15).
///
/// - TRIREME_GRPC_MODULE: the module's path, if it is not where it was installed.
namespace trireme::rpc::grpc {

/// Errors: InputError if no module is installed, the address cannot be used, a certificate is invalid, or there is no
/// secret and the address is not on the loopback interface.
std::unique_ptr<rpc::Server> serve(const std::string& address, const Access& access);
/// Serves on a socket that already listens. It stays open as long as any process holds it.
std::unique_ptr<rpc::Server> serve(Descriptor listening, bool tls, const Access& access);
/// Errors: InputError, also for a wrong secret and unsuitable certificates; PeerError.
std::unique_ptr<rpc::Client> connect(const std::string& address, const Access& access, Clock::time_point deadline);

/// "gRPC 1.51.1", or "" if no module is built, installed and loadable.
std::string version();

} // namespace trireme::rpc::grpc
