#include <trireme/comm/shm/shm_backend.h>

#include <trireme/base/text.h>
#include <trireme/comm/host_memory.h>
#include <trireme/comm/reduce.h>
#include <trireme/comm/shm/collectives.h>
#include <trireme/comm/shm/control_blocks.h>
#include <trireme/comm/shm/messages.h>
#include <trireme/comm/shm/progress_room.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>

namespace trireme::comm {
namespace {

using namespace shm;
using Clock = std::chrono::steady_clock;

/// Time that a rank that gives up waits for others to release its memory.
constexpr std::chrono::milliseconds kPatienceForPiece{500};

/// State shared by the Pendings of one group; lives until the last of them is gone.
class Core : public Worker {
 public:
  Core(Members members, std::chrono::milliseconds timeout)
      : timeout_(timeout), members_(std::move(members)), collectives_(members_), messages_(members_) {
    ProgressRoom::process().add(this);
  }
  ~Core() override { ProgressRoom::process().remove(this); }

  bool progress() override {
    bool did = collectives_.pending() && collectives_.progress();
    did = (messages_.pending() && messages_.progress()) || did;
    messages_wait_.store(messages_.pending(), std::memory_order_relaxed);
    return did;
  }
  bool pending() const override { return collectives_.pending() || messages_.pending(); }

  /// Begins the new Collective that `describe` fills in. Returns its number, 0 if it is done already.
  template <typename Describe>
  uint64_t start(const Describe& describe) {
    const std::lock_guard lock(ProgressRoom::process().mutex);
    check_open();
    describe(collectives_.next());
    const uint64_t number = collectives_.start();
    return collectives_.finished(number) ? 0 : number;
  }
  /// Both return true if it is done already.
  bool send(const std::shared_ptr<Parcel>& parcel) {
    const std::lock_guard lock(ProgressRoom::process().mutex);
    check_open();
    messages_.send(parcel);
    return parcel->done;
  }
  bool recv(const std::shared_ptr<Parcel>& parcel) {
    const std::lock_guard lock(ProgressRoom::process().mutex);
    check_open();
    messages_.recv(parcel);
    return parcel->done && parcel->error.empty();
  }

  /// With the lock: whether it is over.
  bool reached(uint64_t op) const { return collectives_.finished(op); }
  bool reached(const std::shared_ptr<Parcel>& parcel) const { return parcel->done; }
  bool stirs(uint64_t) const { return messages_wait_.load(std::memory_order_relaxed) || collectives_.stirs(); }
  bool stirs(const std::shared_ptr<Parcel>&) const { return true; }

  /// Waits for an operation, on `peer` only if one is given. Throws Trouble.
  template <typename Op>
  void wait(const Op& op, int peer) {
    try {
      OperationGoal<Op> goal(*this, op, peer);
      ProgressRoom::process().wait(*this, goal);
    } catch (const Trouble&) {
      give_up();
      throw;
    }
  }

  template <typename Op>
  bool poll(const Op& op) {
    const std::lock_guard lock(ProgressRoom::process().mutex);
    if (!reached(op)) {
      collectives_.stop_leaving(); // no rank may return to it
      progress();
    }
    return reached(op) || trouble();
  }

  /// Ends the group for all its ranks, and returns when no rank uses this rank's memory any more.
  void give_up() {
    uint32_t nobody = 0;
    members_.control.broken().compare_exchange_strong(nobody, static_cast<uint32_t>(members_.rank + 1));
    members_.ring_others();
    const auto until = Clock::now() + kPatienceForPiece;
    for (int member = 0; member < members_.size; ++member) {
      while (member != members_.rank && members_.control.busy(member).load() != 0 && !arena(member).ended()) {
        if (Clock::now() >= until) {
          Arena::process().stop_reuse();
          return;
        }
        std::this_thread::yield();
      }
    }
  }

  void interrupt() {
    interrupted_ = true;
    const ArenaHeader& header = Arena::process().header();
    if (header.sleepers.load() != 0) {
      own().ring();
    }
  }

  void close() {
    interrupt();
    const std::lock_guard lock(ProgressRoom::process().mutex);
    collectives_.stop_leaving();
    progress();
    if (!members_.broken() && (collectives_.pending() || messages_.unfinished())) {
      give_up();
    }
  }

  int rank() const { return members_.rank; }
  int size() const { return members_.size; }

 private:
  /// A thread waits for this operation.
  template <typename Op>
  class OperationGoal : public Goal {
   public:
    OperationGoal(Core& core, const Op& op, int peer) : core_(core), op_(op), peer_(peer) {}
    bool reached() const override { return core_.reached(op_); }
    bool stirs() const override { return core_.stirs(op_); }
    bool shares_core() const override { return core_.members_.shares_core(); }
    void check(bool look_around) override {
      core_.check_open();
      if (core_.collectives_.mismatch()) {
        throw Trouble(Trouble::Kind::lost, "the ranks called different operations");
      }
      if (!look_around) {
        return;
      }
      core_.messages_.fetch();
      core_.look_for_lost(peer_);
      // Few waits get here, and the time before is short.
      const auto now = Clock::now();
      deadline_ = deadline_ == Clock::time_point() ? now + core_.timeout_ : deadline_;
      if (now >= deadline_) {
        throw Trouble(Trouble::Kind::deadline, "not done in time");
      }
    }

