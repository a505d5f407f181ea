#pragma once

#include <trireme/base/clock.h>
#include <trireme/store/channel.h>
#include <trireme/store/connect.h>
#include <trireme/store/secret.h>
#include <trireme/store/sockets.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::store {

/// One connection to a Server. Thread-safe: a call waits for the previous one.
///
/// Cost: one round trip per call. Errors of every call: LostError; Error if the server refuses the request (a value
/// that is not a number, or is too long).
class Client {
 public:
  using Clock = trireme::Clock;
  static constexpr std::chrono::milliseconds kPatience{30'000};

  /// Connects; both sides prove that they belong to the job. Retries until `deadline` while nothing listens or the
  /// connection breaks. Fails at once for another program or another job's store. `patience`: a call without an answer
  /// for this long (at least two seconds) throws LostError. Errors: ConnectError.
  static std::shared_ptr<Client> connect(const Endpoint& endpoint, const SecretSource& source, const std::string& job,
                                         Clock::time_point deadline, std::chrono::milliseconds patience = kPatience);
  /// Uses a connected channel.
  explicit Client(std::unique_ptr<Channel> channel, std::chrono::milliseconds patience = kPatience)
      : patience_(patience), channel_(std::move(channel)) {}

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void set(const std::string& key, std::string_view value);
  /// Returns nullopt if the key is not set.
  std::optional<std::string> find(const std::string& key);
  /// Finds many keys in one round trip.
  std::vector<std::optional<std::string>> find_all(const std::vector<std::string>& keys);
  /// Adds atomically to a number that starts at 0, stored as decimal text. Returns the sum.
  int64_t add(const std::string& key, int64_t delta);
  /// Blocks until all keys are set; returns false if they are not within `timeout`.
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  /// Sets `desired` if the value is `expected`; "" also matches a key that is not set. Returns the new value, or
  /// `expected` if there is still none.
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired);
  /// Returns true if the key was set.
  bool remove(const std::string& key);
  bool has_all(const std::vector<std::string>& keys);
  int64_t count();
  void append(const std::string& key, std::string_view value);

  /// Makes the server set `key` to `value` and add 1 to `counter` ("": none) when this connection ends, even if this
  /// process is killed or its host vanishes. The last call counts; an empty key removes the will.
  void last_will(const std::string& key, std::string_view value, const std::string& counter = "");
  /// Adds 1 to `numbers`, returns the sum N, and makes `key` + N the key of this connection's last will, all in one
  /// request. A process that is killed meanwhile thus has either no number, or a will that reports its end.
  int64_t take_number(const std::string& numbers, const std::string& key, std::string_view value,
                      const std::string& counter = "");

 private:
  /// Returns the reply without its status. The server may take up to `busy` to answer.
  std::string call(const std::string& request, std::chrono::milliseconds busy = {});

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::unique_ptr<Channel> channel_;
  std::string broken_;
};

} // namespace trireme::store
