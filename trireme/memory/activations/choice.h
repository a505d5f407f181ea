#pragma once

#include <trireme/memory/activations/ways.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

// Which part of a model is kept, recomputed or moved, so that a budget of memory is kept at the least cost. No tensors.
namespace trireme::activations {

/// What was measured of a part, for one micro-batch.
struct PartCost {
  /// Bytes that its forward saves for backward, beside its inputs; and those of its inputs.
  int64_t bytes = 0;
  int64_t input_bytes = 0;
  /// What of its inputs a rank keeps if it is recomputed: less where ranks keep shares.
  int64_t share_bytes = 0;
  /// Seconds.
  double forward = 0;
  double backward = 0;
  /// What of `bytes` stays where it is when the part is moved: storages that are too small, or of which little is seen.
  int64_t stay_bytes = 0;
  /// What buffers of the part take beyond its bytes, because they end where a block of a file does.
  int64_t padding = 0;
};

/// Seconds a byte: to leave, to come back, and what of it the computing thread does itself.
struct MoveCost {
  double out = 0;
  double in = 0;
  double busy = 0;
};

struct Problem {
  /// In the order of forward.
  std::vector<PartCost> parts;
  /// Those that may be chosen; keep is always one.
  std::vector<Way> allowed;
  MoveCost host;
  MoveCost nvme;
  /// Seconds between the last part's forward and its backward: head and loss.
  double after_last = 0;
  /// Seconds a byte of inputs of which ranks keep shares, to gather them.
  double gather = 0;
  /// Bytes.
  int64_t budget = 0;
  /// Bytes that may be in files, and on the host of a device, at a time.
  int64_t file_room = std::numeric_limits<int64_t>::max();
  int64_t host_room = std::numeric_limits<int64_t>::max();
  /// Micro-batches whose activations wait for their backward at a time: more than 1 in a pipeline.
  int64_t in_flight = 1;
  /// Of them those whose backward has made the gradients of inputs and not yet those of weights (zero-bubble): what
  /// came back for it stays until then.
  int64_t put_off = 0;
  /// How often what moves of a part is in memory a second time while parts move: 1 on a device, where what is copied
  /// stays until it has arrived; 2 on the CPU, for the buffers that a file is written from and read into, which are the
  /// memory of the part itself then.
  int64_t moving_copies = 1;
};

struct Choice {
  std::vector<Way> ways;
  /// Seconds of a micro-batch beyond those of keeping everything.
  double seconds = 0;
  /// The most bytes at a time.
  int64_t bytes = 0;
  int64_t in_files = 0;
  int64_t on_host = 0;
  bool fits = false;
};

/// What of a disk's room is used: pieces of several sizes do not fill it. And of a host's, where pinned memory comes in
/// powers of two.
inline constexpr double kUsableOfDisk = 0.95;
inline constexpr double kUsableOfHost = 0.5;

/// moving_copies of Problem.
constexpr int64_t moving_copies(bool on_device) {
  return on_device ? 1 : 2;
}

/// On a device, pinned memory that waits to be written: so many times the most that is leaving.
inline constexpr int64_t kStaged = 4;

/// `allowed` of Problem: what stays, and what goes to the host, or to files.
std::vector<Way> ways_that_move(bool to_host, bool to_files);

/// What these ways cost.
///
/// Memory: at each part, what the parts before it hold, its own activations and inputs, and, once a part has moved,
/// moving_copies times the largest that may: whole parts, or inputs where only those of recomputed parts have moved.
/// With two copies one of them is what a moved part has itself. Where several micro-batches are in flight one more: one
/// leaves while another comes back. Shares of inputs lie beside the gathered inputs while their part is computed again.
/// Time: a recomputed part adds its forward, and the gathering of its inputs. A move is hidden behind the forward of
/// the next part, and on the way back behind its backward; what it takes longer is added. The last part leaves behind
/// what lies between its forward and its backward, and need not come back: it is still in the memory that it left from,
/// or leaves from.
Choice judge(const Problem& problem, const std::vector<Way>& ways);

/// Gives parts that do the same (equal kind, bytes and input_bytes) the median of their times: a single measurement may
/// be of a moment when the machine did something else. `kinds`: a number for each part's class.
void even_out(std::vector<PartCost>& parts, const std::vector<int64_t>& kinds);

/// The ways that cost least among those that fit; if none do, those that need least memory, and `fits` is false.
///
/// Dynamic programming from the first part to the last over (bytes held, seconds) of which neither is worse than
/// another's: exact while there are at most 4096 of them, which is so for a hundred equal parts; beyond that the best
/// of each 1024th of the budget is kept. Where file_room or host_room is short, cheaper choices with less there may be
/// overlooked.
Choice choose(const Problem& problem);

/// Why nothing fits the budget, and what to do, by the choice that needs least: "no choice for the activations of 8
/// parts of stage 1 fits memory_budget, 10.0 MB: the least is 12.0 MB, with 8*recompute".
struct NoChoice {
  std::string what;
  std::string next;
};
NoChoice why_none_fits(const Problem& problem, const Choice& least, const std::string& of_stage = "");

} // namespace trireme::activations
