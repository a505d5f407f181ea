#include <trireme/comm/shm/collectives.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cstring>

namespace trireme::comm::shm {
namespace {

/// Most bytes of one rank's tensor per step.
constexpr int64_t kStepBytes = 1 << 20;
/// Steps in progress with memory outside the arena.
constexpr uint64_t kStagingSteps = 4;
/// Bytes of a piece, which a rank takes at a time.
constexpr int64_t kPieceBytes = 64 << 10;
/// Below this a second rank costs more than it helps.
constexpr int64_t kSmallBytes = 16 << 10;
/// Work up to this is done while posting.
constexpr int64_t kInlineBytes = 64 << 10;
/// Larger than a core's caches: copies bypass them.
constexpr int64_t kStreamBytes = 8 << 20;
/// Cuts fall on cache lines.
constexpr int64_t kCut = 64;
/// Polls for which a rank leaves a small step to rank 0: about a microsecond.
constexpr int kLeaves = 4;

int64_t divide_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}
int64_t round_up(int64_t value, int64_t step) {
  return divide_up(value, step) * step;
}

bool in_slices(Kind kind) {
  return kind == Kind::reduce_scatter || kind == Kind::all_to_all;
}
bool out_slices(Kind kind) {
  return kind == Kind::all_gather || kind == Kind::all_to_all;
}
bool in_place(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::broadcast;
}

} // namespace

Collectives::~Collectives() {
  if (staging_ != nullptr && !members_.broken()) {
    Arena::process().release(staging_);
  }
}

Collective& Collectives::next() {
  if (next_op_ - first_op_ == ops_.size()) {
    std::vector<Collective> more(2 * ops_.size());
    for (uint64_t number = first_op_; number < next_op_; ++number) {
      more[number % more.size()] = std::move(op(number));
    }
    ops_ = std::move(more);
  }
  return op(next_op_) = Collective();
}

uint64_t Collectives::start() {
  const uint64_t number = next_op_;
  Collective& op = this->op(number);
  Arena& arena = Arena::process();
  arena.header().note_core();
  if (op.kind != Kind::barrier) {
    op.in_data = static_cast<std::byte*>(op.in.data_ptr());
    op.in_shared = arena.contains(op.in_data, op.in.nbytes());
    op.out_data = in_place(op.kind) ? op.in_data : static_cast<std::byte*>(op.out.data_ptr());
    op.out_shared = in_place(op.kind) ? op.in_shared : arena.contains(op.out_data, op.out.nbytes());
  }
  ++next_op_; // nothing above has thrown
  const int64_t slices = in_slices(op.kind) || out_slices(op.kind) ? members_.size : 1;
  op.step_count = std::max(kCut, kStepBytes / (slices * op.element_bytes) / kCut * kCut);
  op.steps = std::max<uint64_t>(1, static_cast<uint64_t>(divide_up(op.count, op.step_count)));
  op.streams = op.count * op.element_bytes * slices >= kStreamBytes;
  op.signature = static_cast<uint64_t>(op.count);
  for (const int64_t value :
       {static_cast<int64_t>(op.kind), static_cast<int64_t>(op.element), static_cast<int64_t>(op.combine),
        static_cast<int64_t>(op.root), static_cast<int64_t>(op.type), op.element_bytes}) {
    op.signature = op.signature * 1'000'003 + static_cast<uint64_t>(value);
  }
  if (!members_.broken()) {
    finish_some();
    post_some();
    finish_some();
  }
  note_what_stirs();
  return number;
}

bool Collectives::ready(uint64_t step) const {
  for (int member = 0; member < members_.size; ++member) {
    if (members_.control.post(member, step).step.load() < step) {
      return false;
    }
  }
  return true;
}

bool Collectives::has_come(int member) const {
  return first_ >= next_ || members_.control.post(member, first_).step.load(std::memory_order_acquire) >= first_;
}

