#include <trireme/comm/group_state.h>

#include <trireme/base/env.h>
#include <trireme/base/hash.h>
#include <trireme/base/log.h>
#include <trireme/base/notes.h>
#include <trireme/base/units.h>
#include <trireme/comm/hang_report.h>
#include <trireme/comm/late_ranks.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <ctime>
#include <numeric>

namespace trireme::comm {
namespace {

/// Steady clock at the kernel's last tick: a few milliseconds late, at a fifth of the cost.
int64_t coarse_now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// A hash of what must be equal on all ranks.
int64_t signature(const OpSummary& op) {
  return static_cast<int64_t>(
      fnv1a(concat(op.number, '/', op.op, '/', op.bytes, '/', op.dtype, '/', op.detail, '/', op.what)));
}

/// Answers arrive within two ticks of the others' watch threads; allow more, since a deadline has passed anyway.
constexpr std::chrono::milliseconds kPatienceForLost{500};
constexpr std::chrono::milliseconds kPatienceAtDeadline{1500};
/// Added to the time-out for device operations: a thread that waits on the host gets its error first.
constexpr std::chrono::milliseconds kHostFirst{500};

bool same(const OpSummary& a, const OpSummary& b) {
  return a.number == b.number && a.is_message() == b.is_message();
}

} // namespace

Group::State::State(std::string name, std::string key, std::vector<int> members, std::unique_ptr<Routes> routes,
                    std::chrono::milliseconds timeout, std::shared_ptr<Watch> watch, int world_size, Open open,
                    std::shared_ptr<LaunchOrder> order, std::optional<std::chrono::milliseconds> device_timeout)
    : name_(std::move(name)),
      kept_name_(keep_name(name_)),
      key_(std::move(key)),
      members_(std::move(members)),
      routes_(std::move(routes)),
      timeout_(timeout),
      device_timeout_(device_timeout.value_or(timeout)),
      watch_(std::move(watch)),
      world_size_(world_size),
      open_(std::move(open)),
      order_(std::move(order)),
      checks_(env::flag("TRIREME_CHECK")) {}

Group::State::~State() {
  if (reporter_.joinable()) {
    reporter_.join();
  }
}

Group::State::Ticket Group::State::begin(const char* op, int64_t bytes, at::ScalarType dtype, std::string_view what,
                                         int peer, const char* detail) {
  Ticket ticket;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      throw Error("comm", concat(op, " in group \"", name_, "\" after its world was closed."),
                  "Keep the World alive until the last operation: create it first in main() and close it last.");
    }
    if (!broken_.empty()) {
      throw PeerError("comm",
                      concat(op, " in group \"", name_, "\" cannot run, the group has failed before: ", broken_));
    }
    const int64_t number = (peer < 0 ? progress_.collectives : progress_.messages) + 1;
    ticket.op = {number, op,    bytes, c10::toString(dtype), std::string(what), peer < 0 ? -1 : members_[peer],
                 false,  detail};
    progress_.note(ticket.op);
    changed();
  }
  ticket.record = Recorder::process().add(kept_name_, ticket.op.number, op, bytes, dtype, what, peer);
  return ticket;
}

void Group::State::succeeded(const Ticket& ticket) {
  Recorder::process().change(ticket.record, OpState::done);
  const std::lock_guard lock(mutex_);
  progress_.mark_done(ticket.op);
  changed();
}

std::shared_ptr<DeviceOperations::Entry> Group::State::follow(const Ticket& ticket, std::shared_ptr<DeviceMark> mark) {
  return watch_ ? device_operations_.add(ticket, std::move(mark)) : nullptr;
}

void Group::State::on_device(const Ticket& ticket) {
  Recorder::process().change(ticket.record, OpState::on_device);
}

void Group::State::follow_device() {
  {
    const std::lock_guard lock(mutex_);
    if (over()) {
      return;
    }
  }
  const DeviceOperations::Findings found = device_operations_.look(device_timeout_ + kHostFirst);
  for (const Ticket& ticket : found.finished) {
    succeeded(ticket);
  }
  if (!found.trouble) {
    return;
  }
  const auto& [late, trouble] = *found.trouble;
  const std::lock_guard lock(mutex_);
  if (trouble.kind == Trouble::Kind::interrupted) { // the interrupter knows the reason
    device_operations_.clear();
  } else if (!over()) {
    Recorder::process().change(late.record, OpState::failed);
    start_report({late.op, trouble, device_timeout_});
  }
}

// A thread that waits for it gets the error when its group is interrupted.
void Group::State::give_up(const GroupProgress::WaitedOperation& wait, double limit) {
  const GroupProgress now = progress();
  const OpSummary* const op = now.awaited();
  const std::lock_guard lock(mutex_);
  if (op != nullptr && op->number == wait.number && op->is_message() == wait.message && !over()) {
    const auto kind = wait.on_device ? Trouble::Kind::on_device : Trouble::Kind::deadline;
    start_report({*op, Trouble(kind, "not done in time"),
                  std::chrono::milliseconds(static_cast<int64_t>(wait.seconds * 1000)), limit});
  }
}

