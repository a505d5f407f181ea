#pragma once

#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/extensions/server/rpc/rpc.h>

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/peer_error.h"
#include "tests/support/sanitized.h"

namespace trireme::test {

inline const rpc::Access kAccess = {std::string("0123456789abcdef0123456789abcdef"), "the job"};

/// A deadline for what should come at once.
inline rpc::Clock::time_point soon() {
  return rpc::Clock::now() + std::chrono::seconds(120);
}

/// Why tests of gRPC cannot run here, "" when they can.
inline std::string why_not_grpc() {
  if (!std::filesystem::exists(test::binary_dir() + "/lib/trireme/libtrireme_grpc.so")) {
    return "no gRPC: built without libgrpc++-dev";
  }
  return kThreadSanitizer ? "gRPC is not instrumented" : "";
}

/// The error of a client that tries for a second; for longer, where it takes this machine longer to say `expected`.
inline std::string why_not_in_time(const std::string& address, const std::string& expected) {
  std::string error;
  for (int patience = 1; patience < 100 && error.find(expected) == std::string::npos; patience *= 4) {
    error = peer_error([&] { rpc::connect(address, kAccess, rpc::Clock::now() + std::chrono::seconds(patience)); });
  }
  return error;
}

/// The header with `prefix` before it, and the body turned round, as far as the room goes.
inline void echo(rpc::Server& server, const rpc::Event& event, const std::string& prefix = "echo ") {
  const size_t bytes = std::min(event.body.size(), event.room.size());
  std::copy_n(event.body.rbegin(), bytes, event.room.begin());
  server.reply(event.id, prefix + event.header);
}

/// A server with a thread.
class EchoServer {
 public:
  explicit EchoServer(const std::string& address, const rpc::Access& access = kAccess, std::string prefix = "echo ")
      : prefix_(std::move(prefix)), server_(rpc::serve(address, access)), thread_([this] { run(); }) {}
  ~EchoServer() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return server_->address(); }
  /// Whether the headers of every client were numbers one after the other.
  bool in_order() const { return in_order_; }
  void wait_for_requests(int count) const {
    while (requests_ < count) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  void run() {
    std::map<uint64_t, int> next;
    while (!stop_) {
      if (const auto event = server_->next(std::chrono::milliseconds(20));
          event && event->kind == rpc::Event::Kind::request) {
        in_order_ = in_order_ && event->header == std::to_string(next[event->client]++);
        echo(*server_, *event, prefix_);
        ++requests_;
      }
    }
  }
  std::string prefix_;
  std::unique_ptr<rpc::Server> server_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> in_order_{true};
  std::atomic<int> requests_{0};
  std::thread thread_;
};

[[noreturn]] inline void echo_for_ever(const std::string& address) {
  const auto server = rpc::serve(address, kAccess);
  while (true) {
    if (const auto event = server->next(std::chrono::seconds(1)); event && event->kind == rpc::Event::Kind::request) {
      echo(*server, *event);
    }
  }
}

/// Another process, which ends with this one. gRPC does not survive a fork: make children before its first use.
class Child {
 public:
  explicit Child(const std::function<void()>& work) : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        work();
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
  }
  Child(const Child&) = delete;
  ~Child() {
    signal(SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
  }
  void signal(int number) const { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

} // namespace trireme::test
