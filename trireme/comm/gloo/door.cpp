#include <trireme/comm/gloo/door.h>

#include <trireme/store/sockets.h>

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

namespace trireme::comm {
namespace {

struct ListeningSocket {
  std::mutex mutex;
  int listening = -1;
  ino_t socket = 0;
  int openings = 0;

  /// gloo closes its socket with its last group; then the number may be reused.
  bool ours() const {
    struct stat status{};
    return listening >= 0 && fstat(listening, &status) == 0 && status.st_ino == socket;
  }
};

ListeningSocket& state() {
  static auto* const leaked = new ListeningSocket; // groups may end while statics are destroyed
  return *leaked;
}

template <typename Visit>
void for_each_descriptor(const Visit& visit) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename();
    int number = -1;
    std::from_chars(name.data(), name.data() + name.size(), number);
    visit(number);
  }
}

std::vector<int> listening_sockets() {
  std::vector<int> found;
  for_each_descriptor([&](int number) {
    if (store::bound_port(number) != 0) {
      found.push_back(number);
    }
  });
  std::sort(found.begin(), found.end());
  return found;
}

/// TCP connections, by an identity that outlasts reuse of the descriptor number.
std::map<ino_t, int> connections() {
  std::map<ino_t, int> found;
  for_each_descriptor([&](int number) {
    int protocol = 0;
    socklen_t length = sizeof(protocol);
    struct stat status{};
    if (getsockopt(number, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 && protocol == IPPROTO_TCP &&
        store::bound_port(number) == 0 && fstat(number, &status) == 0) {
      found[status.st_ino] = number;
    }
  });
  return found;
}

void bolt(int listening) {
  sock_filter drop_all[] = {{BPF_RET | BPF_K, 0, 0, 0}};
  const sock_fprog program{1, drop_all};
  setsockopt(listening, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

void unbolt(int listening) {
  const int unused = 0;
  setsockopt(listening, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
}

} // namespace

GlooDoor::GlooDoor() : before_(listening_sockets()) {}

void GlooDoor::find() {
  std::vector<int> fresh;
  const auto now = listening_sockets();
  std::set_difference(now.begin(), now.end(), before_.begin(), before_.end(), std::back_inserter(fresh));
  const std::lock_guard lock(state().mutex);
  // Another thread may have opened one at the same time: none is better than a wrong one.
  state().listening = fresh.size() == 1 ? fresh.front() : -1;
  struct stat status{};
  state().socket = fstat(state().listening, &status) == 0 ? status.st_ino : 0;
}

GlooDoor::Opening::Opening() {
  const std::lock_guard lock(state().mutex);
  if (state().openings++ == 0 && state().ours()) {
    unbolt(state().listening);
  }
}

GlooDoor::Opening::~Opening() {
  const std::lock_guard lock(state().mutex);
  if (--state().openings == 0 && state().ours()) {
    bolt(state().listening);
  }
}

ProbedConnections::ProbedConnections() {
  for (const auto& [socket, number] : connections()) {
    before_.insert(socket);
  }
}

ProbedConnections::~ProbedConnections() {
  for (const auto& [socket, number] : connections()) {
    if (before_.count(socket) == 0) {
      store::end_when_silent(number);
    }
  }
}

} // namespace trireme::comm
