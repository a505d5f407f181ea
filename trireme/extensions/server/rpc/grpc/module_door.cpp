#include <trireme/extensions/server/rpc/grpc/module_door.h>

#include <trireme/extensions/server/rpc/grpc/module_options.h>
#include <trireme/store/sockets.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

namespace trireme::rpc::grpc {
namespace {

/// Pause if the process has no descriptors left, because the same connection would be reported at once again.
constexpr std::chrono::milliseconds kRest{100};

} // namespace

ModuleDoor::ModuleDoor(int listening, std::unique_ptr<Acceptor> acceptor)
    : listening_(listening), acceptor_(std::move(acceptor)), end_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!end_) {
    throw Failure(false, "this process has no file descriptors left.", "Raise the limit on open files (ulimit -n).");
  }
  store::set_nonblocking(listening_); // a client that hangs up before accept() must not block the thread
  thread_ = std::thread([this] { run(); });
}

ModuleDoor::~ModuleDoor() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(end_.get(), &one, sizeof one);
  thread_.join();
}

void ModuleDoor::run() {
  pollfd watched[] = {{.fd = listening_, .events = POLLIN, .revents = 0},
                      {.fd = end_.get(), .events = POLLIN, .revents = 0}};
  while (watched[1].revents == 0) {
    if (::poll(watched, 2, -1) <= 0 || (watched[0].revents & POLLIN) == 0) {
      continue;
    }
    Descriptor socket(::accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        std::this_thread::sleep_for(kRest);
      }
      continue;
    }
    const int yes = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes,
                 sizeof yes); // as gRPC does for connections that it accepts
    Acceptor::NewConnectionParameters connection;
    connection.listener_fd = listening_;
    connection.fd = socket.release(); // owned by gRPC from now on
    acceptor_->HandleNewConnection(&connection);
  }
}

} // namespace trireme::rpc::grpc
