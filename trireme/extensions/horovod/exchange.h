#pragma once

#include <trireme/extensions/horovod/execution.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trireme::horovod {

/// An operation that was asked for, until its result has been taken.
class Task {
 public:
  explicit Task(Request request) : request(std::move(request)) {}

  /// Whether wait() returns at once.
  bool done() const;
  /// Waits for it. On a device the result is what comes next on the caller's stream. Errors: what made it fail.
  void wait() const;
  void finish(std::exception_ptr error = nullptr);

  const Request request;
  Operands operands;
  int last_joined = 0;
  int64_t asked_ns = 0; // monitor::Tracer's time

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

struct ExchangeOptions {
  /// Rank 0's counts.
  int64_t fusion_bytes = 128 << 20;
  /// Between two messages while something waits for other ranks.
  std::chrono::microseconds cycle{1000};
  /// Ranks that want nothing say so this often.
  std::chrono::milliseconds idle{100};
  /// Names that some ranks have asked for and others not are reported after so long; zero: never.
  std::chrono::duration<double> stall_check{60};
  /// This rank's device, if it has one: opened for the group at once.
  std::optional<at::Device> device = {};
  /// They fail after so long; zero: never.
  std::chrono::duration<double> stall_shutdown{0};
};

/// The thread that tells the other ranks of a group what this one asks for, and does what all have asked for.
///
/// In each cycle every rank sends its new requests to all: one all-gather of 4 KiB a rank, and a second one where that
/// is too little. A rank comes to the next cycle when it has a request, while an earlier one waits, and otherwise every
/// `idle`. So no rank waits for another longer than that, and one that wants nothing costs ten messages a second.
class Exchange {
 public:
  /// Collective: makes a group of its own of these ranks.
  Exchange(const comm::Group& ranks, const ExchangeOptions& options);
  /// Tells all ranks that this one ends. What others still ask for fails, with this rank's number.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Any thread. Errors: Error where this name is on its way already, or the exchange has ended.
  std::shared_ptr<Task> submit(Request request, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs = {},
                               std::optional<at::ScalarType> type = std::nullopt);

  const comm::Group& group() const {
    return group_;
  }

 private:
  void run();
  /// Waits for something to do; the requests to send.
  std::vector<std::shared_ptr<Task>> collect();
  /// What all ranks send: their requests, and who ends.
  std::vector<std::string> exchange(const std::string& mine);
  void carry_out(const std::vector<Response>& responses);
  /// What this rank tells the others when it ends; empty: it goes on.
  std::string why_end();
  void warn_of_stalls();
  void end(const std::exception_ptr& why);
  std::shared_ptr<Task> take(const std::string& name);

  comm::Group group_;
  ExchangeOptions options_;
  Negotiation negotiation_; // the thread's
  Execution execution_;     // the thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Task>> fresh_;             // not sent yet
  std::map<std::string, std::shared_ptr<Task>> waiting_; // sent or not
  bool stopping_ = false;
  std::exception_ptr ended_; // why
  std::thread thread_;       // last
};

} // namespace trireme::horovod
