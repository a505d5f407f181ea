#include <trireme/store/table.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace trireme::store {

void Table::set(const std::string& key, std::string_view value) {
  values_.insert_or_assign(key, std::string(value));
  wake(key);
}

const std::string* Table::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<int64_t> Table::add(const std::string& key, int64_t delta) {
  std::string& value = values_[key];
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool readable = value.empty() || (error == std::errc() && end == value.data() + value.size());
  if (!readable || __builtin_add_overflow(number, delta, &number)) {
    return std::nullopt;
  }
  value = std::to_string(number);
  wake(key);
  return number;
}

void Table::append(const std::string& key, std::string_view value) {
  values_[key] += value;
  wake(key);
}

std::string Table::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
  const std::string* now = find(key);
  if (now == nullptr ? expected.empty() : *now == expected) {
    set(key, desired);
    return std::string(desired);
  }
  return now == nullptr ? std::string(expected) : *now;
}

bool Table::remove(const std::string& key) {
  return values_.erase(key) == 1;
}

bool Table::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return values_.count(key) == 1; });
}

bool Table::wait(uint64_t waiter, const std::vector<std::string>& keys) {
  std::unordered_set<std::string> missing;
  for (const auto& key : keys) {
    if (values_.count(key) == 0) {
      missing.insert(key);
      waiters_[key].insert(waiter);
    }
  }
  if (missing.empty()) {
    return true;
  }
  missing_[waiter] = std::move(missing);
  return false;
}

void Table::forget(uint64_t waiter) {
  const auto found = missing_.find(waiter);
  if (found == missing_.end()) {
    return;
  }
  for (const auto& key : found->second) {
    const auto others = waiters_.find(key);
    others->second.erase(waiter);
    if (others->second.empty()) {
      waiters_.erase(others);
    }
  }
  missing_.erase(found);
}

std::vector<uint64_t> Table::take_ready() {
  return std::exchange(ready_, {});
}

void Table::wake(const std::string& key) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) {
    return;
  }
  for (const uint64_t waiter : found->second) {
    const auto missing = missing_.find(waiter);
    missing->second.erase(key);
    if (missing->second.empty()) {
      missing_.erase(missing);
      ready_.push_back(waiter);
    }
  }
  waiters_.erase(found);
}

} // namespace trireme::store