std::byte* Collectives::staging(uint64_t step) {
  if (staging_ == nullptr) {
    staging_ = static_cast<std::byte*>(Arena::process().allocate(2 * kStepBytes * kStagingSteps));
    if (staging_ == nullptr) {
      throw Error("comm", "shared memory is full.", "Free tensors, or set TRIREME_BACKEND=gloo.");
    }
  }
  return staging_ + 2 * kStepBytes * static_cast<int64_t>(step % kStagingSteps);
}

bool Collectives::post_some() {
  bool did = false;
  while (posted_op_ < next_op_) {
    const Collective& op = this->op(posted_op_);
    const bool staged = !op.in_shared || !op.out_shared;
    if (next_ - first_ >= (staged ? kStagingSteps : kSteps)) {
      break;
    }
    post(posted_op_);
    did = true;
    if (op.posted == op.steps) {
      ++posted_op_;
    }
  }
  return did;
}

void Collectives::post(uint64_t op_number) {
  Collective& op = this->op(op_number);
  const uint64_t number = next_;
  Step& step = local(number);
  step.op = op_number;
  step.begin = static_cast<int64_t>(op.posted) * op.step_count;
  step.end = std::min(op.count, step.begin + op.step_count);
  step.staging = op.in_shared && op.out_shared ? nullptr : staging(number);
  step.pieces = all_pieces(step);
  copy_in(step);

  const Arena& arena = Arena::process();
  Post& post = members_.control.post(members_.rank, number);
  post.signature = op.signature;
  if (op.kind != Kind::barrier) {
    const auto whole = static_cast<uint64_t>(op.count * op.element_bytes);
    const auto range = static_cast<uint64_t>((step.end - step.begin) * op.element_bytes);
    const auto offset = static_cast<uint64_t>(step.begin * op.element_bytes);
    post.in = op.in_shared ? arena.offset_of(op.in_data) + offset : arena.offset_of(step.staging);
    post.in_stride = op.in_shared ? whole : range;
    post.out = op.out_shared
                   ? arena.offset_of(op.out_data) + offset
                   : arena.offset_of(step.staging) + (in_place(op.kind) ? 0 : static_cast<uint64_t>(kStepBytes));
    post.out_stride = op.out_shared ? whole : range;
    post.staged = op.out_shared ? 0 : 1;
  }
  post.step.store(number); // sequentially consistent: if two post at once, one must see both
  ++op.posted;
  ++next_;
  step.leaves = leaves_to_first(op, step) ? kLeaves : 0;
  if (!ready(number)) {
    return;
  }
  const bool small = (step.end - step.begin) * op.element_bytes * members_.size <= kInlineBytes;
  if (!small || given_out_ != number) {
    members_.ring_others();
  } else if (step.leaves == 0 || members_.others_sleep()) {
    while (given_out_ == number && work(number)) {
    }
  }
}

bool Collectives::leaves_to_first(const Collective& op, const Step& step) const {
  return op.kind == Kind::all_reduce && members_.rank != 0 &&
         (step.end - step.begin) * op.element_bytes <= kSmallBytes && !members_.shares_core();
}

Collectives::RankShare Collectives::part(const Step& step, int index) const {
  const Collective& op = op_of(step);
  const int64_t count = step.end - step.begin;
  RankShare part{{0, count}, std::max<int64_t>(kCut, kPieceBytes / op.element_bytes), 0};
  switch (op.kind) {
    case Kind::barrier:
      part.pieces = index == 0 ? 1 : 0;
      return part;
    case Kind::all_reduce: {
      const int64_t share =
          count * op.element_bytes <= kSmallBytes ? count : round_up(divide_up(count, members_.size), kCut);
      part.all = {std::min(count, share * index), std::min(count, share * (index + 1))};
      break;
    }
    case Kind::broadcast:
      part.all.end = index == op.root ? 0 : count;
      break;
    case Kind::all_gather:
    case Kind::all_to_all:
      part.piece = std::max(kCut, part.piece / members_.size);
      break;
    case Kind::reduce_scatter:
      break;
  }
  part.pieces = static_cast<uint64_t>(divide_up(part.all.end - part.all.begin, part.piece));
  return part;
}

