#include <trireme/memory/activations/mover.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/memory/activations/choice.h>
#include <trireme/memory/activations/storage_tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace trireme::activations {
namespace {

at::Tensor bytes_of(const c10::Storage& storage) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  return storage_tensor(storage, at::kByte, {bytes}, {1}, 0);
}

// The buffer as memory of tensors, which share its ownership.
c10::Storage storage_over(const std::shared_ptr<device::HostBuffer>& buffer, int64_t bytes) {
  auto* const held = new std::shared_ptr<device::HostBuffer>(buffer);
  at::DataPtr data(
      buffer->data(), held, [](void* context) { delete static_cast<std::shared_ptr<device::HostBuffer>*>(context); },
      at::kCPU);
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), std::move(data),
                      /*allocator=*/nullptr, /*resizable=*/false);
}

void erase(std::deque<Away*>& queue, Away* away) {
  queue.erase(std::remove(queue.begin(), queue.end(), away), queue.end());
}

} // namespace

Mover::Mover(at::Device device, std::shared_ptr<Ledger> ledger, const std::string& nvme_path,
             const aio::Options& options)
    : device_(device),
      ledger_(std::move(ledger)),
      buffers_(std::make_shared<device::HostPool>(
          device.type(), device.is_cpu() ? [counted = ledger_](int64_t bytes) { counted->add(bytes); }
                                         : std::function<void(int64_t)>())),
      files_(nvme_path.empty() ? nullptr : std::make_shared<FileSpace>(nvme_path)),
      options_(options) {
  if (device_.is_cpu()) {
    buffers_->set_most(0);
  }
}

Mover::~Mover() = default;

aio::Transfers& Mover::transfers() {
  if (!transfers_) {
    transfers_ = std::make_unique<aio::Transfers>(options_);
  }
  return *transfers_;
}

void Mover::set_most_leaving(int64_t bytes) {
  const Lock lock(mutex_);
  most_leaving_ = bytes;
  if (device_.is_cpu()) {
    buffers_->set_most(2 * bytes);
  }
}

int64_t Mover::bytes_out() const {
  const Lock lock(mutex_);
  return bytes_out_;
}

int64_t Mover::bytes_in() const {
  const Lock lock(mutex_);
  return bytes_in_;
}

std::shared_ptr<Away> Mover::leave(const c10::Storage& storage, Place place, bool foreign) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const auto away = std::make_shared<Away>(shared_from_this(), place, bytes,
                                           device_); // before the lock, which its destructor takes if this fails
  const Lock lock(mutex_);
  const at::NoGradGuard no_grad;
  advance();
  while (!leaving_.empty() && leaving_bytes_ + bytes > most_leaving_) {
    free_original(*leaving_.front());
  }
  if (place == Place::nvme) {
    away->piece_ = files_->take(aio::round_up(bytes));
  }
  away->buffer_ = buffers_->take(bytes);
  const at::Tensor target = away->buffer_->tensor(bytes);
  if (device_.is_cpu()) {
    target.copy_(bytes_of(storage));
    write(*away);
  } else {
    const c10::Stream own = out_.on(device_);
    const device::OnStream on(own, device::current_stream(device_));
    const at::Tensor source = bytes_of(storage);
    target.copy_(source, /*non_blocking=*/true);
    away->copied_->record(own);
    away->buffer_->used_until(away->copied_);
    if (foreign) { // its stream does not wait for ours
      device::record_stream(source, own);
    }
    away->original_ = storage;
    ledger_->add(bytes);
  }
  leaving_.push_back(away.get());
  leaving_bytes_ += bytes;
  bytes_out_ += bytes;
  return away;
}

void Mover::write(Away& away) {
  away.write_ = transfers().write(*away.piece_->file, away.piece_->offset, away.buffer_->data(), away.buffer_->size());
}

void Mover::finish_write(Away& away) {
  transfers().wait(*away.write_);
  away.buffer_.reset();
}

// Frees the memory of the oldest storage being moved out.
void Mover::free_original(Away& away) {
  erase(leaving_, &away);
  leaving_bytes_ -= away.bytes_;
  if (device_.is_cpu()) {
    finish_write(away);
    return;
  }
  away.copied_->block(device::current_stream(device_)); // from here on it may be reused
  away.original_ = c10::Storage();
  ledger_->remove(away.bytes_);
  if (away.place_ == Place::nvme) {
    writing_.push_back(&away);
    const auto most = static_cast<size_t>(kStaged);
    while (writing_.size() > most && static_cast<int64_t>(writing_.size()) * away.bytes_ > kStaged * most_leaving_) {
      Away& oldest = *writing_.front();
      if (!oldest.write_) {
        oldest.copied_->synchronize();
        write(oldest);
      }
      finish_write(oldest);
      writing_.pop_front();
    }
  }
}

