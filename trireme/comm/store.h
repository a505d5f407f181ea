#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

/// Small strings that all ranks see: how they meet and tell each other where they are.
///
/// A view on a c10d store under a key prefix; copies share the connection, and calls
/// of several threads take turns. Cost: one round trip to the host of the store a call.
/// Errors: PeerError when the store cannot be reached any more.
class Store {
 public:
  struct Handle;
  explicit Store(std::shared_ptr<Handle> handle, std::string prefix = "");

  void set(const std::string& key, const std::string& value);
  /// nullopt when nobody has set it yet.
  std::optional<std::string> find(const std::string& key);
  /// Adds atomically to a counter that starts at 0 and returns the new value.
  int64_t add(const std::string& key, int64_t delta);
  /// Blocks until all keys are set; false when they are not after `timeout`.
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);

  /// The same store with `prefix` before every key.
  Store scoped(const std::string& prefix) const;

  const std::string& prefix() const {
    return prefix_;
  }
  const Handle& handle() const {
    return *handle_;
  }

 private:
  std::shared_ptr<Handle> handle_;
  std::string prefix_;
};

} // namespace trireme::comm