uint64_t Collectives::all_pieces(const Step& step) const {
  const Collective& op = op_of(step);
  if (op.kind == Kind::all_reduce && (step.end - step.begin) * op.element_bytes <= kSmallBytes) {
    return op.count > 0 ? 1 : 0;
  }
  uint64_t pieces = 0;
  for (int index = 0; index < members_.size; ++index) {
    pieces += part(step, index).pieces;
  }
  return pieces;
}

bool Collectives::same_everywhere(const Step& step, uint64_t number) const {
  for (int member = 0; member < members_.size; ++member) {
    if (members_.control.post(member, number).signature != op_of(step).signature) {
      return false;
    }
  }
  return true;
}

bool Collectives::work(uint64_t number) {
  const Step& step = local(number);
  const Touch touch(members_);
  if (!touch) {
    return false;
  }
  for (int turn = 0; turn < members_.size; ++turn) {
    const int index = (members_.rank + turn) % members_.size;
    const RankShare part = this->part(step, index);
    const uint64_t piece = part.pieces == 0 ? 0 : members_.control.taken(number, index).take(number, part.pieces);
    if (piece >= part.pieces) {
      continue;
    }
    // Only now is it certain that no rank has posted newer data in the same slots.
    if (!same_everywhere(step, number)) {
      mismatch_ = true;
      return false;
    }
    const int64_t begin = part.all.begin + static_cast<int64_t>(piece) * part.piece;
    do_piece(step, number, index, {begin, std::min(part.all.end, begin + part.piece)});
    Counter& done = members_.control.done(number);
    if (step.pieces == 1) {
      done.set(number, 1);
    } else if (done.take(number, step.pieces) + 1 != step.pieces) {
      return true;
    }
    given_out_ = std::max(given_out_, number + 1);
    members_.ring_others();
    return true;
  }
  given_out_ = std::max(given_out_, number + 1);
  return false;
}

void Collectives::do_piece(const Step& step, uint64_t number, int index, Range range) {
  const Collective& op = op_of(step);
  const Control& control = members_.control;
  if (op.kind == Kind::barrier) {
    return;
  }
  if (op.kind != Kind::all_reduce && op.kind != Kind::reduce_scatter) {
    gather(step, number, index, range);
    return;
  }
  constexpr int kAtOnce = 64;
  const void* in[kAtOnce];
  void* out[kAtOnce];
  for (int member = 0; member < members_.size; ++member) {
    const Post& post = control.post(member, number);
    in[member] = members_.at(member, post.in) +
                 (op.kind == Kind::reduce_scatter ? post.in_stride * static_cast<uint64_t>(index) : 0);
    out[member] = members_.at(member, post.out);
  }
  kernels::CombineArgs args;
  args.in = in;
  args.inputs = members_.size;
  args.out = op.kind == Kind::all_reduce ? out : out + index;
  args.outputs = op.kind == Kind::all_reduce ? members_.size : 1;
  args.element = op.element;
  args.combine = op.combine;
  kernels::active_kernels().combine(args, range.begin, range.end);
}

/// The copying collectives: fills a range of what member `index` receives.
void Collectives::gather(const Step& step, uint64_t number, int index, Range range) {
  const Collective& op = op_of(step);
  const Control& control = members_.control;
  const Post& target = control.post(index, number);
  const auto offset = static_cast<uint64_t>(range.begin * op.element_bytes);
  const auto bytes = static_cast<size_t>((range.end - range.begin) * op.element_bytes);
  const int first = op.kind == Kind::broadcast ? op.root : 0;
  const int last = op.kind == Kind::broadcast ? op.root + 1 : members_.size;
  for (int member = first; member < last; ++member) {
    const Post& source = control.post(member, number);
    const uint64_t from_slice = op.kind == Kind::all_to_all ? source.in_stride * static_cast<uint64_t>(index) : 0;
    const uint64_t to_slice = op.kind == Kind::broadcast ? 0 : target.out_stride * static_cast<uint64_t>(member);
    const std::byte* from = members_.at(member, source.in + from_slice + offset);
    std::byte* to = members_.at(index, target.out + to_slice + offset);
    if (from == to) {
      continue;
    }
    if (op.streams && target.staged == 0) {
      kernels::active_kernels().stream_copy(to, from, static_cast<int64_t>(bytes));
    } else {
      std::memcpy(to, from, bytes);
    }
  }
}

