#pragma once

#include <trireme/memory/aio/file.h>
#include <trireme/memory/aio/options.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace trireme::aio {

/// One request to the system: a block of a transfer, or the rest of one.
struct Request {
  uint64_t transfer = 0;
  bool write = false;
  int descriptor = -1;
  int64_t offset = 0;
  std::byte* memory = nullptr;
  int64_t bytes = 0;
  /// How often it was returned with nothing done.
  int attempts = 0;
};

/// Transfers, cut into requests: shared by the callers of Transfers and the threads of an engine. An engine takes
/// requests and returns each with the system's result; short and interrupted ones are queued again. Thread-safe.
class Queue {
 public:
  /// Requests have at most `block_size` bytes.
  explicit Queue(int64_t block_size) : block_size_(block_size) {}
  /// Sets a function that is called after each add(), for engines that do not wait in take(). Call it before the first
  /// add().
  void on_work(std::function<void()> wake) { wake_ = std::move(wake); }

  uint64_t add(const File& file, bool write, int64_t offset, std::byte* memory, int64_t bytes);
  /// Waits until the transfer is finished: none of its requests is in the system. Errors: the transfer's Error, on
  /// every call.
  void wait(uint64_t id);
  bool finished(uint64_t id);
  /// Waits for all transfers; returns the errors that no wait() has reported.
  std::vector<std::string> wait_for_all();

  /// The next request; nullopt if there is none; with `waits`, nullopt only after close().
  std::optional<Request> take(bool waits);
  /// `result`: bytes transferred, or a negative errno.
  void give_back(Request request, int64_t result);
  /// Ends the queue: all threads return from take(). Call it only when all transfers are finished.
  void close();
  bool closed();

  int64_t bytes_read();
  int64_t bytes_written();

 private:
  struct Transfer {
    File file;
    bool write;
    int64_t offset;
    std::byte* memory;
    int64_t bytes;
    /// Bytes already cut into requests, and number of unfinished requests.
    int64_t cut = 0;
    int64_t out = 0;
    /// Why it failed and what to do; empty if it has not failed.
    std::string error = {};
    std::string next = {};
    bool finished = false;
    bool reported = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  std::optional<Request> next();
  /// Whether this result fails the transfer. If not, `moved` bytes of the request are done.
  bool fails(Transfer& transfer, Request& request, int64_t result, int64_t& moved);
  void fail(Transfer& transfer, const Request& request, const std::string& reason, const std::string& next);

  const int64_t block_size_;
  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  uint64_t last_ = 0;
  /// Unfinished and failed transfers; any other transfer is finished.
  std::map<uint64_t, Transfer> transfers_;
  int64_t unfinished_ = 0;
  /// Transfers that are not fully cut, in order, and requests to be queued again.
  std::deque<uint64_t> uncut_;
  std::deque<Request> again_;
  bool closed_ = false;
  int64_t bytes_read_ = 0;
  int64_t bytes_written_ = 0;
};

/// Sleeps a millisecond if the system has refused the request often, because it lacks a resource.
void pause_if_refused(const Request& request);
/// Executes one request in this thread; returns the bytes transferred, or a negative errno.
int64_t transfer_now(const Request& request);

} // namespace trireme::aio
