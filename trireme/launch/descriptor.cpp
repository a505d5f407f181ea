#include <trireme/launch/descriptor.h>

#include <trireme/base/error.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

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

void Descriptor::close() {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

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

void close_all_but(int kept) {
  if (!close_range(0, kept - 1, 0) || !close_range(kept + 1, std::numeric_limits<int>::max(), 0)) {
    for (int fd = 0; fd < descriptor_limit(); ++fd) {
      if (fd != kept) {
        ::close(fd);
      }
    }
  }
}

void fill_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      (void)::open("/dev/null", O_RDWR);  // the lowest free number, which is fd
    }
  }
}

MeetingPoint open_meeting_point(int ranks) {
  MeetingPoint point;
  point.socket = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  // All ranks may knock before rank 0 answers.
  if (!point.socket || ::bind(point.socket.get(), generic, length) != 0 ||
      ::listen(point.socket.get(), std::max(128, 2 * ranks)) != 0 ||
      ::getsockname(point.socket.get(), generic, &length) != 0) {
    throw Error("launch", concat("cannot listen on 127.0.0.1: ", std::strerror(errno)),
                "The ranks meet there; bring up the loopback interface (ip link set lo up).");
  }
  point.port = ntohs(address.sin_port);
  return point;
}

} // namespace trireme::launch