void Group::State::start_report(const Failure& failure) {
  if (reporter_.joinable()) { // its report was no longer needed
    reporter_.join();
  }
  reporting_ = true;
  reporter_ = std::thread([this, failure] {
    report(failure);
    reporting_ = false;
  });
}

void Group::State::report(const Failure& failure) noexcept {
  try {
    if (const auto error = explained(failure)) {
      watch_->fail_groups(error->what());
    }
  } catch (const std::exception& error) {
    log::error(describe(failure.op), " in group \"", name_, "\": ", failure.trouble.happened,
               ", and no report can be made: ", error.what());
    interrupt();
  }
}

void Group::State::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_.empty()) {
      broken_ = why;
    }
  }
  interrupt();
}

void Group::State::report_failure(const std::string& why) {
  if (watch_) {
    watch_->report(why, {});
  }
}

void Group::State::abandoned(const Ticket& ticket) {
  Recorder::process().change(ticket.record, OpState::failed);
  const std::lock_guard lock(mutex_); // its destructor has waited: it is not used again
  progress_.mark_done(ticket.op);
  changed();
}

PeerError Group::State::failed(const Ticket& ticket, const Trouble& trouble) {
  Recorder::process().change(ticket.record, OpState::failed);
  return *explained({ticket.op, trouble, timeout_});
}

std::optional<PeerError> Group::State::explained(const Failure& failure) {
  const auto& [op, trouble, waited, limit] = failure;
  // One roll call explains the failure of all operations in progress.
  const std::lock_guard failing(failing_);
  explaining_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return PeerError("comm", concat(describe(op), " in group \"", name_, "\" was ended with its world."));
    }
    if (first_error_ && same(first_error_->first, op)) { // found by the watch
      return first_error_->second;
    }
    if (!broken_.empty()) {
      return PeerError("comm",
                       concat(describe(op), " in group \"", name_, "\" failed, as an operation before it: ", broken_));
    }
  }
  const bool late = trouble.kind == Trouble::Kind::deadline || trouble.kind == Trouble::Kind::on_device;
  RollCall roll_call;
  if (watch_) {
    std::vector<int> asked = members_;
    if (late) { // the rank that blocks a member may be in any group
      asked.resize(static_cast<size_t>(world_size_));
      std::iota(asked.begin(), asked.end(), 0);
    }
    roll_call = watch_->roll_call(asked, key_, late ? kPatienceAtDeadline : kPatienceForLost, late);
  }
  const Asker asker{name_, members_, members_[rank()], world_size_, waited, progress()};
  if (limit > 0 && roll_call.store_answers && !is_hopeless(asker, failure, roll_call)) {
    explaining_ = false;
    return std::nullopt;
  }
  const PeerError error = explain(asker, op, trouble, roll_call);
  {
    const std::lock_guard lock(mutex_);
    broken_ = error.what();
    first_error_.emplace(op, error);
  }
  if (watch_) {
    std::vector<int> silent;
    for (const auto& [rank, peer] : roll_call.peers) {
      if (!peer.answered && !peer.left) {
        silent.push_back(rank);
      }
    }
    watch_->report(error.what(), silent, late ? hang(asker, op, roll_call) : std::nullopt);
  }
  return error;
}

bool Group::State::is_hopeless(const Asker& asker, const Failure& failure, const RollCall& roll_call) const {
  const GroupProgress own = progress();
  const OpSummary* const op = own.awaited();
  std::map<int, PeerView> ranks = roll_call.peers;
  ranks[asker.world_rank] = roll_call.own;
  return op != nullptr && same(*op, failure.op) &&
         judge(ranks, asker.world_rank, key_, failure.limit).kind == Outlook::Kind::hopeless;
}

std::optional<Hang> Group::State::hang(const Asker& asker, const OpSummary& op, const RollCall& roll_call) const {
  std::map<int, PeerView> ranks = roll_call.peers;
  if (!roll_call.store_answers && roll_call.store_host >= 0) {
    ranks[roll_call.store_host].state = roll_call.store_host_state;
  }
  ranks[asker.world_rank] = roll_call.own;
  Hang hang;
  hang.alone = !roll_call.store_answers;
  const std::string after = format_seconds(static_cast<double>(asker.waited.count()) / 1000);
  hang.text = hang_text(ranks, asker.world_rank,
                        concat(describe(op), " in group \"", name_, "\" is not done after ", after, " on rank ",
                               asker.world_rank, " of ", world_size_));
  hang.printer = asker.world_rank;
  for (const auto& [rank, view] : ranks) {
    hang.printer = view.answered && !view.left ? std::min(hang.printer, rank) : hang.printer;
  }
  return hang;
}

void Group::State::interrupt() {
  routes_->interrupt();
  if (order_) {
    order_->interrupt();
  }
}

