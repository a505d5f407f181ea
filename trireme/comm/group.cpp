#include <trireme/comm/group.h>

#include <trireme/base/fault.h>
#include <trireme/base/notes.h>
#include <trireme/comm/group_state.h>
#include <trireme/comm/null/null_backend.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>
#include <set>

namespace trireme::comm {
namespace {

constexpr const char* kBarrier = "barrier";
constexpr const char* kSend = "send";

/// Adds numbers, records and explained errors to what a backend returns.
class TrackedPending : public Pending {
 public:
  TrackedPending(std::shared_ptr<Group::State> state, Group::State::Ticket ticket, std::shared_ptr<Pending> inner)
      : state_(std::move(state)), ticket_(std::move(ticket)), inner_(std::move(inner)) {
    follow();
  }

  ~TrackedPending() override {
    if (!inner_) {
      return;
    }
    inner_.reset(); // waits
    forget();
    state_->abandoned(ticket_);
  }

  void wait() override {
    if (error_) {
      std::rethrow_exception(error_);
    }
    if (!inner_) {
      return;
    }
    const Group::State::WaitMark waiting(*state_, ticket_);
    try {
      inner_->wait();
    } catch (const Trouble& trouble) {
      error_ = std::make_exception_ptr(state_->failed(ticket_, trouble));
      inner_.reset();
      forget();
      std::rethrow_exception(error_);
    }
    follow();
    inner_.reset();
    if (on_device_) { // before polling: the watch may see the end at any time, and must write last
      state_->on_device(ticket_);
    }
    if (finished()) {
      forget();
      state_->succeeded(ticket_);
    }
  }

  bool done() override { return inner_ ? inner_->done() : finished(); }

 private:
  void follow() {
    if (!on_device_) {
      if (auto mark = inner_->mark()) {
        on_device_ = state_->follow(ticket_, std::move(mark));
      }
    }
  }
  bool finished() const {
    try {
      return !on_device_ || on_device_->mark->finished();
    } catch (const std::exception&) {
      return false; // the watch reports it
    }
  }
  void forget() {
    if (on_device_) {
      on_device_->dropped = true;
    }
  }

