#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/extensions/server/rpc/rpc.h>

#include <memory>
#include <string>

/// Requests over gRPC: "grpc://HOST:PORT", and with TLS "grpcs://HOST:PORT". Slower than tcp:// (docs/grpc.md has
/// figures): for workers in other languages and for networks that ask for TLS. The protocol is
/// parameter_server.proto's.
///
/// A thread within the module moves the bytes of a server, and one those of each client, so the other side's deadlines
/// do not depend on how long this one computes. Environment (docs/grpc.md):
///   TRIREME_TLS_CERTIFICATE, TRIREME_TLS_KEY   PEM files of this side; a grpcs:// server needs them, a client where
///   the server asks for certificates TRIREME_TLS_CA                             whom a client trusts (default: the
///   system's authorities) TRIREME_TLS_CLIENT_CA                      a server lets in only clients with a certificate
///   of this authority TRIREME_GRPC_SILENCE                       seconds after which a silent peer is gone (default
///   15) TRIREME_GRPC_MODULE                        the module's path, when it is not where it was installed
namespace trireme::rpc::grpc {

/// Errors: InputError where no module is installed, the address cannot be used, a certificate is none, or there is no
/// secret and the address is not on the loopback interface.
std::unique_ptr<rpc::Server> serve(const std::string& address, const Access& access);
/// The same on a socket that listens already, which stays open for as long as any process holds it.
std::unique_ptr<rpc::Server> serve(Descriptor listening, bool tls, const Access& access);
/// Errors: InputError, also for a wrong secret and certificates that do not fit; PeerError.
std::unique_ptr<rpc::Client> connect(const std::string& address, const Access& access, Clock::time_point deadline);

/// "gRPC 1.51.1", "" where no module is built, installed and fit to be loaded.
std::string version();

} // namespace trireme::rpc::grpc
