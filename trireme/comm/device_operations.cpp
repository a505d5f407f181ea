#include <trireme/comm/device_operations.h>

#include <algorithm>
#include <array>

namespace trireme::comm {
namespace {

/// If nothing polls it (the job's store is gone), the list must stay bounded.
constexpr size_t kMost = 4096;

} // namespace

std::shared_ptr<DeviceOperations::Entry> DeviceOperations::add(OpTicket ticket, std::shared_ptr<DeviceMark> mark) {
  auto entry = std::make_shared<Entry>();
  entry->ticket = std::move(ticket);
  entry->mark = std::move(mark);
  entry->since = Clock::now();
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= kMost) {
    entries_.erase(entries_.begin(), entries_.begin() + kMost / 2);
  }
  entries_.push_back(entry);
  return entry;
}

DeviceOperations::Findings DeviceOperations::look(std::chrono::milliseconds patience) {
  Findings found;
  std::array<Clock::time_point, 2> last_finished = {}; // of collectives, of messages
  for (const auto& entry : entries()) {
    const OpTicket& ticket = entry->ticket;
    if (entry->dropped) {
      entry->gone = true;
      continue;
    }
    const auto now = Clock::now();
    Clock::time_point& before = last_finished[ticket.op.is_message() ? 1 : 0];
    std::optional<Trouble> trouble;
    try {
      if (entry->mark->finished()) {
        before = now;
        found.finished.push_back(ticket);
        entry->gone = true;
        continue;
      }
      if (const int64_t steps = entry->mark->steps(); steps != entry->steps) {
        entry->steps = steps;
        before = now;
      }
    } catch (const Trouble& problem) {
      trouble = problem;
    } catch (const std::exception& error) {
      trouble = Trouble(Trouble::Kind::by_device, error.what());
    }
    {
      const std::lock_guard lock(mutex_);
      entry->since = std::max(entry->since, before);
    }
    if (!trouble && now - entry->since >= patience) {
      trouble = Trouble(Trouble::Kind::on_device, "a device has not finished it");
    }
    if (trouble && !found.trouble) {
      found.trouble.emplace(ticket, *trouble);
    }
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const auto& entry) { return entry->gone; });
  return found;
}

std::optional<std::pair<OpSummary, DeviceOperations::Clock::time_point>> DeviceOperations::oldest() const {
  const std::lock_guard lock(mutex_);
  const Entry* oldest = nullptr;
  for (const auto& entry : entries_) {
    if (!entry->dropped && (oldest == nullptr || entry->since < oldest->since)) {
      oldest = entry.get();
    }
  }
  return oldest == nullptr ? std::nullopt : std::optional(std::pair(oldest->ticket.op, oldest->since));
}

void DeviceOperations::clear() {
  std::vector<std::shared_ptr<Entry>> entries;
  const std::lock_guard lock(mutex_);
  entries.swap(entries_);
}

size_t DeviceOperations::count() const {
  return entries().size();
}

std::vector<std::shared_ptr<DeviceOperations::Entry>> DeviceOperations::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

} // namespace trireme::comm
