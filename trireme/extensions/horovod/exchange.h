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

/// A requested operation, until its result has been taken.
class Task {
 public:
  explicit Task(Request request) : request(std::move(request)) {}

  /// Whether wait() returns at once.
  bool done() const;
  /// Waits for the operation. On a GPU the result is ready for what is next on the caller's stream. Errors: those of
  /// the operation.
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
  /// Fusion threshold; rank 0's counts.
  int64_t fusion_bytes = 128 << 20;
  /// Time between two messages while requests wait for other ranks.
  std::chrono::microseconds cycle{1000};
  /// Interval of messages of ranks without requests.
  std::chrono::milliseconds idle{100};
  /// Age after which names that only some ranks have asked for are reported; zero: never.
  std::chrono::duration<double> stall_check{60};
  /// This rank's GPU, if it has one; the group is opened for it at once.
  std::optional<at::Device> device = {};
  /// Age after which they fail; zero: never.
  std::chrono::duration<double> stall_shutdown{0};
};

/// The thread that sends this rank's requests to the other ranks of a group, and carries out what all have requested.
///
/// In each cycle every rank sends its new requests to all others: one all-gather of 4 KiB per rank, and a second one if
/// that is too small. A rank begins the next cycle when it has a request, while an earlier one waits, and otherwise
/// every `idle`. So no rank waits for another one longer than `idle`, and an idle rank costs ten messages per second.
class Exchange {
 public:
  /// Collective: makes its own group of these ranks.
  Exchange(const comm::Group& ranks, const ExchangeOptions& options);
  /// Tells all ranks that this one ends. Their further requests fail with an error that names this rank.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// From any thread. Errors: Error if an operation of this name is in progress, or the exchange has ended.
  std::shared_ptr<Task> submit(Request request, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs = {},
                               std::optional<at::ScalarType> type = std::nullopt);

  const comm::Group& group() const { return group_; }

 private:
  void run();
  /// Waits for work, and returns the requests to send.
  std::vector<std::shared_ptr<Task>> collect();
  /// Returns what all ranks send: their requests, and whether they end.
  std::vector<std::string> exchange(const std::string& mine);
  void carry_out(const std::vector<Response>& responses);
  /// The reason that this rank sends to the others when it ends; empty: it continues.
  std::string why_end();
  void warn_of_stalls();
  void end(const std::exception_ptr& why);
  std::shared_ptr<Task> take(const std::string& name);

  comm::Group group_;
  ExchangeOptions options_;
  Negotiation negotiation_; // used by the thread only
  Execution execution_;     // used by the thread only

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Task>> fresh_;             // not sent yet
  std::map<std::string, std::shared_ptr<Task>> waiting_; // sent or not
  bool stopping_ = false;
  std::exception_ptr ended_; // the reason
  std::thread thread_;       // last: uses the others
};

} // namespace trireme::horovod