   private:
    Core& core_;
    const Op& op_;
    int peer_;
    Clock::time_point deadline_;
  };

  bool trouble() const { return interrupted_ || members_.broken(); }
  const PeerArena& arena(int member) const { return *members_.arenas[static_cast<size_t>(member)]; }
  const PeerArena& own() const { return arena(members_.rank); }

  void check_open() const {
    if (interrupted_) {
      throw Trouble(Trouble::Kind::interrupted, "interrupted");
    }
    if (const uint32_t who = members_.control.broken().load(); who != 0) {
      throw Trouble(Trouble::Kind::lost, concat("rank ", who - 1, " of the group gave up"));
    }
  }

  /// A rank that has ended may have done its part first.
  void look_for_lost(int peer) const {
    for (int member = 0; member < members_.size; ++member) {
      const bool needed = peer < 0 ? !collectives_.has_come(member) || collectives_.all_have_come() : member == peer;
      if (member != members_.rank && needed && arena(member).ended()) {
        throw Trouble(Trouble::Kind::lost,
                      concat("process ", arena(member).process(), " of rank ", member, " of the group has ended"));
      }
    }
  }

  const std::chrono::milliseconds timeout_;
  Members members_;
  const Leaving leaving_{members_};
  Collectives collectives_;
  Messages messages_;
  std::atomic<bool> interrupted_{false};
  /// Messages were in progress at the last check.
  std::atomic<bool> messages_wait_{false};
};

/// Waits for a collective, by its number, or for a Parcel.
template <typename Op>
class ShmPending : public Pending {
 public:
  ShmPending(std::shared_ptr<Core> core, Op op, int peer)
      : core_(std::move(core)), op_(std::move(op)), peer_(peer), exceptions_at_start_(std::uncaught_exceptions()) {}

  ~ShmPending() override {
    if (finished_) {
      return;
    }
    try {
      if (std::uncaught_exceptions() > exceptions_at_start_ && !core_->poll(op_)) {
        core_->give_up();
      } else {
        ShmPending::wait();
      }
    } catch (...) {
      // No caller receives the error; the other ranks have released the tensor, which is enough.
    }
  }

  void wait() override {
    if (finished_) {
      return;
    }
    core_->wait(op_, peer_);
    if constexpr (!std::is_integral_v<Op>) {
      if (!op_->error.empty()) {
        core_->give_up();
        throw Trouble(Trouble::Kind::mismatch, op_->error);
      }
    }
    finished_ = true;
  }

  bool done() override { return finished_ || core_->poll(op_); }

 private:
  std::shared_ptr<Core> core_;
  Op op_;
  int peer_;
  int exceptions_at_start_;
  bool finished_ = false;
};

class ShmBackend : public Backend {
 public:
  explicit ShmBackend(std::shared_ptr<Core> core) : Backend(core->rank(), core->size()), core_(std::move(core)) {}
  ~ShmBackend() override { ShmBackend::close(); }

  const char* name() const override { return "shm"; }

  std::shared_ptr<Pending> all_reduce(at::Tensor tensor, ReduceOp op) override {
    const auto element = element_of(tensor.scalar_type(), "all_reduce", "shared memory");
    bytes_sent_ += 2 * share(tensor);
    const int64_t count = tensor.numel();
    return collective(Kind::all_reduce, std::move(tensor), {}, count, 0, element, combine_of(op));
  }
  std::shared_ptr<Pending> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    const auto element = element_of(in.scalar_type(), "reduce_scatter", "shared memory");
    bytes_sent_ += share(in);
    const int64_t count = out.numel();
    return collective(Kind::reduce_scatter, std::move(in), std::move(out), count, 0, element, combine_of(op));
  }
  std::shared_ptr<Pending> all_gather(at::Tensor out, at::Tensor in) override {
    bytes_sent_ += share(out);
    const int64_t count = in.numel();
    return collective(Kind::all_gather, std::move(in), std::move(out), count);
  }
  std::shared_ptr<Pending> broadcast(at::Tensor tensor, int root) override {
    bytes_sent_ += root == rank() ? static_cast<int64_t>(tensor.nbytes()) * (size() - 1) : 0;
    const int64_t count = tensor.numel();
    return collective(Kind::broadcast, std::move(tensor), {}, count, root);
  }
  std::shared_ptr<Pending> all_to_all(at::Tensor out, at::Tensor in) override {
    bytes_sent_ += share(in);
    const int64_t count = in.numel() / size();
    return collective(Kind::all_to_all, std::move(in), std::move(out), count);
  }
  std::shared_ptr<Pending> barrier() override { return collective(Kind::barrier, {}, {}, 0); }

