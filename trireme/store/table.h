#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace trireme::store {

/// The keys and values of a store, and the waits for keys. Independent of connections; not thread-safe.
class Table {
 public:
  void set(const std::string& key, std::string_view value);
  /// Returns nullptr if the key is not set.
  const std::string* find(const std::string& key) const;
  /// Adds to a decimal number that starts at 0 and returns the sum; nullopt if the value is not a number or the sum
  /// overflows.
  std::optional<int64_t> add(const std::string& key, int64_t delta);
  void append(const std::string& key, std::string_view value);
  /// Sets `desired` if the value is `expected`, or if there is none and `expected` is "". Returns the new value, or
  /// `expected` if there is none (as c10d::Store::compareSet requires).
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired);
  bool remove(const std::string& key);
  bool has_all(const std::vector<std::string>& keys) const;
  size_t size() const { return values_.size(); }

  /// Registers a wait of `waiter`, which has no other wait, for all keys. Returns true if they are already set.
  bool wait(uint64_t waiter, const std::vector<std::string>& keys);
  void forget(uint64_t waiter);
  /// The waiters whose keys have all been set since the last call.
  std::vector<uint64_t> take_ready();

 private:
  void wake(const std::string& key);

  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::unordered_set<uint64_t>> waiters_;
  std::unordered_map<uint64_t, std::unordered_set<std::string>> missing_;
  std::vector<uint64_t> ready_;
};

} // namespace trireme::store
