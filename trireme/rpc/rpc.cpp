#include <trireme/rpc/rpc.h>

#include <trireme/base/error.h>
#include <trireme/rpc/grpc/grpc_transport.h>
#include <trireme/rpc/local/local.h>
#include <trireme/rpc/tcp/tcp.h>

#include <charconv>
#include <string_view>

namespace trireme::rpc {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kDescriptor = "fd://";
constexpr std::string_view kGrpcDescriptor = "grpc+fd://";
constexpr std::string_view kTlsDescriptor = "grpcs+fd://";
constexpr std::string_view kLocal = "local://";

bool is_grpc(const std::string& address) {
  return address.starts_with("grpc://") || address.starts_with("grpcs://");
}

[[noreturn]] void refuse(const std::string& address) {
  throw InputError("rpc", concat("\"", address, "\" is no address."), "It should look like tcp://10.0.0.1:4711.");
}

Descriptor listening_socket(const std::string& address, std::string_view scheme) {
  int number = -1;
  const char* const end = address.data() + address.size();
  const auto [stop, error] = std::from_chars(address.data() + scheme.size(), end, number);
  if (error != std::errc() || stop != end || store::bound_port(number) == 0) {
    throw InputError("rpc", concat(address, " is no listening socket of this process."), "trireme launch and trireme train open one for each server.");
  }
  return Descriptor(number);
}

} // namespace

std::unique_ptr<Server> serve(const std::string& address, const Access& access) {
  if (address.starts_with(kTcp)) {
    return tcp::serve(Descriptor(store::listen_on(tcp::parse_address(address))), access);
  }
  if (address.starts_with(kDescriptor)) {
    return tcp::serve(listening_socket(address, kDescriptor), access);
  }
  if (address.starts_with(kGrpcDescriptor)) {
    return grpc::serve(listening_socket(address, kGrpcDescriptor), false, access);
  }
  if (address.starts_with(kTlsDescriptor)) {
    return grpc::serve(listening_socket(address, kTlsDescriptor), true, access);
  }
  if (is_grpc(address)) {
    return grpc::serve(address, access);
  }
  if (address.starts_with(kLocal)) {
    return local::serve(address.substr(kLocal.size()));
  }
  refuse(address);
}

std::unique_ptr<Client> connect(const std::string& address, const Access& access, Clock::time_point deadline) {
  if (address.starts_with(kTcp)) {
    return tcp::connect(tcp::parse_address(address), access, deadline);
  }
  if (is_grpc(address)) {
    return grpc::connect(address, access, deadline);
  }
  if (address.starts_with(kLocal)) {
    return local::connect(address.substr(kLocal.size()), deadline);
  }
  refuse(address);
}

} // namespace trireme::rpc
