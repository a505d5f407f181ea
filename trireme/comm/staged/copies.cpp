#include <trireme/comm/staged/copies.h>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

namespace trireme::comm::staged {
namespace {

/// A copy takes tens of microseconds or more; the thread yields its core to those that compute.
constexpr std::chrono::microseconds kPollPause{20};
constexpr int kPollsBeforePause = 100;

// Copies are raw transfers: autograd and version counters are not involved, as with every other backend.
using Raw = at::AutoDispatchBelowADInplaceOrView;

template <typename Copy>
void each_row(const Rows& rows, int64_t columns, int64_t begin, int64_t count, const at::Tensor& buffer,
              const Copy& copy) {
  if (!rows.flat.defined() || count == 0) {
    return;
  }
  const Raw raw;
  if (count == columns) {
    copy(buffer.narrow(0, rows.first * count, rows.rows * count), rows.flat);
    return;
  }
  for (int64_t row = 0; row < rows.rows; ++row) {
    copy(buffer.narrow(0, (rows.first + row) * count, count), rows.flat.narrow(0, row * columns + begin, count));
  }
}

void finish(const std::shared_ptr<Pending>& pending) {
  if (pending) {
    pending->wait();
  }
}

} // namespace

void copy_to_host(const Rows& rows, int64_t columns, int64_t begin, int64_t count, const at::Tensor& buffer) {
  each_row(rows, columns, begin, count, buffer,
           [](const at::Tensor& host, const at::Tensor& there) { host.copy_(there, /*non_blocking=*/true); });
}

void copy_back(const Rows& rows, int64_t columns, int64_t begin, int64_t count, const at::Tensor& buffer) {
  each_row(rows, columns, begin, count, buffer,
           [](const at::Tensor& host, const at::Tensor& there) { there.copy_(host, /*non_blocking=*/true); });
}

void Shared::await(const device::Event& event) const {
  for (int polls = 0; !event.done(); ++polls) {
    if (interrupted) {
      throw Trouble(Trouble::Kind::interrupted, "interrupted");
    }
    if (polls >= kPollsBeforePause) {
      std::this_thread::sleep_for(kPollPause);
    }
  }
}

std::shared_ptr<device::HostBuffer> Shared::take(int64_t bytes) const {
  return pool->take(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes))));
}

bool Course::finished() {
  if (!launched_) {
    return false;
  }
  // The watch's thread has no current device, and CUDA would create a context on device 0 for it.
  std::optional<c10::DeviceGuard> there;
  if (!device_.is_cpu()) {
    there.emplace(device_);
  }
  return end_.done();
}

Collective::Collective(std::shared_ptr<Shared> shared, at::Device device, at::ScalarType type, Steps steps,
                       int64_t piece)
    : shared_(std::move(shared)),
      device_(device),
      type_(type),
      steps_(std::move(steps)),
      piece_(piece),
      ready_(device.type()),
      course_(std::make_shared<Course>(device)) {
  ready_.record(device::current_stream(device_));
  // The caller may free the tensors as soon as it has waited, or never wait.
  device::record_stream(steps_.in.flat, shared_->to_host.on(device_));
  device::record_stream(steps_.out.flat, shared_->to_device.on(device_));
}

int64_t Collective::pieces() const {
  return steps_.columns == 0 ? 1 : (steps_.columns + piece_ - 1) / piece_;
}

void Collective::launch() {
  Piece next;
  next.begin = launched_ * piece_;
  next.count = std::min(piece_, steps_.columns - next.begin);
  const c10::Stream stream = shared_->to_host.on(device_);
  const device::OnStream current(stream);
  if (launched_ == 0) {
    ready_.block(stream);
  }
  const int64_t numel = steps_.buffer_rows * next.count;
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(type_));
  next.in = shared_->take(bytes);
  next.in_buffer = next.in->tensor(numel, type_);
  next.out_buffer = next.in_buffer;
  if (steps_.apart) {
    next.out = shared_->take(bytes);
    next.out_buffer = next.out->tensor(numel, type_);
  }
  copy_to_host(steps_.in, steps_.columns, next.begin, next.count, next.in_buffer);
  next.arrived = std::make_shared<device::Event>(device_.type());
  next.arrived->record(stream);
  next.in->used_until(next.arrived);
  under_way_.push_back(std::move(next));
  ++launched_;
}

void Collective::begin() {
  Piece& piece = under_way_[static_cast<size_t>(begun_ - done_)];
  shared_->await(*piece.arrived);
  piece.pending = steps_.on_host(piece.out_buffer, piece.in_buffer);
  ++begun_;
  course_->step();
}

