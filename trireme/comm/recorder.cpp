#include <trireme/comm/recorder.h>

#include <nlohmann/json.hpp>

#include <chrono>

namespace trireme::comm {
namespace {

int64_t clock_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

const char* to_string(OpState state) {
  switch (state) {
    case OpState::queued:
      return "queued";
    case OpState::started:
      return "started";
    case OpState::on_device:
      return "on device";
    case OpState::done:
      return "done";
    case OpState::failed:
      return "failed";
  }
  return "?";
}

Recorder& Recorder::process() {
  // Never destroyed: a late Work may still write to it.
  static auto* recorder = new Recorder;
  return *recorder;
}

Recorder::Recorder() : begin_us_(clock_us()), ring_(kCapacity), states_(kCapacity) {}

int64_t Recorder::now_us() const {
  return clock_us() - begin_us_;
}

uint64_t Recorder::add(std::string_view group, int64_t number, const char* op, int64_t bytes, c10::ScalarType dtype,
                       std::string_view what, int peer) {
  const std::lock_guard lock(mutex_);
  const uint64_t ticket = next_++;
  Record& record = ring_[ticket % kCapacity];
  record.group = group;
  record.number = number;
  record.op = op;
  record.bytes = bytes;
  record.dtype = dtype;
  if (!what.empty() || !record.what.empty()) {
    record.what = what;
  }
  record.peer = peer;
  record.queued_us = now_us();
  record.finished_us = 0;
  states_[ticket % kCapacity].store(OpState::queued, std::memory_order_relaxed);
  return ticket;
}

void Recorder::change(uint64_t ticket, OpState state) {
  std::atomic<OpState>& place = states_[ticket % kCapacity];
  if (state == OpState::started) { // true too for a record that overwrote this one
    OpState queued = OpState::queued;
    place.compare_exchange_strong(queued, state, std::memory_order_relaxed);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (ticket + kCapacity < next_) {
    return;
  }
  Record& record = ring_[ticket % kCapacity];
  place.store(state, std::memory_order_relaxed);
  if (record.finished_us == 0) {
    record.finished_us = now_us();
  }
}

std::vector<Record> Recorder::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<Record> result;
  for (uint64_t ticket = next_ > kCapacity ? next_ - kCapacity : 0; ticket < next_; ++ticket) {
    result.push_back(ring_[ticket % kCapacity]);
    result.back().state = states_[ticket % kCapacity].load(std::memory_order_relaxed);
  }
  return result;
}

nlohmann::json Recorder::json() const {
  auto operations = nlohmann::json::array();
  for (const auto& record : records()) {
    nlohmann::json entry = {{"group", record.group},
                            {"number", record.number},
                            {"op", record.op},
                            {"bytes", record.bytes},
                            {"dtype", c10::toString(record.dtype)},
                            {"what", record.what},
                            {"state", to_string(record.state)},
                            {"queued_us", record.queued_us},
                            {"finished_us", record.finished_us}};
    if (record.peer >= 0) {
      entry["peer"] = record.peer;
    }
    operations.push_back(std::move(entry));
  }
  return {{"operations", std::move(operations)}};
}

} // namespace trireme::comm
