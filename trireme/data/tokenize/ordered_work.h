#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace trireme::data {

/// Items that one thread makes, several work on and one takes in their first order. At most `capacity` are under way.
template <typename Item>
class OrderedWork {
 public:
  explicit OrderedWork(size_t capacity) : capacity_(capacity) {}

  /// Adds an item; waits for room. False after stop().
  bool push(Item item) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || items_.size() < capacity_; });
    if (stopped_) {
      return false;
    }
    items_.push_back(std::make_unique<Entry>(std::move(item)));
    changed_.notify_all();
    return true;
  }
  /// No more items will come.
  void close() { set(closed_); }
  /// Ends all waiting.
  void stop() { set(stopped_); }

  /// Calls `work(item)` for items that no other thread has, until there are no more. `work` must not throw.
  template <typename Work>
  void work_on(Work&& work) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopped_ || next_ < items_.size() || closed_; });
      if (stopped_ || next_ == items_.size()) {
        return;
      }
      Entry& entry = *items_[next_++];
      lock.unlock();
      work(entry.item);
      lock.lock();
      entry.done = true;
      changed_.notify_all();
    }
  }

  /// Waits for the next item in order to be done; none after the last.
  std::optional<Item> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || (items_.empty() ? closed_ : items_.front()->done); });
    if (stopped_ || items_.empty()) {
      return std::nullopt;
    }
    std::optional<Item> item(std::move(items_.front()->item));
    items_.pop_front();
    --next_;
    changed_.notify_all();
    return item;
  }

 private:
  struct Entry {
    explicit Entry(Item made) : item(std::move(made)) {}
    Item item;
    bool done = false;
  };
  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }

  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Entry>> items_;
  size_t next_ = 0; // the first that no thread has
  bool closed_ = false;
  bool stopped_ = false;
};

} // namespace trireme::data
