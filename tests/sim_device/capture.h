#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// What the graphs of the simulated device (graph.cpp) share with its operators, streams and memory. All functions want
// the timeline's mutex to be held.
namespace trireme::sim {

/// Memory that graphs allocate while they are recorded. Never given back to other owners.
struct PrivatePool;

/// One launch of a recording. `work` runs it again, on the same memory; without it the launch cannot be replayed.
struct RecordedLaunch {
  std::string name;
  std::function<void()> work;
};

/// Whether launches on this stream are recorded.
bool is_captured(int stream);
/// Whether a replay runs: its launches count as one.
bool is_replaying();
/// Records a launch on a captured stream.
std::shared_ptr<RecordedLaunch> record_launch(const std::string& name);
/// Throws as CUDA does if the calling thread captures.
void refuse_in_capture(const std::string& what);
/// Throws for a launch on a captured stream.
[[noreturn]] void refuse_capture_of(const std::string& what);
/// Number of the capture that the stream belongs to; 0: none.
int64_t capture_of(int stream);
/// The stream waits for an event that was recorded in this capture (0: in none). Throws as CUDA does if it is another
/// one than the stream's; a stream that is not captured joins the event's.
void wait_in_capture(int stream, int64_t capture_of_event);
/// The pool of the capture under way if memory for this stream belongs to it; null: none.
PrivatePool* pool_for(int stream);

// ---- memory.cpp

PrivatePool* make_private_pool();
/// All memory of a device that is no pool's, to be put back later.
std::vector<std::pair<size_t, std::vector<char>>> memory_snapshot(int device);
void restore_memory(int device, const std::vector<std::pair<size_t, std::vector<char>>>& snapshot);

} // namespace trireme::sim