// Advances transfers without waiting.
void Mover::advance() {
  if (device_.is_cpu()) {
    while (!leaving_.empty() && transfers().finished(*leaving_.front()->write_)) {
      free_original(*leaving_.front());
    }
    return;
  }
  for (Away* const away : writing_) {
    if (!away->write_ && away->copied_->done()) {
      write(*away);
    }
  }
  while (!writing_.empty() && writing_.front()->write_ && transfers().finished(*writing_.front()->write_)) {
    finish_write(*writing_.front());
    writing_.pop_front();
  }
  while (!coming_.empty() && transfers().finished(*coming_.front()->read_)) {
    Away& away = *coming_.front();
    coming_.pop_front();
    transfers().wait(*away.read_);
    copy_in(away);
  }
}

// Does not call advance(): on the CPU that would free written buffers, whose contents need not be read again.
void Mover::call_back(Away& away) {
  const Lock lock(mutex_);
  begin_to_bring(away);
}

void Mover::begin_to_bring(Away& away) {
  if (away.called_) {
    return;
  }
  const at::NoGradGuard no_grad;
  away.called_ = true;
  if (away.original_) { // its copy out was never waited for
    erase(leaving_, &away);
    leaving_bytes_ -= away.bytes_;
    away.back_ = away.original_;
    away.counted_back_ = true;
    return;
  }
  bytes_in_ += away.bytes_;
  if (away.buffer_) {
    if (device_.is_cpu()) {
      away.back_ = storage_over(away.buffer_, away.bytes_);
    } else {
      copy_in(away);
    }
    return;
  }
  away.buffer_ = buffers_->take(away.bytes_);
  away.read_ = transfers().read(*away.piece_->file, away.piece_->offset, away.buffer_->data(), away.buffer_->size());
  if (!device_.is_cpu()) {
    coming_.push_back(&away);
  }
}

void Mover::copy_in(Away& away) {
  const c10::Stream own = in_.on(device_);
  const at::Tensor there = at::empty(
      {away.bytes_}, at::TensorOptions(at::kByte).device(device_)); // memory that the current stream used before
  {
    const device::OnStream on(own, device::current_stream(device_));
    away.copied_->block(own);
    there.copy_(away.buffer_->tensor(away.bytes_), /*non_blocking=*/true);
    away.arrived_->record(own);
  }
  away.buffer_->used_until(away.arrived_);
  if (std::find(writing_.begin(), writing_.end(), &away) == writing_.end()) {
    away.buffer_.reset();
  }
  away.back_ = there.storage();
  away.counted_back_ = true;
  ledger_->add(away.bytes_);
}

c10::Storage Mover::wait_for(Away& away) {
  const Lock lock(mutex_);
  const at::NoGradGuard no_grad;
  advance();
  begin_to_bring(away);
  if (!away.back_) {
    transfers().wait(*away.read_);
    if (device_.is_cpu()) {
      away.back_ = storage_over(away.buffer_, away.bytes_);
      away.buffer_.reset();
    } else {
      erase(coming_, &away);
      copy_in(away);
    }
  }
  if (!device_.is_cpu()) {
    away.arrived_->block(device::current_stream(device_));
  }
  return away.back_;
}

void Mover::forget(Away& away) noexcept {
  const Lock lock(mutex_);
  try {
    const bool was_leaving = std::find(leaving_.begin(), leaving_.end(), &away) != leaving_.end();
    erase(leaving_, &away);
    erase(writing_, &away);
    erase(coming_, &away);
    leaving_bytes_ -= was_leaving ? away.bytes_ : 0;
    if (!device_.is_cpu()) {
      const c10::Stream current = device::current_stream(device_);
      away.copied_->block(current);
      away.arrived_->block(current);
      if (away.counted_back_ || away.original_) {
        ledger_->remove(away.bytes_);
      }
    }
  } catch (const std::exception& error) { // the device has failed
    log::debug("activations that were not used: ", error.what());
  }
  for (const auto& id : {away.write_, away.read_}) { // wait before their memory and their place in the file are reused
    try {
      if (id) {
        transfers().wait(*id);
      }
    } catch (const std::exception& error) { // the transfer is not needed any more
      log::debug("activations that were not used: ", error.what());
    }
  }
}

} // namespace trireme::activations
