#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace trireme::data {

/// Items that one thread makes, several work on and one takes in their first order. At most `capacity` are under way,
/// which have at most `most_bytes` together; one that has more is under way alone.
template <typename Item>
class OrderedWork {
 public:
  OrderedWork(size_t capacity, size_t most_bytes) : capacity_(capacity), most_bytes_(most_bytes) {}

  /// Adds an item of so many bytes; waits for room. False after stop().
  bool push(Item item, size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return stopped_ || items_.empty() || (items_.size() < capacity_ && bytes_ + bytes <= most_bytes_);
    });
    if (stopped_) {
      return false;
    }
    bytes_ += bytes;
    items_.push_back(std::make_unique<Entry>(std::move(item), bytes));
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
    bytes_ -= items_.front()->bytes;
    items_.pop_front();
    --next_;
    changed_.notify_all();
    return item;
  }

 private:
  struct Entry {
    Entry(Item made, size_t size) : item(std::move(made)), bytes(size) {}
    Item item;
    size_t bytes;
    bool done = false;
  };
  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }

  const size_t capacity_;
  const size_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Entry>> items_;
  size_t bytes_ = 0; // of items_
  size_t next_ = 0;  // the first that no thread has
  bool closed_ = false;
  bool stopped_ = false;
};

} // namespace trireme::data
