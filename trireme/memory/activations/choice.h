#pragma once

#include <trireme/memory/activations/ways.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

// Chooses which parts of a model are kept, recomputed or moved, so that a memory budget holds at the least cost. No
// tensors.
namespace trireme::activations {

/// Measurements of a part, for one micro-batch.
struct PartCost {
  /// Bytes that its forward saves for backward, besides its inputs; and bytes of its inputs.
  int64_t bytes = 0;
  int64_t input_bytes = 0;
  /// Bytes of its inputs that a rank keeps if the part is recomputed: fewer if ranks keep shares.
  int64_t share_bytes = 0;
  /// Seconds.
  double forward = 0;
  double backward = 0;
  /// The part of `bytes` that is not moved with the part: storages that are too small, or of which little is viewed.
  int64_t stay_bytes = 0;
  /// Extra bytes of the part's buffers, which are padded to blocks of a file.
  int64_t padding = 0;
};

/// Seconds per byte: to move out, to move back, and of the computing thread itself.
struct MoveCost {
  double out = 0;
  double in = 0;
  double busy = 0;
};

struct Problem {
  /// In the order of forward.
  std::vector<PartCost> parts;
  /// Allowed policies; keep is always one.
  std::vector<Way> allowed;
  MoveCost host;
  MoveCost nvme;
  /// Seconds between the last part's forward and its backward: head and loss.
  double after_last = 0;
  /// Seconds per byte to gather inputs of which ranks keep shares.
  double gather = 0;
  /// Bytes.
  int64_t budget = 0;
  /// Bytes that may be in files, and in the memory of a device's host, at a time.
  int64_t file_room = std::numeric_limits<int64_t>::max();
  int64_t host_room = std::numeric_limits<int64_t>::max();
  /// Micro-batches whose activations wait for their backward at a time: more than 1 in a pipeline.
  int64_t in_flight = 1;
  /// Those of them whose backward has computed the gradients of inputs but not of weights (zero-bubble): what was moved
  /// back for it stays until then.
  int64_t put_off = 0;
  /// Copies of a moving part in memory while parts move. 1 on a device, where the source stays until it is copied. 2 on
  /// the CPU: files are written from and read into buffers, which are then the part's own memory.
  int64_t moving_copies = 1;
};

struct Choice {
  std::vector<Way> ways;
  /// Seconds per micro-batch more than keeping everything.
  double seconds = 0;
  /// Peak bytes.
  int64_t bytes = 0;
  int64_t in_files = 0;
  int64_t on_host = 0;
  bool fits = false;
};

/// The usable share of a disk's free space, because pieces of several sizes do not fill it; and of a host's, because
/// pinned memory is rounded up to powers of two.
inline constexpr double kUsableOfDisk = 0.95;
inline constexpr double kUsableOfHost = 0.5;

/// Problem::moving_copies.
constexpr int64_t moving_copies(bool on_device) {
  return on_device ? 1 : 2;
}

/// On a device: limit of pinned memory waiting to be written, as a multiple of the most that is being moved out.
inline constexpr int64_t kStaged = 4;

/// Problem::allowed: the policies that stay, and those that move to the host or to files.
std::vector<Way> ways_that_move(bool to_host, bool to_files);

/// The cost of these policies.
///
/// Memory at each part: what earlier parts hold, its own activations and inputs, and, once a part has moved,
/// moving_copies times the largest movable part, or inputs if only those of recomputed parts have moved. With two
/// copies, one of them is a moved part's own memory. Several micro-batches in flight add one copy: one moves out while
/// another moves back. Shares of inputs lie beside the gathered inputs while their part is recomputed.
///
/// Time: a recomputed part adds its forward and the gathering of its inputs. Moves out are assumed to overlap the next
/// part's forward, moves back its backward; the rest is added. The last part's move out overlaps the time between its
/// forward and its backward. It need not move back: its original memory still exists.
Choice judge(const Problem& problem, const std::vector<Way>& ways);

/// Gives equal parts (same kind, bytes and input_bytes) the median of their times, because a single measurement may
/// coincide with other load. `kinds`: a number per part for its class.
void even_out(std::vector<PartCost>& parts, const std::vector<int64_t>& kinds);

/// Returns the cheapest policies that fit; if none do, those that need the least memory, with `fits` false.
///
/// Dynamic programming over the parts in order, with states (bytes held, seconds) that are not dominated by another.
/// Exact up to 4096 such states, enough for a hundred equal parts; beyond that the best of each 1024th of the budget is
/// kept. If file_room or host_room is short, cheaper choices that use less of it may be missed.
Choice choose(const Problem& problem);

/// Why nothing fits the budget, and what to do, based on the choice that needs the least memory: "no choice for the
/// activations of 8 parts of stage 1 fits memory_budget, 10.0 MB: the least is 12.0 MB, with 8*recompute".
struct NoChoice {
  std::string what;
  std::string next;
};
NoChoice why_none_fits(const Problem& problem, const Choice& least, const std::string& of_stage = "");

} // namespace trireme::activations