  std::shared_ptr<Pending> send(at::Tensor tensor, int to, int tag) override {
    bytes_sent_ += static_cast<int64_t>(tensor.nbytes());
    auto parcel = this->parcel(tensor, to, tag);
    return core_->send(parcel) ? nullptr
                               : std::make_shared<ShmPending<std::shared_ptr<Parcel>>>(core_, std::move(parcel), to);
  }
  std::shared_ptr<Pending> recv(at::Tensor tensor, int from, int tag) override {
    auto parcel = this->parcel(tensor, from, tag);
    return core_->recv(parcel) ? nullptr
                               : std::make_shared<ShmPending<std::shared_ptr<Parcel>>>(core_, std::move(parcel), from);
  }

  at::Tensor allocate(int64_t numel, at::ScalarType type) override {
    Arena& arena = Arena::process();
    void* memory = arena.allocate(static_cast<size_t>(numel) * c10::elementSize(type));
    if (memory == nullptr) {
      return allocate_host(numel, type);
    }
    return at::from_blob(memory, {numel}, [&arena](void* gone) { arena.release(gone); }, at::TensorOptions(type));
  }

  void interrupt() override { core_->interrupt(); }
  void close() override { core_->close(); }

 private:
  std::shared_ptr<Parcel> parcel(const at::Tensor& tensor, int peer, int tag) const {
    auto parcel = std::make_shared<Parcel>();
    parcel->tensor = tensor;
    parcel->peer = peer;
    parcel->tag = tag;
    parcel->bytes = tensor.nbytes();
    parcel->type = tensor.scalar_type();
    return parcel;
  }
  /// `out` is omitted if it is `in`.
  std::shared_ptr<Pending> collective(Kind kind, at::Tensor in, at::Tensor out, int64_t count, int root = 0,
                                      kernels::Element element = kernels::Element::u8,
                                      kernels::Combine combine = kernels::Combine::sum) {
    const uint64_t number = core_->start([&](Collective& op) {
      op.kind = kind;
      op.element = element;
      op.combine = combine;
      op.root = root;
      op.count = count;
      if (in.defined()) {
        op.type = in.scalar_type();
        op.element_bytes = static_cast<int64_t>(in.element_size());
      }
      op.in = std::move(in);
      op.out = std::move(out);
    });
    return number == 0 ? nullptr : std::make_shared<ShmPending<uint64_t>>(core_, number, -1);
  }

  std::shared_ptr<Core> core_;
};

} // namespace

bool shm_available() {
  return Arena::obstacle().empty();
}

bool shm_suits(const GroupSetup& setup) {
  return setup.one_host() && setup.size > 1 && setup.size <= kMostShmRanks;
}

std::shared_ptr<Backend> connect_shm(const GroupSetup& group) {
  GroupSetup setup = group;
  if (!shm_suits(setup)) {
    throw InputError("comm",
                     concat("backend \"shm\" is for 2 to ", kMostShmRanks, " ranks of one host, group \"", setup.name,
                            "\" has ", setup.size, setup.one_host() ? "." : " on several hosts."),
                     "Set the backend to \"auto\" or \"gloo\" (TRIREME_BACKEND or WorldOptions::backend).");
  }
  // All ranks must decide alike, so each error goes to every rank.
  std::string complaint;
  std::string mine;
  std::byte* block = nullptr;
  try {
    Arena& arena = Arena::process();
    if (setup.rank == 0) {
      block = ControlBlocks::process().make(setup.size);
    }
    mine = concat(block == nullptr ? 0 : arena.offset_of(block), "@", arena.address());
  } catch (const Error& error) {
    complaint = error.what();
  }
  const auto addresses = exchange(setup, "shm", mine);
  Members members;
  members.rank = setup.rank;
  members.size = setup.size;
  const bool all_have_memory = std::find(addresses.begin(), addresses.end(), "") == addresses.end();
  try {
    for (const auto& address : all_have_memory ? addresses : std::vector<std::string>()) {
      members.arenas.push_back(PeerArena::map(address.substr(address.find('@') + 1)));
    }
    members.control = all_have_memory ? Control(members.at(0, std::stoull(addresses[0])), setup.size) : Control();
  } catch (const std::exception& error) {
    complaint = complaint.empty() ? error.what() : complaint;
  }
  for (const auto& verdict : exchange(setup, "shm-verdict", complaint.empty() ? "well" : complaint)) {
    if (verdict != "well") {
      if (block != nullptr) {
        Arena::process().release(block); // no rank uses it any more
      }
      throw Trouble(Trouble::Kind::lost, verdict);
    }
  }
  return std::make_shared<ShmBackend>(std::make_shared<Core>(std::move(members), setup.timeout));
}

} // namespace trireme::comm
