#include <trireme/base/address.h>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

namespace trireme {

bool is_every_address(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  if (address->sa_family != AF_INET6) {
    return false;
  }
  const in6_addr& number = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  const bool rest_is_zero = number.s6_addr32[0] == 0 && number.s6_addr32[1] == 0 && number.s6_addr32[3] == 0;
  return rest_is_zero && (number.s6_addr32[2] == 0 || IN6_IS_ADDR_V4MAPPED(&number));
}

bool is_every_address(const std::string& text) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    return is_every_address(text.substr(1, text.size() - 2));
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (text == "*" || text.empty() || ::getaddrinfo(text.c_str(), nullptr, &hints, &list) != 0) {
    return text == "*";
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(list, ::freeaddrinfo);
  return is_every_address(found->ai_addr);
}

} // namespace trireme
