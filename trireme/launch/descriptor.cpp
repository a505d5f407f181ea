#include <trireme/launch/descriptor.h>

#include <trireme/base/address.h>
#include <trireme/base/error.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

namespace trireme::launch {
namespace {

// glibc has close_range() only since 2.34, the kernel since 5.9.
bool close_range(int first, int last, unsigned flags) {
#ifdef SYS_close_range
  return first > last || ::syscall(SYS_close_range, first, last, flags) == 0;
#else
  return false;
#endif
}

int descriptor_limit() {
  return static_cast<int>(std::min<long>(::sysconf(_SC_OPEN_MAX), 65536));
}

} // namespace

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error("launch", concat("cannot make a pipe: ", std::strerror(errno)),
                "Each rank needs two; raise the limit on open files (ulimit -n).");
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Descriptor open_null() {
  return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void set_nonblocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void close_on_exec_from(int first) {
  if (!close_range(first, std::numeric_limits<int>::max(), CLOSE_RANGE_CLOEXEC)) {
    for (int fd = first; fd < descriptor_limit(); ++fd) {
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }
}

void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  kept.push_back(std::numeric_limits<int>::max());
  int first = 0;
  for (const int fd : kept) {
    if (!close_range(first, fd - 1, 0)) {
      for (int other = first; other < std::min(fd, descriptor_limit()); ++other) {
        ::close(other);
      }
    }
    if (fd != std::numeric_limits<int>::max()) {
      first = fd + 1;
    }
  }
}

void fill_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      (void)::open("/dev/null", O_RDWR); // the lowest free number, which is fd
    }
  }
}

MeetingPoint open_meeting_point(const std::string& address, int ranks) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(address.c_str(), "0", &hints, &list); code != 0) {
    throw InputError("launch", concat("the address ", address, " of rank 0's host is unknown: ", ::gai_strerror(code)),
                     "Correct the hostfile; address=A after the host says where the others reach it.");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(list, ::freeaddrinfo);
  int code = 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    if (is_every_address(one->ai_addr)) {
      throw InputError(
          "launch", concat(address, " stands for all addresses of rank 0's host, but the ranks connect at one"),
          "Give the first host of the hostfile the address under which the others reach it: address=A after the host.");
    }
    MeetingPoint point;
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    point.socket = Descriptor(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // All ranks may connect before rank 0 accepts.
    if (point.socket && ::bind(point.socket.get(), one->ai_addr, one->ai_addrlen) == 0 &&
        ::listen(point.socket.get(), std::max(128, 2 * ranks)) == 0 &&
        ::getsockname(point.socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0) {
      point.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                     : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      return point;
    }
    code = errno;
  }
  if (code == EADDRNOTAVAIL && address != "127.0.0.1") {
    throw InputError("launch", concat(address, " is not an address of the host that runs rank 0"),
                     "Correct the hostfile; address=A after the host says where the others reach it.");
  }
  throw Error("launch", concat("cannot listen on ", address, ": ", std::strerror(code)),
              "The ranks connect there; bring up the interface (for 127.0.0.1: ip link set lo up).");
}

} // namespace trireme::launch
