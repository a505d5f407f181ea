#include "timeline.h"

#include "capture.h"
#include "memory.h"

#include <trireme/base/error.h>

#include <algorithm>
#include <cstring>

namespace trireme::sim {

void join(Clock& a, const Clock& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = std::max(a[i], b[i]);
  }
}

Timeline& timeline() {
  static auto* const the = new Timeline(); // threads of libtorch outlive statics
  return *the;
}

int clock_of(int device, int64_t stream) {
  return device * kStreamsEach + static_cast<int>(stream);
}

std::string stream_name(int clock) {
  return concat("stream ", clock % kStreamsEach,
                clock < kStreamsEach ? "" : concat(" of device ", clock / kStreamsEach));
}

Clock& Timeline::host() {
  static thread_local Clock clock{};
  return clock;
}

void Timeline::report(const std::string& problem) {
  if (problems.size() < 50) {
    problems.push_back(problem);
  }
}

double& Timeline::host_time() {
  static thread_local double time = 0;
  return time;
}

double Timeline::time_of(const Clock& done) const {
  double time = 0;
  for (size_t stream = 0; stream < done.size(); ++stream) {
    time = done[stream] == 0 ? time : std::max(time, ends_[stream][static_cast<size_t>(done[stream]) - 1]);
  }
  return time;
}

void Timeline::launch(const std::string& kernel, int stream) {
  Clock& clock = streams_[static_cast<size_t>(stream)];
  join(clock, host());
  ++clock[static_cast<size_t>(stream)];
  double& time = times_[static_cast<size_t>(stream)];
  const double begin = std::max(time, host_time());
  time = begin + 1;
  ends_[static_cast<size_t>(stream)].push_back(time);
  if (keeps_spans) {
    spans.push_back({kernel, stream, begin, time});
  }
}

void Timeline::touch(const std::string& kernel, int stream, uintptr_t begin, uintptr_t end, bool writes,
                     bool between_devices) {
  if (const auto* const memory = reinterpret_cast<const void*>(begin);
      !between_devices && is_device_pointer(memory) && device_of(memory) != stream / kStreamsEach) {
    report(concat(kernel, " on stream ", stream % kStreamsEach, " of device ", stream / kStreamsEach,
                  writes ? " writes" : " reads", " memory of device ", device_of(memory)));
  }
  auto block = blocks_.upper_bound(begin);
  if (begin >= end || block == blocks_.begin()) {
    return;
  }
  --block;
  if (begin >= block->first + static_cast<uintptr_t>(block->second.bytes)) {
    report(concat(kernel, " on ", stream_name(stream), writes ? " writes" : " reads", " memory that was freed"));
    return;
  }
  const Clock& clock = streams_[static_cast<size_t>(stream)];
  std::vector<Access>& accesses = block->second.accesses;
  const auto before = std::find_if(accesses.rbegin(), accesses.rend(), [&](const Access& one) {
    return (one.writes || writes) && one.begin < end && begin < one.end &&
           clock[static_cast<size_t>(one.stream)] < one.clock;
  });
  if (before != accesses.rend()) {
    report(concat(kernel, " on ", stream_name(stream), writes ? " writes" : " reads", " what ", before->kernel, " on ",
                  stream_name(before->stream), before->writes ? " wrote" : " reads", ", without waiting for it"));
  }
  std::erase_if(accesses, [&](const Access& before) {
    return before.begin >= begin && before.end <= end && clock[static_cast<size_t>(before.stream)] >= before.clock &&
           (writes || !before.writes);
  });
  accesses.push_back({begin, end, writes, stream, clock[static_cast<size_t>(stream)], kernel});
}

void Timeline::host_waits(const Clock& done, const std::string& what, bool counts) {
  if (counts) {
    refuse_in_capture(what);
  }
  join(host(), done);
  host_time() = std::max(host_time(), time_of(done));
  arrive(host());
  if (counts) {
    synchronisations.push_back(what);
    launched_behind.push_back(0);
    for (size_t stream = 0; stream < done.size(); ++stream) {
      launched_behind.back() += done[stream] == 0 ? 0 : streams_[stream][stream] - done[stream];
    }
  }
}

bool Timeline::untouched(const HostCopy& copy) const {
  return copy.to_host ? std::all_of(copy.host, copy.host + copy.bytes.size(), [](char byte) { return byte == '\xff'; })
                      : std::memcmp(copy.host, copy.bytes.data(), copy.bytes.size()) == 0;
}

void Timeline::deliver(const HostCopy& copy) {
  if (!untouched(copy)) {
    report(concat("the host changed pinned memory while ", stream_name(copy.stream),
                  copy.to_host ? " copied into it" : " copied it to the device"));
  }
  if (copy.to_host) {
    std::memcpy(copy.host, copy.bytes.data(), copy.bytes.size());
  }
}

void Timeline::arrive(const Clock& known) {
  std::erase_if(copies_, [&](const HostCopy& copy) {
    const bool done = known[static_cast<size_t>(copy.stream)] >= copy.clock;
    if (done) {
      deliver(copy);
    }
    return done;
  });
}