  std::shared_ptr<Group::State> state_;
  Group::State::Ticket ticket_;
  std::shared_ptr<Pending> inner_;
  /// The operation that the watch follows.
  std::shared_ptr<DeviceOperations::Entry> on_device_;
  std::exception_ptr error_;
};

/// Applies TRIREME_FAULT. `tensor` is the operation's input; true: the operation must be left out.
bool struck(fault::Phase phase, const at::Tensor& tensor) {
  const fault::Effect effect = fault::at(phase);
  if (effect == fault::Effect::nan && tensor.defined() && tensor.is_floating_point() && tensor.numel() > 0) {
    at::NoGradGuard no_grad;
    tensor.view(-1)[0].fill_(std::numeric_limits<double>::quiet_NaN());
  }
  return effect == fault::Effect::drop;
}

struct Call {
  const char* op;
  const at::Tensor& tensor; ///< the larger one of two, undefined for a barrier
  at::ScalarType dtype;
  std::string_view what;
  int peer = -1;
  const char* detail = "";
};

/// `start` may move from call.tensor.
template <typename Start>
Work run(const std::shared_ptr<Group::State>& state, const Call& call, const Start& start) {
  using fault::Phase;
  const Phase phase = call.peer < 0 ? Phase::all_reduce : call.op == kSend ? Phase::send : Phase::recv;
  if (state->size() > 1 && struck(phase, call.tensor)) {
    return Work();
  }
  const int64_t bytes = call.tensor.defined() ? static_cast<int64_t>(call.tensor.nbytes()) : 0;
  auto ticket = state->begin(call.op, bytes, call.dtype, call.what, call.peer, call.detail);
  state->check(ticket, call.tensor.defined() && !call.tensor.is_cpu());
  try {
    const bool nothing_to_move = bytes == 0 && call.op != kBarrier;
    auto pending = nothing_to_move
                       ? nullptr
                       : start(state->routes().of(call.tensor.defined() ? call.tensor.device() : at::Device(at::kCPU)));
    if (!pending) {
      state->succeeded(ticket);
      return Work();
    }
    Recorder::process().change(ticket.record, OpState::started);
    return Work(std::make_shared<TrackedPending>(state, std::move(ticket), std::move(pending)));
  } catch (const Trouble& trouble) {
    throw state->failed(ticket, trouble);
  }
}

/// Must be equal on all ranks besides operation, size and type; "" for a sum.
const char* detail_of(ReduceOp op) {
  return op == ReduceOp::sum ? "" : op == ReduceOp::max ? "max" : "min";
}

[[noreturn]] void refuse(const Group::State& state, const char* op, std::string_view what, const std::string& happened,
                         const std::string& next) {
  throw Error("comm",
              concat(op, what.empty() ? "" : concat(" \"", what, "\""), " in group \"", state.name(), "\": ", happened),
              next);
}

void check_tensor(const Group::State& state, const char* op, std::string_view what, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    refuse(state, op, what, "the tensor is undefined.", "Give a tensor that has memory.");
  }
  if (!tensor.is_contiguous()) {
    refuse(state, op, what, "the tensor is not contiguous in memory.",
           "Pass tensor.contiguous(), or a view of a flat buffer.");
  }
  if (!state.routes().moves(tensor.device().type())) {
    refuse(state, op, what, concat("the tensor is on ", tensor.device().str(), ", which no backend here moves."),
           "Move it with tensor.to(\"cpu\"); `trireme doctor` lists the backends and what they need.");
  }
}

/// `whole` must have size() times the elements of `part`.
void check_pair(const Group::State& state, const char* op, std::string_view what, const at::Tensor& whole,
                const at::Tensor& part, int64_t times) {
  check_tensor(state, op, what, whole);
  check_tensor(state, op, what, part);
  if (whole.scalar_type() != part.scalar_type()) {
    refuse(state, op, what,
           concat("input and output have different types (", c10::toString(whole.scalar_type()), ", ",
                  c10::toString(part.scalar_type()), ")."),
           "Convert one of them.");
  }
  if (whole.device() != part.device()) {
    refuse(state, op, what,
           concat("input and output are on different devices (", whole.device(), ", ", part.device(), ")."),
           "Move one of them with tensor.to().");
  }
  if (whole.numel() != part.numel() * times) {
    refuse(state, op, what,
           concat("the larger one must have ", times, " x ", part.numel(), " elements, it has ", whole.numel(), "."),
           "Pad the buffer to a multiple of the group's size.");
  }
}

void check_rank(const Group::State& state, const char* op, std::string_view what, int rank, bool other) {
  if (rank < 0 || rank >= state.size()) {
    refuse(state, op, what, concat("rank ", rank, " is not in a group of ", state.size(), "."),
           "Ranks here count within the group, from 0.");
  }
  if (other && rank == state.rank()) {
    refuse(state, op, what, concat("rank ", rank, " is this rank itself."), "Messages go to another rank.");
  }
}

} // namespace

Group::Group()
    : state_(std::make_shared<State>("self", "self", std::vector<int>{0}, std::make_unique<Routes>(make_null_backend()),
                                     std::chrono::milliseconds(0), nullptr, 1)) {}

Group::Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

Group::~Group() = default;
Group::Group(const Group& other) = default;
Group::Group(Group&& other) noexcept = default;
Group& Group::operator=(const Group& other) = default;
Group& Group::operator=(Group&& other) noexcept = default;

int Group::rank() const {
  return state_->rank();
}

int Group::size() const {
  return state_->size();
}

const std::string& Group::name() const {
  return state_->name();
}

const char* Group::backend(at::Device device) const {
  const Backend* const open = state_->routes().find(device);
  return open == nullptr ? "" : open->name();
}

const std::vector<int>& Group::members() const {
  return state_->members();
}

Work Group::all_reduce(at::Tensor tensor, ReduceOp op, std::string_view what) const {
  check_tensor(*state_, "all_reduce", what, tensor);
  return run(state_, {"all_reduce", tensor, tensor.scalar_type(), what, -1, detail_of(op)},
             [&](Backend& backend) { return backend.all_reduce(std::move(tensor), op); });
}

Work Group::reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op, std::string_view what) const {
  check_pair(*state_, "reduce_scatter", what, in, out, size());
  return run(state_, {"reduce_scatter", in, in.scalar_type(), what, -1, detail_of(op)},
             [&](Backend& backend) { return backend.reduce_scatter(std::move(out), std::move(in), op); });
}

