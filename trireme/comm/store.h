#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

/// A key-value store visible to all ranks, for connecting and for reporting progress.
///
/// A view of the job's store (store::Server of rank 0, or the TCPStore of torchrun's agent)
/// under a key prefix; copies share the connection, and calls of several threads take turns.
/// Cost: one round trip to the store's host per call, two with torchrun's agent. Errors:
/// PeerError if the store is unreachable, or does not answer within the world's time-out plus
/// one second.
class Store {
 public:
  struct Handle;
  explicit Store(std::shared_ptr<Handle> handle, std::string prefix = "");

  void set(const std::string& key, const std::string& value);
  /// Returns nullopt if the key is not set.
  std::optional<std::string> find(const std::string& key);
  /// The same for many keys in one call.
  std::vector<std::optional<std::string>> find_all(const std::vector<std::string>& keys);
  /// Adds atomically to a counter that starts at 0 and returns the new value.
  int64_t add(const std::string& key, int64_t delta);
  /// Blocks until all keys are set; returns false if they are not after `timeout`.
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  /// Makes the host set `key` to `value` and add 1 to `counter` ("": none) when this connection ends, also if the
  /// process is killed or its host is cut off (store::kSilence). The last call counts; an empty key removes the will.
  /// Returns false if the store does not support it (torchrun's agent).
  bool last_will(const std::string& key, const std::string& value, const std::string& counter = "");

  /// The same store with `prefix` before every key.
  Store scoped(const std::string& prefix) const;

  const std::string& prefix() const { return prefix_; }
  Handle& handle() const { return *handle_; }

 private:
  std::vector<std::string> full(const std::vector<std::string>& keys) const;

  std::shared_ptr<Handle> handle_;
  std::string prefix_;
};

} // namespace trireme::comm
