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

/// One request to the system: a block of a transfer, or what is left of one.
struct Request {
  uint64_t transfer = 0;
  bool write = false;
  int descriptor = -1;
  int64_t offset = 0;
  std::byte* memory = nullptr;
  int64_t bytes = 0;
  /// How often it has come back with nothing done.
  int attempts = 0;
};

/// Transfers, cut into requests: what the callers of Transfers and the threads of an engine share. An engine takes
/// requests, and gives each back with what the system said of it; short ones and those that were interrupted are handed
/// out again. Safe for threads.
class Queue {
 public:
  /// Requests have at most `block_size` bytes.
  explicit Queue(int64_t block_size) : block_size_(block_size) {}
  /// `wake` is called after each add(), for engines that wait elsewhere than in take(). Before the first add().
  void on_work(std::function<void()> wake) {
    wake_ = std::move(wake);
  }

  uint64_t add(const File& file, bool write, int64_t offset, std::byte* memory, int64_t bytes);
  /// Waits until it is finished: nothing of it is in the system any more. Errors: Error of the transfer, each time it
  /// is asked for.
  void wait(uint64_t id);
  bool finished(uint64_t id);
  /// Waits for all; returns what no wait() has reported yet of those that failed.
  std::vector<std::string> wait_for_all();

  /// The next request; nullopt if there is none, or, if it `waits`, none any more.
  std::optional<Request> take(bool waits);
  /// `result`: bytes that were moved, or a negative errno.
  void give_back(Request request, int64_t result);
  /// No more requests will come: all threads return from take(). Only when all transfers are finished.
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
    /// Bytes that are cut into requests; requests that are not finished.
    int64_t cut = 0;
    int64_t out = 0;
    /// Why it failed, and what to do; empty: it has not.
    std::string error = {};
    std::string next = {};
    bool finished = false;
    bool reported = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  std::optional<Request> next();
  /// Whether the transfer fails by this result. If not, `moved` bytes of the request are done.
  bool fails(Transfer& transfer, Request& request, int64_t result, int64_t& moved);
  void fail(Transfer& transfer, const Request& request, const std::string& reason, const std::string& next);

  const int64_t block_size_;
  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  uint64_t last_ = 0;
  /// Those that are not finished, and those that failed: what is not here is finished.
  std::map<uint64_t, Transfer> transfers_;
  int64_t unfinished_ = 0;
  /// Transfers that are not all cut, in order; and requests to be handed out again.
  std::deque<uint64_t> uncut_;
  std::deque<Request> again_;
  bool closed_ = false;
  int64_t bytes_read_ = 0;
  int64_t bytes_written_ = 0;
};

/// A millisecond, for a request that the system has refused often: it is short of something.
void pause_if_refused(const Request& request);
/// Moves the bytes of one request in this thread: bytes that were moved, or a negative errno.
int64_t transfer_now(const Request& request);

} // namespace trireme::aio