void Group::State::check_order(const Ticket& ticket) {
  const std::string call = concat(ticket.op.op, " #", ticket.op.number, " of group \"", name_, '"',
                                  ticket.op.what.empty() ? "" : concat(" (\"", ticket.op.what, "\")"));
  std::string difference;
  try {
    const WaitMark waiting(*this, ticket);
    difference = order_->difference(call);
  } catch (const Trouble& trouble) {
    throw failed(ticket, trouble);
  }
  if (difference.empty()) {
    return;
  }
  const PeerError error("comm",
                        concat(describe(ticket.op), " in group \"", name_, "\" failed on rank ", members_[rank()],
                               " of ", world_size_, ": ", difference, " (TRIREME_CHECK)."),
                        "All ranks must start the collectives of all their groups on a device in one order: look for "
                        "threads, or for loops over groups, that differ between ranks.");
  Recorder::process().change(ticket.record, OpState::failed);
  {
    const std::lock_guard lock(mutex_);
    broken_ = error.what();
    first_error_.emplace(ticket.op, error);
  }
  if (watch_) {
    watch_->report(error.what(), {});
  }
  throw error;
}

void Group::State::check(const Ticket& ticket, bool launched) {
  if (!checks_ || size() == 1 || ticket.op.is_message()) {
    return;
  }
  if (launched && order_) {
    check_order(ticket);
  }
  const int64_t mine = signature(ticket.op);
  const at::Tensor own = at::full({1}, mine, at::kLong);
  const at::Tensor all = at::empty({size()}, at::kLong);
  const WaitMark waiting(*this, ticket);
  try {
    if (const auto pending = routes_->host().all_gather(all, own)) {
      pending->wait();
    }
    for (int rank = 0; rank < size(); ++rank) {
      if (all.data_ptr<int64_t>()[rank] != mine) {
        throw Trouble(Trouble::Kind::mismatch,
                      concat("rank ", members_[rank], " called another operation (TRIREME_CHECK)"));
      }
    }
  } catch (const Trouble& trouble) {
    throw failed(ticket, trouble);
  }
}

Group::State::WaitMark::WaitMark(State& state, const Ticket& ticket) {
  for (Awaited& place : state.awaited_) {
    int64_t free = 0;
    if (place.what.compare_exchange_strong(free, -1, std::memory_order_relaxed)) {
      place.since_ns.store(coarse_now_ns(), std::memory_order_relaxed);
      place.what.store(2 * ticket.op.number + (ticket.op.is_message() ? 1 : 0), std::memory_order_release);
      place_ = &place;
      return;
    }
  }
}

Group::State::WaitMark::~WaitMark() {
  if (place_ != nullptr) {
    place_->what.store(0, std::memory_order_release);
  }
}

GroupProgress Group::State::progress() const {
  const std::lock_guard lock(mutex_);
  GroupProgress progress = progress_;
  progress.waiting = waiting();
  if (progress.waiting && progress.waiting->on_device && progress.awaited() == nullptr) { // the host is far ahead
    if (const auto oldest = device_operations_.oldest()) {
      progress.recent.push_front(oldest->first);
    }
  }
  return progress;
}

std::optional<GroupProgress::WaitedOperation> Group::State::waiting() const {
  std::optional<GroupProgress::WaitedOperation> longest;
  for (const Awaited& place : awaited_) {
    const int64_t what = place.what.load(std::memory_order_acquire);
    const int64_t since = place.since_ns.load(std::memory_order_acquire);
    if (what <= 0 || place.what.load(std::memory_order_relaxed) != what) {
      continue;
    }
    const double seconds = static_cast<double>(std::max<int64_t>(0, coarse_now_ns() - since)) * 1e-9;
    if (!longest || seconds > longest->seconds) {
      longest = GroupProgress::WaitedOperation{what / 2, what % 2 != 0, seconds};
    }
  }
  if (longest) {
    return longest;
  }
  if (const auto oldest = device_operations_.oldest()) {
    const auto& [op, since] = *oldest;
    return GroupProgress::WaitedOperation{op.number, op.is_message(),
                                          std::chrono::duration<double>(DeviceOperations::Clock::now() - since).count(),
                                          true};
  }
  return std::nullopt;
}

// Groups with different members may have one name. The key has the number of the group and of those it was made from,
// "tie/0.1.2", which all members count alike.
Group Group::State::open(const std::vector<int>& ranks, const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      throw Error("comm", concat("group \"", name, "\" was requested from a closed world."),
                  "Create groups before World::close().");
    }
  }
  return open_ ? open_(ranks, name, concat(name, key_.substr(key_.rfind('/')), '.', ++opened_)) : Group();
}

void Group::State::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return;
    }
    closed_ = true;
  }
  routes_->close();
  if (reporter_.joinable()) { // it is not started any more
    reporter_.join();
  }
}

} // namespace trireme::comm
