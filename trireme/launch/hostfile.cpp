#include <trireme/launch/hostfile.h>

#include <trireme/base/address.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/plain_text.h>
#include <trireme/base/text.h>

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>

namespace trireme::launch {
namespace {

constexpr int kMostSlots = 65536;
constexpr const char* kForm = "A line is: HOST slots=N   (or HOST:N, or HOST alone for one rank; # starts a comment).";

class LineReader {
 public:
  LineReader(const std::string& source, size_t number) : where_(concat(source, ":", number)) {}

  Host read(const std::vector<std::string>& words) const {
    Host host;
    read_name(words.front(), host);
    for (size_t i = 1; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      const std::string key = words[i].substr(0, equals);
      if (equals == std::string::npos) {
        fail(concat("\"", words[i], "\" is neither a host nor KEY=VALUE"));
      }
      const std::string value = words[i].substr(equals + 1);
      if (key == "slots") {
        host.slots = number(value);
      } else if (key == "address" && !value.empty()) {
        host.address = value;
      } else if (key == "max_slots" || key == "max-slots") {
        number(value);
      } else {
        throw InputError(
            where_,
            concat("\"", key, "\" is unknown or has no value. ", did_you_mean(key, {"slots", "address", "max_slots"})),
            kForm);
      }
    }
    if (is_every_address(host.address)) {
      throw InputError(
          where_,
          concat("the address ", host.address, " stands for all addresses of the host, but ranks connect at one"),
          "Give the one under which the other hosts reach it.");
    }
    return host;
  }

  [[noreturn]] void fail(const std::string& happened) const { throw InputError(where_, happened, kForm); }

 private:
  void read_name(const std::string& word, Host& host) const {
    size_t colon = word.find(':');
    if (word.front() == '[') {
      const size_t end = word.find(']');
      if (end == std::string::npos || (end + 1 < word.size() && word[end + 1] != ':')) {
        fail(concat("\"", word, "\" has no matching bracket"));
      }
      host.name = word.substr(1, end - 1);
      colon = end + 1 < word.size() ? end + 1 : std::string::npos;
    } else if (colon != std::string::npos && word.find(':', colon + 1) != std::string::npos) {
      host.name = word; // an IPv6 address alone
      colon = std::string::npos;
    } else {
      host.name = word.substr(0, colon);
    }
    if (colon != std::string::npos) {
      host.slots = number(word.substr(colon + 1));
    }
    // ssh gets the name as an argument: it must not look like an option or like two arguments.
    const auto strange = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) == 0 && std::strchr("._-@:%", c) == nullptr;
    };
    if (host.name.empty() || host.name.front() == '-' || std::any_of(host.name.begin(), host.name.end(), strange)) {
      fail(concat("\"", word, "\" is not a host name"));
    }
    const size_t at = host.name.rfind('@'); // user@host is for ssh only
    host.address = host.name.substr(at == std::string::npos ? 0 : at + 1);
  }

  int number(const std::string& text) const {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostSlots) {
      fail(concat("\"", text, "\" is not a number of ranks from 1 to ", kMostSlots));
    }
    return value;
  }

  std::string where_;
};

bool same_address(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || a->sa_family != b->sa_family) {
    return false;
  }
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

} // namespace

std::vector<Host> parse_hostfile(std::string_view text, const std::string& source) {
  std::vector<Host> hosts;
  size_t number = 0;
  for (std::string line : split(text, '\n')) {
    ++number;
    line.resize(std::min(line.size(), line.find('#')));
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) {
      words.push_back(word);
    }
    if (words.empty()) {
      continue;
    }
    const LineReader reader(source, number);
    Host host = reader.read(words);
    if (std::any_of(hosts.begin(), hosts.end(), [&](const Host& other) { return other.name == host.name; })) {
      reader.fail(concat("the host ", host.name, " is given twice; give it once with all its slots"));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) {
    throw InputError(source, "the hostfile has no host", kForm);
  }
  return hosts;
}

std::vector<Host> read_hostfile(const std::filesystem::path& file) {
  return parse_hostfile(plain_text("launch", file.string(), read_file(file)), file.string());
}

bool is_this_machine(const std::string& address) {
  char own[256] = {};
  ::gethostname(own, sizeof(own) - 1);
  if (address == "localhost" || address == own) {
    return true;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* result = nullptr;
  ifaddrs* list = nullptr;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &result) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(result, ::freeaddrinfo);
  if (::getifaddrs(&list) != 0) {
    return false;
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(list, ::freeifaddrs);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    for (const ifaddrs* interface = interfaces.get(); interface != nullptr; interface = interface->ifa_next) {
      if (same_address(interface->ifa_addr, one->ai_addr)) {
        return true;
      }
    }
  }
  return false;
}

} // namespace trireme::launch
