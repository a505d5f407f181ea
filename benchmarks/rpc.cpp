// What requests cost: `benchmark_rpc ADDRESS...` (grpc://127.0.0.1:0, tcp://127.0.0.1:0) serves at each address in a
// process of its own and measures a request and reply of 64 bytes, and bodies of 64 MiB to the server and back. One
// line of JSON an address: median microseconds, GB/s (1e9 bytes) of the median.
#include <trireme/base/error.h>
#include <trireme/extensions/server/rpc/rpc.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <vector>

namespace {

using namespace trireme;
using rpc::Clock;

constexpr size_t kSmall = 64;
constexpr size_t kLong = size_t{64} << 20;
const rpc::Access kAccess = {std::string("0123456789abcdef0123456789abcdef"), "benchmark"};

/// Writes its address to the pipe and answers until it is killed.
[[noreturn]] void serve(const std::string& address, int pipe) {
  const auto server = rpc::serve(address, kAccess);
  const std::string text = server->address() + "\n";
  if (::write(pipe, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    ::_exit(1);
  }
  while (true) {
    if (const auto event = server->next(std::chrono::seconds(1)); event && event->kind == rpc::Event::Kind::request) {
      server->reply(event->id, std::string(kSmall, 'r'));
    }
  }
}

double median_seconds(rpc::Client& client, int times, const std::string& header, std::span<const std::byte> body,
                      std::span<std::byte> room) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const auto start = Clock::now();
    client.call(header, body, room)->wait(start + std::chrono::seconds(60));
    all.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
  return all[all.size() / 2];
}

void measure(const std::string& address) {
  const auto client = rpc::connect(address, kAccess, Clock::now() + std::chrono::seconds(10));
  const std::string header(kSmall, 'q');
  std::vector<std::byte> bytes(kLong, std::byte{1});
  median_seconds(*client, 200, header, {}, {});
  const double small = median_seconds(*client, 5000, header, {}, {});
  median_seconds(*client, 2, header, bytes, bytes);
  const double there = median_seconds(*client, 15, header, bytes, {});
  const double back = median_seconds(*client, 15, header, {}, bytes);
  std::printf("{\"address\": \"%s\", \"us\": %.1f, \"push_gb_per_s\": %.2f, \"pull_gb_per_s\": %.2f}\n",
              address.c_str(), small * 1e6, kLong / there / 1e9, kLong / back / 1e9);
}

int run(const std::string& address) {
  int ends[2];
  if (::pipe(ends) != 0) {
    return 1;
  }
  const pid_t server = ::fork();
  if (server == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      serve(address, ends[1]);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(error.exit_code());
    }
  }
  ::close(ends[1]);
  const pid_t client = ::fork(); // gRPC does not survive a fork: each side in a process of its own
  if (client == 0) {
    std::string found;
    for (char next = 0; ::read(ends[0], &next, 1) == 1 && next != '\n';) {
      found += next;
    }
    try {
      measure(found);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(error.exit_code());
    }
    std::fflush(nullptr);
    ::_exit(0);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(client, &status, 0);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

} // namespace

int main(int argc, char** argv) {
  int status = argc > 1 ? 0 : 2;
  for (int i = 1; i < argc && status == 0; ++i) {
    status = run(argv[i]);
  }
  return status;
}
