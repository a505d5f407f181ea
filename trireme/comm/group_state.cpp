#include <trireme/comm/group_state.h>

namespace trireme::comm {
namespace {

/// Answers come within two ticks of the others' watch threads; more where a deadline has passed anyway.
constexpr std::chrono::milliseconds kPatienceForLost{500};
constexpr std::chrono::milliseconds kPatienceAtDeadline{1500};

} // namespace

Group::State::State(std::string name, std::string key, std::vector<int> members, std::shared_ptr<Backend> backend,
                    std::chrono::milliseconds timeout, std::shared_ptr<Watch> watch, int world_size)
    : name_(std::move(name)), key_(std::move(key)), members_(std::move(members)), backend_(std::move(backend)), timeout_(timeout),
      watch_(std::move(watch)), world_size_(world_size) {}

Group::State::Ticket Group::State::begin(const char* op, int64_t bytes, at::ScalarType dtype, std::string_view what, int peer) {
  Ticket ticket;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      throw Error("comm", concat(op, " in group \"", name_, "\" after its world was closed."),
                  "Keep the World alive until the last operation: create it first in main() and close it last.");
    }
    if (!broken_.empty()) {
      throw PeerError("comm", concat(op, " in group \"", name_, "\" cannot run, the group has failed before: ", broken_));
    }
    const int64_t number = (peer < 0 ? progress_.collectives : progress_.messages) + 1;
    ticket.op = {number, op, bytes, c10::toString(dtype), std::string(what), peer < 0 ? -1 : members_[peer], false};
    progress_.note(ticket.op);
    ++version_;
  }
  ticket.record = Recorder::process().add(name_, ticket.op.number, op, bytes, dtype, what, peer);
  return ticket;
}

void Group::State::succeeded(const Ticket& ticket) {
  Recorder::process().change(ticket.record, OpState::done);
  const std::lock_guard lock(mutex_);
  progress_.mark_done(ticket.op);
  ++version_;
}

void Group::State::report_failure(const std::string& why) {
  if (watch_) {
    watch_->report(why, {});
  }
}

void Group::State::abandoned(const Ticket& ticket) {
  Recorder::process().change(ticket.record, OpState::failed);
}

PeerError Group::State::failed(const Ticket& ticket, const Trouble& trouble) {
  Recorder::process().change(ticket.record, OpState::failed);
  // One roll call explains the failure of all operations under way.
  const std::lock_guard failing(failing_);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return PeerError("comm", concat(describe(ticket.op), " in group \"", name_, "\" was ended by the end of its world."));
    }
    if (!broken_.empty()) {
      return PeerError("comm", concat(describe(ticket.op), " in group \"", name_, "\" failed, as an operation before it: ", broken_));
    }
  }
  const int world_rank = members_[backend_->rank()];
  RollCall roll_call;
  if (watch_) {
    const bool late = trouble.kind == Trouble::Kind::deadline;
    roll_call = watch_->roll_call(members_, key_, late ? kPatienceAtDeadline : kPatienceForLost);
  }
  const PeerError error = explain({name_, members_, world_rank, world_size_, timeout_}, ticket.op, trouble, roll_call);
  {
    const std::lock_guard lock(mutex_);
    broken_ = error.what();
  }
  if (watch_) {
    std::vector<int> silent;
    for (const auto& [rank, peer] : roll_call.peers) {
      if (!peer.answered && !peer.left) {
        silent.push_back(rank);
      }
    }
    watch_->report(error.what(), silent);
  }
  return error;
}

GroupProgress Group::State::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

void Group::State::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return;
    }
    closed_ = true;
  }
  backend_->close();
}

} // namespace trireme::comm
