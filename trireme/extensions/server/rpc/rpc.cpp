#include <trireme/extensions/server/rpc/rpc.h>

#include <trireme/base/error.h>
#include <trireme/extensions/server/rpc/grpc/grpc_transport.h>
#include <trireme/extensions/server/rpc/local/local.h>
#include <trireme/extensions/server/rpc/tcp/tcp.h>

#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::rpc {
namespace {

[[noreturn]] void refuse(const std::string& address) {
  throw InputError("rpc", concat("\"", address, "\" is not an address."), "Write it like tcp://10.0.0.1:4711.");
}

Descriptor listening_socket(const std::string& address, std::string_view scheme) {
  int number = -1;
  const char* const end = address.data() + address.size();
  const auto [stop, error] = std::from_chars(address.data() + scheme.size(), end, number);
  if (error != std::errc() || stop != end || store::bound_port(number) == 0) {
    throw InputError("rpc", concat(address, " is not a listening socket of this process."),
                     "trireme launch and trireme train open one for each server.");
  }
  return Descriptor(number);
}

std::string after(const std::string& scheme, const std::string& address) {
  return address.substr(scheme.size());
}

std::vector<Transport> own_transports() {
  const auto connect_grpc = [](const std::string& address, const Access& access, Clock::time_point deadline) {
    return grpc::connect(address, access, deadline);
  };
  const auto serve_grpc = [](const std::string& address, const Access& access) { return grpc::serve(address, access); };
  const auto serve_grpc_on = [](const std::string& scheme, bool encrypted) {
    return [scheme, encrypted](const std::string& address, const Access& access) {
      return grpc::serve(listening_socket(address, scheme), encrypted, access);
    };
  };
  return {
      {"tcp://",
       [](const std::string& address, const Access& access) {
         return tcp::serve(Descriptor(store::listen_on(tcp::parse_address(address))), access);
       },
       [](const std::string& address, const Access& access, Clock::time_point deadline) {
         return tcp::connect(tcp::parse_address(address), access, deadline);
       }},
      {"fd://",
       [](const std::string& address, const Access& access) {
         return tcp::serve(listening_socket(address, "fd://"), access);
       },
       nullptr},
      {"grpc://", serve_grpc, connect_grpc},
      {"grpcs://", serve_grpc, connect_grpc},
      {"grpc+fd://", serve_grpc_on("grpc+fd://", false), nullptr},
      {"grpcs+fd://", serve_grpc_on("grpcs+fd://", true), nullptr},
      {"local://", [](const std::string& address, const Access&) { return local::serve(after("local://", address)); },
       [](const std::string& address, const Access&, Clock::time_point deadline) {
         return local::connect(after("local://", address), deadline);
       }},
  };
}

std::vector<Transport>& transports() {
  static std::vector<Transport> all = own_transports();
  return all;
}

const Transport& transport_of(const std::string& address, auto Transport::* function) {
  for (const Transport& transport : transports()) {
    if (address.starts_with(transport.scheme) && transport.*function) {
      return transport;
    }
  }
  refuse(address);
}

} // namespace

void add_transport(Transport transport) {
  transports().push_back(std::move(transport));
}

std::unique_ptr<Server> serve(const std::string& address, const Access& access) {
  return transport_of(address, &Transport::serve).serve(address, access);
}

std::unique_ptr<Client> connect(const std::string& address, const Access& access, Clock::time_point deadline) {
  return transport_of(address, &Transport::connect).connect(address, access, deadline);
}

} // namespace trireme::rpc