void Collectives::copy_in(const Step& step) {
  const Collective& op = op_of(step);
  if (op.in_shared || (op.kind == Kind::broadcast && op.root != members_.rank)) {
    return;
  }
  const auto bytes = static_cast<size_t>((step.end - step.begin) * op.element_bytes);
  const int slices = in_slices(op.kind) ? members_.size : 1;
  for (int slice = 0; slice < slices; ++slice) {
    std::memcpy(step.staging + static_cast<size_t>(slice) * bytes,
                op.in_data + (slice * op.count + step.begin) * op.element_bytes, bytes);
  }
}

void Collectives::copy_out(const Step& step) {
  const Collective& op = op_of(step);
  if (op.out_shared || (op.kind == Kind::broadcast && op.root == members_.rank)) {
    return;
  }
  const auto bytes = static_cast<size_t>((step.end - step.begin) * op.element_bytes);
  const std::byte* from = step.staging + (in_place(op.kind) ? 0 : kStepBytes);
  const int slices = out_slices(op.kind) ? members_.size : 1;
  for (int slice = 0; slice < slices; ++slice) {
    std::memcpy(op.out_data + (slice * op.count + step.begin) * op.element_bytes,
                from + static_cast<size_t>(slice) * bytes, bytes);
  }
}

bool Collectives::finish_some() {
  bool did = false;
  while (first_ < next_) {
    Step& step = local(first_);
    if (members_.control.done(first_).of(first_) < step.pieces) {
      break;
    }
    copy_out(step);
    ++first_;
    given_out_ = std::max(given_out_, first_);
    did = true;
    Collective& op = this->op(step.op);
    if (++op.finished == op.steps) {
      op.in = at::Tensor();
      op.out = at::Tensor();
      ++first_op_;
    }
  }
  return did;
}

bool Collectives::progress() {
  if (!pending()) {
    return false;
  }
  bool did = finish_some();
  if (!mismatch_ && !members_.broken() && pending()) {
    did = post_some() || did;
    did = give_out() || did;
  }
  note_what_stirs();
  return did;
}

/// Takes one piece of the oldest step that has some.
bool Collectives::give_out() {
  while (given_out_ < next_ && ready(given_out_)) {
    Step& step = local(given_out_);
    if (step.leaves > 0 ? step.leaves-- > 0 : work(given_out_)) { // both are reasons not to sleep
      finish_some();
      return true;
    }
    if (mismatch_ || members_.broken()) {
      return false;
    }
  }
  return finish_some();
}

void Collectives::stop_leaving() {
  if (given_out_ < next_) {
    local(given_out_).leaves = 0;
  }
}

void Collectives::note_what_stirs() {
  const Step& oldest = local(first_);
  const bool only_oldest =
      first_ < next_ && posted_op_ == next_op_ && (given_out_ == first_ || given_out_ == next_) && !mismatch_;
  watched_pieces_.store(oldest.pieces, std::memory_order_relaxed);
  watched_has_work_.store(given_out_ == first_ && oldest.leaves == 0, std::memory_order_relaxed);
  watched_.store(only_oldest ? first_ : 0, std::memory_order_relaxed);
}

bool Collectives::stirs() const {
  const uint64_t step = watched_.load(std::memory_order_relaxed);
  return step == 0 || members_.control.done(step).of(step) >= watched_pieces_.load(std::memory_order_relaxed) ||
         (watched_has_work_.load(std::memory_order_relaxed) && ready(step));
}

} // namespace trireme::comm::shm