// The host has seen the piece arrive, which is after the earlier work on the stream: so is the copy back.
void Collective::finish() {
  Piece& piece = under_way_.front();
  staged::finish(piece.pending);
  piece.pending.reset();
  const c10::Stream stream = shared_->to_device.on(device_);
  const device::OnStream current(stream);
  copy_back(steps_.out, steps_.columns, piece.begin, piece.count, piece.out_buffer);
  const auto copied = std::make_shared<device::Event>(device_.type());
  copied->record(stream);
  (steps_.apart ? piece.out : piece.in)->used_until(copied);
  under_way_.erase(under_way_.begin());
  ++done_;
  course_->step();
}

void Collective::end() {
  course_->end(shared_->to_device.on(device_));
  steps_.in.flat.reset();
  steps_.out.flat.reset();
}

void Collective::order_current_stream() const {
  course_->event().block(device::current_stream(device_));
}

Receive::Receive(std::shared_ptr<Shared> shared, const at::Tensor& tensor, int from, int tag, int64_t piece)
    : shared_(std::move(shared)),
      flat_(tensor),
      device_(tensor.device()),
      ready_(device_.type()),
      course_(std::make_shared<Course>(device_)) {
  ready_.record(device::current_stream(device_));
  device::record_stream(flat_, shared_->to_device.on(device_));
  for (int64_t begin = 0; begin < flat_.numel(); begin += piece) {
    Piece next;
    next.begin = begin;
    next.count = std::min(piece, flat_.numel() - begin);
    next.loan = shared_->take(next.count * static_cast<int64_t>(flat_.element_size()));
    next.buffer = next.loan->tensor(next.count, flat_.scalar_type());
    next.pending = shared_->host->recv(next.buffer, from, tag);
    pieces_.push_back(std::move(next));
  }
}

Receive::~Receive() {
  if (launched_ || std::uncaught_exceptions() > 0) {
    return; // the host's operations end without their results
  }
  try {
    Receive::wait();
  } catch (...) {
    // No caller receives the error.
  }
}

void Receive::copy_arrived() {
  const c10::Stream stream = shared_->to_device.on(device_);
  const device::OnStream current(stream);
  ready_.block(stream);
  for (Piece& piece : pieces_) {
    finish(piece.pending);
    piece.pending.reset();
    copy_back({flat_, 1, 0}, flat_.numel(), piece.begin, piece.count, piece.buffer);
    const auto copied = std::make_shared<device::Event>(device_.type());
    copied->record(stream);
    piece.loan->used_until(copied);
  }
  course_->end(stream);
  pieces_.clear();
  flat_.reset();
  launched_ = true;
}

void Receive::wait() {
  if (!launched_) {
    copy_arrived();
  }
  course_->event().block(device::current_stream(device_));
}

bool Receive::done() {
  if (!launched_) {
    for (const Piece& piece : pieces_) {
      if (piece.pending && !piece.pending->done()) {
        return false;
      }
    }
    try {
      copy_arrived();
    } catch (const Trouble&) {
      return true; // wait() gets it again: the host's backend stays broken
    }
  }
  return course_->event().done();
}

Send::Send(std::shared_ptr<Shared> shared, const at::Tensor& tensor, int64_t piece)
    : shared_(std::move(shared)), flat_(tensor), device_(tensor.device()), course_(std::make_shared<Course>(device_)) {
  const at::Device device = device_;
  const c10::Stream stream = shared_->to_host.on(device);
  device::record_stream(flat_, stream);
  const device::OnStream current(stream, device::current_stream(device));
  for (int64_t begin = 0; begin < flat_.numel(); begin += piece) {
    const int64_t count = std::min(piece, flat_.numel() - begin);
    Piece next;
    next.loan = shared_->take(count * static_cast<int64_t>(flat_.element_size()));
    next.buffer = next.loan->tensor(count, flat_.scalar_type());
    copy_to_host({flat_, 1, 0}, flat_.numel(), begin, count, next.buffer);
    next.arrived = std::make_shared<device::Event>(device.type());
    next.arrived->record(stream);
    next.loan->used_until(next.arrived);
    copied_ = next.arrived;
    pieces_.push_back(std::move(next));
  }
}

void Send::post(int to, int tag) {
  device::make_current(device_); // a thread of the backend
  for (Piece& piece : pieces_) {
    shared_->await(*piece.arrived);
    piece.pending = shared_->host->send(piece.buffer, to, tag);
    course_->step();
  }
  course_->end();
  flat_.reset();
}

void Send::wait() {
  for (Piece& piece : pieces_) {
    finish(piece.pending);
    piece.pending.reset();
  }
  pieces_.clear();
  copied_->block(device::current_stream(device_));
}

bool Send::done() const {
  return std::all_of(pieces_.begin(), pieces_.end(),
                     [](const Piece& piece) { return !piece.pending || piece.pending->done(); });
}

} // namespace trireme::comm::staged