Work Group::all_gather(at::Tensor out, at::Tensor in, std::string_view what) const {
  check_pair(*state_, "all_gather", what, out, in, size());
  return run(state_, {"all_gather", out, out.scalar_type(), what},
             [&](Backend& backend) { return backend.all_gather(std::move(out), std::move(in)); });
}

Work Group::broadcast(at::Tensor tensor, int root, std::string_view what) const {
  check_tensor(*state_, "broadcast", what, tensor);
  check_rank(*state_, "broadcast", what, root, false);
  const char* detail = size() > 1 ? keep_name(concat("root ", root)) : "";
  return run(state_, {"broadcast", tensor, tensor.scalar_type(), what, -1, detail},
             [&](Backend& backend) { return backend.broadcast(std::move(tensor), root); });
}

Work Group::all_to_all(at::Tensor out, at::Tensor in, std::string_view what) const {
  check_pair(*state_, "all_to_all", what, in, out, 1);
  if (in.numel() % size() != 0) {
    refuse(*state_, "all_to_all", what, concat(in.numel(), " elements do not divide among ", size(), " ranks."),
           "Pad the buffer to a multiple of the group's size.");
  }
  if (in.data_ptr() == out.data_ptr() && in.numel() != 0 && size() > 1) {
    refuse(*state_, "all_to_all", what, "input and output are the same memory.", "Give it a second buffer.");
  }
  return run(state_, {"all_to_all", in, in.scalar_type(), what},
             [&](Backend& backend) { return backend.all_to_all(std::move(out), std::move(in)); });
}

Work Group::send(at::Tensor tensor, int to, int tag, std::string_view what) const {
  check_tensor(*state_, "send", what, tensor);
  check_rank(*state_, "send", what, to, true);
  return run(state_, {kSend, tensor, tensor.scalar_type(), what, to},
             [&](Backend& backend) { return backend.send(std::move(tensor), to, tag); });
}

Work Group::recv(at::Tensor tensor, int from, int tag, std::string_view what) const {
  check_tensor(*state_, "recv", what, tensor);
  check_rank(*state_, "recv", what, from, true);
  return run(state_, {"recv", tensor, tensor.scalar_type(), what, from},
             [&](Backend& backend) { return backend.recv(std::move(tensor), from, tag); });
}

Work Group::barrier(std::string_view what) const {
  return run(state_, {kBarrier, at::Tensor(), at::kByte, what}, [&](Backend& backend) { return backend.barrier(); });
}

void Group::open(at::Device device, Neighbours neighbours) const {
  if (device.is_cpu() || size() == 1) {
    return;
  }
  if (!state_->routes().moves(device.type())) {
    refuse(*state_, "open", "", concat("no backend here moves tensors on ", device.str(), "."),
           "`trireme doctor` lists the backends and what they need.");
  }
  const char* const detail = neighbours == Neighbours::none ? "" : neighbours == Neighbours::chain ? "chain" : "ring";
  const auto ticket = state_->begin("open", 0, at::kByte, device.str(), -1, detail);
  try {
    Backend& backend = state_->routes().of(device);
    if (neighbours != Neighbours::none) {
      backend.open_messages(neighbours);
    }
  } catch (const Trouble& trouble) {
    throw state_->failed(ticket, trouble);
  }
  state_->succeeded(ticket);
}

Group Group::subgroup(const std::vector<int>& ranks, const std::string& name) const {
  const std::set<int> different(ranks.begin(), ranks.end());
  if (ranks.empty() || different.size() != ranks.size() || *different.begin() < 0 || *different.rbegin() >= size()) {
    throw Error("comm", concat("group \"", name, "\" must be made of different ranks between 0 and ", size() - 1, "."),
                "Correct the list of ranks.");
  }
  std::vector<int> chosen;
  for (const int rank : ranks) {
    chosen.push_back(members()[rank]);
  }
  return state_->open(chosen, name);
}

void Group::report_failure(const std::string& why) const {
  state_->report_failure(why);
}

at::Tensor Group::allocate(int64_t numel, at::ScalarType type, at::Device device) const {
  return device.is_cpu() ? state_->routes().host().allocate(numel, type)
                         : at::empty({numel}, at::TensorOptions(type).device(device));
}

int64_t Group::bytes_sent() const {
  return state_->routes().bytes_sent();
}

} // namespace trireme::comm
