#pragma once

#include <trireme/comm/shm/members.h>
#include <trireme/kernels/kernels.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace trireme::comm::shm {

enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, barrier };

/// One collective of this rank. `out` is undefined for all_reduce and broadcast: it is `in`.
struct Collective {
  Kind kind = Kind::barrier;
  kernels::Element element = kernels::Element::u8;
  kernels::Combine combine = kernels::Combine::sum;
  int root = 0;
  /// Type of the elements: copying collectives need only bytes, but the ranks must agree.
  at::ScalarType type = at::kByte;
  at::Tensor in;
  at::Tensor out;
  /// Elements of one rank's slice; for all_reduce and broadcast, of the tensor.
  int64_t count = 0;
  int64_t element_bytes = 1;

  // Filled in by Collectives.
  std::byte* in_data = nullptr;
  std::byte* out_data = nullptr;
  bool in_shared = true;
  bool out_shared = true;
  bool streams = false;
  int64_t step_count = 0;
  uint64_t signature = 0;
  uint64_t steps = 1;
  uint64_t posted = 0;
  uint64_t finished = 0;
};

/// The collectives of one group on this rank, in order.
///
/// A collective is cut into steps of about 1 MiB per rank. Every rank posts the addresses of its part of a step. When
/// all have, any waiting rank takes pieces of the step, reads all ranks' memory and writes the results into all ranks'
/// memory. So a rank that still computes is not needed, and all ranks get the same bits. Memory outside an arena is
/// copied into a staging area before the step and out of it after.
///
/// Small steps are done at once by the last rank to arrive. If all ranks are awake on different cores, small
/// all-reduces are left to rank 0, so that their memory stays in one core's caches; the others take over after a
/// moment. Not thread-safe, except stirs(): the caller holds the progress lock.
class Collectives {
 public:
  explicit Collectives(Members& members) : members_(members) {}
  ~Collectives();

  /// The slot to describe the next collective.
  Collective& next();
  /// Begins it, as far as there is room, and returns its number. Does small ones at once if all others have arrived.
  uint64_t start();
  bool finished(uint64_t op) const { return op < first_op_; }
  /// Does a bounded piece of work; returns whether there was any.
  bool progress();
  /// The next progress() does the work that it would leave to rank 0.
  void stop_leaving();
  bool pending() const { return first_op_ < next_op_; }
  /// False if progress() would find no work, judged by one look at the others. Thread-safe without the
  /// lock.
  bool stirs() const;
  /// All members have posted the oldest step of ours.
  bool all_have_come() const { return first_ < next_ && ready(first_); }
  /// A member has posted something else than this rank. The group is broken then.
  bool mismatch() const { return mismatch_; }
  /// True if that member has posted this rank's oldest unfinished posted step.
  bool has_come(int member) const;

 private:
  struct Step {
    /// The number of its operation.
    uint64_t op = 0;
    int64_t begin = 0;
    int64_t end = 0;
    std::byte* staging = nullptr;
    /// Sum over all ranks' parts.
    uint64_t pieces = 0;
    /// Times that this rank will still find the step ready and leave it to rank 0.
    int leaves = 0;
  };
  struct Range {
    int64_t begin;
    int64_t end;
  };
  struct RankShare {
    Range all;
    int64_t piece;
    uint64_t pieces;
  };

  bool ready(uint64_t step) const;
  bool post_some();
  void post(uint64_t op);
  bool work(uint64_t step);
  bool finish_some();
  bool give_out();
  bool leaves_to_first(const Collective& op, const Step& step) const;
  void note_what_stirs();
  RankShare part(const Step& step, int index) const;
  uint64_t all_pieces(const Step& step) const;
  bool same_everywhere(const Step& step, uint64_t number) const;
  void do_piece(const Step& step, uint64_t number, int index, Range range);
  void gather(const Step& step, uint64_t number, int index, Range range);
  void copy_in(const Step& step);
  void copy_out(const Step& step);
  std::byte* staging(uint64_t step);
  Step& local(uint64_t step) { return steps_[step % kSteps]; }
  Collective& op(uint64_t number) { return ops_[number % ops_.size()]; }
  const Collective& op_of(const Step& step) const { return ops_[step.op % ops_.size()]; }

  Members& members_;
  /// Unfinished operations, by number; grows if more are begun at once.
  std::vector<Collective> ops_ = std::vector<Collective>(16);
  /// Oldest operation not finished, oldest with steps to post, next to begin.
  uint64_t first_op_ = 1;
  uint64_t posted_op_ = 1;
  uint64_t next_op_ = 1;
  std::array<Step, kSteps> steps_;
  /// Oldest step not finished, oldest step with work to give out, next step to post.
  uint64_t first_ = 1;
  uint64_t given_out_ = 1;
  uint64_t next_ = 1;
  std::byte* staging_ = nullptr;
  bool mismatch_ = false;
  /// Read by stirs(): the oldest step, 0 if more is to check; the number of pieces that ends it; whether it has pieces
  /// to give out.
  std::atomic<uint64_t> watched_{0};
  std::atomic<uint64_t> watched_pieces_{0};
  std::atomic<bool> watched_has_work_{false};
};

} // namespace trireme::comm::shm
