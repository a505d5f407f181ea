#include <trireme/parallel/pipeline/channel.h>

#include <trireme/base/error.h>

#include <torch/utils.h>

#include <algorithm>
#include <cstring>

namespace trireme::pipeline {

at::Tensor BufferPool::take(int64_t bytes) {
  for (const at::Tensor& buffer : buffers_) {
    // One reference is the pool's; views of a buffer share its storage.
    if (buffer.numel() == bytes && buffer.use_count() == 1 && buffer.storage().use_count() == 1) {
      return buffer;
    }
  }
  // Lengths that no longer occur must not pile up.
  std::erase_if(buffers_, [&](const at::Tensor& buffer) { return buffer.numel() != bytes && buffer.storage().use_count() == 1; });
  buffers_.push_back(group_.allocate(bytes, at::kByte));
  return buffers_.back();
}

void Agreement::adopt(const Layout& layout) {
  changes_in_a_row_ = known_ && layout != layout_ ? changes_in_a_row_ + 1 : 0;
  known_ = true;
  layout_ = layout;
  announce_all_ = changes_in_a_row_ >= 2;
  bytes_ = announce_all_ ? kAnnouncementBytes : std::max(layout.bytes, kAnnouncementBytes);
}

SendChannel::SendChannel(comm::Group group, int to, int tag, std::string what)
    : group_(std::move(group)), to_(to), tag_(tag), what_(std::move(what)), pool_(group_) {}

void SendChannel::start(const at::Tensor& buffer) {
  travelling_.push_back({sequence_, group_.send(buffer, to_, tag_, what_), buffer});
}

void SendChannel::send(const Message& message) {
  const torch::NoGradGuard no_grad;
  const Layout layout = Layout::of(message.tensors);
  Header header;
  header.micro_batch = message.micro_batch;
  header.sequence = ++sequence_;
  header.fingerprint = message.fingerprint;
  header.received = message.received;
  header.count = static_cast<int64_t>(message.tensors.size());
  for (size_t i = 0; i < message.requires_grad.size(); ++i) {
    header.requires_grad |= message.requires_grad[i] ? uint64_t{1} << i : 0;
  }
  int64_t bytes = agreement_.bytes();
  if (!agreement_.fits(layout)) {
    bytes = layout.bytes;
    const at::Tensor announcement = pool_.take(agreement_.bytes());
    header.announces = 1;
    header.next_bytes = bytes;
    std::memcpy(announcement.data_ptr(), &header, sizeof(header));
    layout.write(announcement.data_ptr<uint8_t>());
    start(announcement);
    header.announces = 0;
  }
  agreement_.adopt(layout);
  const at::Tensor buffer = pool_.take(bytes);
  std::memcpy(buffer.data_ptr(), &header, sizeof(header));
  const Tensors places = layout.views(buffer);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].defined()) {
      places[i].copy_(message.tensors[i]);
    }
  }
  start(buffer);
}

void SendChannel::release(uint64_t received) {
  while (!travelling_.empty() && travelling_.front().sequence <= received) {
    travelling_.front().work.wait();
    travelling_.pop_front();
  }
}

void SendChannel::finish() {
  release(sequence_);
}

RecvChannel::RecvChannel(comm::Group group, int from, int tag, std::string what)
    : group_(std::move(group)), from_(from), tag_(tag), what_(std::move(what)), pool_(group_) {}

void RecvChannel::expect() {
  if (!expected_) {
    at::Tensor buffer = pool_.take(agreement_.bytes());
    expected_.emplace(group_.recv(buffer, from_, tag_, what_), buffer);
  }
}

Message RecvChannel::recv(int64_t micro_batch) {
  expect();
  expected_->first.wait();
  at::Tensor buffer = std::move(expected_->second);
  expected_.reset();
  Header header;
  std::memcpy(&header, buffer.data_ptr(), sizeof(header));
  if (header.magic != Header::kMagic || header.sequence != sequence_ + 1 || header.count > kMaxTensors) {
    throw Error("pipeline", concat(what_, ": message ", sequence_ + 1, " was expected, something else came"),
                "The two stages run different programs or schedules: start all ranks with the same configuration.");
  }
  Layout layout = agreement_.layout();
  if (header.announces != 0) {
    layout = Layout::read(buffer.data_ptr<uint8_t>(), header.count);
    buffer = pool_.take(header.next_bytes);
    group_.recv(buffer, from_, tag_, what_).wait();
  }
  agreement_.adopt(layout); // for every message, as the sender does: both count the changes
  ++sequence_;
  if (header.micro_batch != micro_batch) {
    throw Error("pipeline", concat(what_, ": micro-batch ", micro_batch, " was expected, micro-batch ", header.micro_batch, " came"),
                "The two stages run different schedules.");
  }
  Message message;
  message.micro_batch = header.micro_batch;
  message.fingerprint = header.fingerprint;
  message.received = header.received;
  message.tensors = agreement_.layout().views(buffer);
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    message.requires_grad.push_back(((header.requires_grad >> i) & 1) != 0);
  }
  return message;
}

} // namespace trireme::pipeline