// Copies that this one follows are over.
void Timeline::order_copies(int stream, const char* begin, size_t bytes, bool writes) {
  std::erase_if(copies_, [&](const HostCopy& copy) {
    const bool overlaps =
        copy.host < begin + bytes && begin < copy.host + copy.bytes.size() && (copy.to_host || writes);
    if (overlaps) {
      if (now(stream)[static_cast<size_t>(copy.stream)] < copy.clock) {
        report(concat(stream_name(stream), writes ? " copies into" : " copies", " pinned memory that ",
                      stream_name(copy.stream), copy.to_host ? " still writes" : " still reads",
                      ", without waiting for it"));
      }
      deliver(copy);
    }
    return overlaps;
  });
}

void Timeline::copy_to_host(int stream, void* to, std::vector<char> bytes) {
  order_copies(stream, static_cast<const char*>(to), bytes.size(), /*writes=*/true);
  std::memset(to, 0xff, bytes.size()); // NaN, for who reads too early
  copies_.push_back({stream, now(stream)[static_cast<size_t>(stream)], static_cast<char*>(to), std::move(bytes), true});
}

// Nothing is copied twice: the bytes are kept to see whether they change.
void Timeline::copy_from_host(int stream, const void* from, int64_t bytes) {
  auto* const begin = static_cast<char*>(const_cast<void*>(from));
  order_copies(stream, begin, static_cast<size_t>(bytes), /*writes=*/false);
  copies_.push_back(
      {stream, now(stream)[static_cast<size_t>(stream)], begin, std::vector<char>(begin, begin + bytes), false});
}

void Timeline::pinned_freed(const void* begin, int64_t bytes) {
  const auto* const first = static_cast<const char*>(begin);
  std::erase_if(copies_, [&](const HostCopy& copy) {
    const bool inside = copy.host >= first && copy.host < first + bytes;
    if (inside && copy.to_host) {
      report(concat("pinned memory was freed while ", stream_name(copy.stream), " copies into it"));
    } else if (inside) {
      deliver(copy);
    }
    return inside; // a caching allocator of pinned memory waits for copies from it
  });
}

void Timeline::check_copies() {
  std::erase_if(copies_, [&](const HostCopy& copy) {
    const bool changed = !untouched(copy);
    if (changed) {
      deliver(copy);
    }
    return changed;
  });
}

void Timeline::allocated(uintptr_t begin, int64_t bytes, int stream) {
  const Access earlier{begin,  begin + static_cast<uintptr_t>(bytes),    true,
                       stream, now(stream)[static_cast<size_t>(stream)], "an earlier owner of the memory"};
  blocks_[begin] = Block{bytes, stream, {}, {earlier}};
}

Timeline::Freed Timeline::freed(uintptr_t begin) {
  const auto found = blocks_.find(begin);
  if (found == blocks_.end()) {
    return {};
  }
  const Block& block = found->second;
  Clock known = now(block.stream);
  join(known, host());
  Freed freed{block.bytes, std::nullopt};
  for (const Access& access : block.accesses) {
    if (known[static_cast<size_t>(access.stream)] < access.clock && block.recorded.count(access.stream) == 0) {
      report(concat("memory of ", stream_name(block.stream), " was freed while ", access.kernel, " on ",
                    stream_name(access.stream), " uses it: record_stream() is missing"));
    }
  }
  for (const int stream : block.recorded) {
    if (stream != block.stream) {
      freed.recorded = freed.recorded.value_or(Clock{});
      join(*freed.recorded, now(stream));
    }
  }
  blocks_.erase(found);
  return freed;
}

int Timeline::stream_of(uintptr_t begin) const {
  const auto block = blocks_.find(begin);
  return block == blocks_.end() ? 0 : block->second.stream;
}

void Timeline::recorded(uintptr_t begin, int stream) {
  if (const auto block = blocks_.find(begin); block != blocks_.end()) {
    block->second.recorded.insert(stream);
  }
}

// ---- the public face

std::vector<std::string> problems() {
  const std::lock_guard lock(timeline().mutex);
  timeline().check_copies();
  return timeline().problems;
}
void clear_problems() {
  const std::lock_guard lock(timeline().mutex);
  timeline().problems.clear();
}
int64_t host_synchronisations() {
  const std::lock_guard lock(timeline().mutex);
  return static_cast<int64_t>(timeline().synchronisations.size());
}
std::vector<std::string> host_synchronisation_names() {
  const std::lock_guard lock(timeline().mutex);
  return timeline().synchronisations;
}
std::vector<int64_t> launched_behind_host_synchronisations() {
  const std::lock_guard lock(timeline().mutex);
  return timeline().launched_behind;
}
void reset_host_synchronisations() {
  const std::lock_guard lock(timeline().mutex);
  timeline().synchronisations.clear();
  timeline().launched_behind.clear();
}
int64_t launches(int device) {
  const std::lock_guard lock(timeline().mutex);
  int64_t all = 0;
  for (int stream = clock_of(device, 0); stream < clock_of(device, kStreamsEach); ++stream) {
    all += timeline().now(stream)[static_cast<size_t>(stream)];
  }
  return all;
}
void keep_spans(bool on) {
  const std::lock_guard lock(timeline().mutex);
  timeline().keeps_spans = on;
  timeline().spans.clear();
}
std::vector<Span> spans() {
  const std::lock_guard lock(timeline().mutex);
  return timeline().spans;
}
void host_works(double milliseconds) {
  Timeline::host_time() += milliseconds;
}
double host_time() {
  return Timeline::host_time();
}
Copied copied() {
  const std::lock_guard lock(timeline().mutex);
  return timeline().copied;
}
void set_polls(int polls) {
  const std::lock_guard lock(timeline().mutex);
  timeline().polls = polls;
}

} // namespace trireme::sim
