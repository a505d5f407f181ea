#include <trireme/base/error.h>
#include <trireme/extensions/server/rpc/tcp/tcp.h>

#include <charconv>

namespace trireme::rpc::tcp {
namespace {

constexpr std::string_view kScheme = "tcp://";

} // namespace

store::Endpoint parse_address(const std::string& address) {
  const size_t colon = address.rfind(':');
  store::Endpoint endpoint;
  bool good = address.starts_with(kScheme) && colon != std::string::npos && colon > kScheme.size();
  if (good) {
    endpoint.host = address.substr(kScheme.size(), colon - kScheme.size());
    const bool brackets = endpoint.host.front() == '[' && endpoint.host.back() == ']';
    if (brackets) {
      endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
    }
    const char* const end = address.data() + address.size();
    const auto [stop, error] = std::from_chars(address.data() + colon + 1, end, endpoint.port);
    good = error == std::errc() && stop == end && endpoint.port >= 0 && endpoint.port <= 65535 &&
           !endpoint.host.empty() && (brackets || endpoint.host.find(':') == std::string::npos);
  }
  if (!good) {
    throw InputError("rpc", concat("\"", address, "\" is not an address."),
                     "Write it like tcp://10.0.0.1:4711 or tcp://[::1]:4711.");
  }
  return endpoint;
}

std::string address_of(const store::Endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  return concat(kScheme, brackets ? "[" : "", endpoint.host, brackets ? "]" : "", ":", endpoint.port);
}

} // namespace trireme::rpc::tcp
