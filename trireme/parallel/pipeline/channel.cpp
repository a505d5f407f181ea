#include <trireme/parallel/pipeline/channel.h>

#include <trireme/base/error.h>

#include <torch/utils.h>

#include <algorithm>
#include <cstring>

namespace trireme::pipeline {

at::Tensor BufferPool::take(int64_t bytes) {
  for (const at::Tensor& buffer : buffers_) {
    // The pool holds one reference; views of a buffer share its storage.
    if (buffer.numel() == bytes && buffer.use_count() == 1 && buffer.storage().use_count() == 1) {
      return buffer;
    }
  }
  // Drops buffers of lengths that no longer occur.
  std::erase_if(buffers_,
                [&](const at::Tensor& buffer) { return buffer.numel() != bytes && buffer.storage().use_count() == 1; });
  buffers_.push_back(group_.allocate(bytes, at::kByte, device_));
  return buffers_.back();
}

void Agreement::adopt(const Layout& layout) {
  changes_in_a_row_ = known_ && layout != layout_ ? changes_in_a_row_ + 1 : 0;
  known_ = true;
  layout_ = layout;
  announce_all_ = changes_in_a_row_ >= 2;
  bytes_ = announce_all_ ? kAnnouncementBytes : buffer_bytes(layout.bytes);
}

namespace {

// Tag of host messages that are headers of GPU payloads.
constexpr int kHeaderTag = 0;

void copy_into(const at::Tensor& buffer, const Layout& layout, const Tensors& tensors) {
  const Tensors places = layout.views(buffer);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].defined()) {
      places[i].copy_(tensors[i]);
    }
  }
}

Header header_in(const at::Tensor& buffer, const std::string& what) {
  Header header;
  std::memcpy(&header, buffer.data_ptr(), sizeof(header));
  if (header.magic != Header::kMagic || header.count > kMaxTensors) {
    throw Error("pipeline", concat(what, ": received something that is not a message"),
                "The two stages run different programs or schedules: start all ranks with the same configuration.");
  }
  return header;
}

} // namespace

SendChannel::SendChannel(comm::Group group, int to, int tag, std::string what, at::Device device)
    : group_(std::move(group)),
      to_(to),
      tag_(tag),
      what_(std::move(what)),
      device_(device),
      pool_(group_, device),
      headers_(group_) {}

void SendChannel::start(const at::Tensor& buffer, int tag) {
  travelling_.push_back({sequence_, group_.send(buffer, to_, tag, what_), buffer});
}

void SendChannel::send(const Message& message) {
  const torch::NoGradGuard no_grad;
  const Layout layout = Layout::of(message.tensors);
  Header header;
  header.channel = static_cast<uint16_t>(tag_);
  header.micro_batch = message.micro_batch;
  header.sequence = ++sequence_;
  header.fingerprint = message.fingerprint;
  header.identified_by_contents = message.identified_by_contents ? 1 : 0;
  header.received = message.received;
  header.count = static_cast<int64_t>(message.tensors.size());
  for (size_t i = 0; i < message.requires_grad.size(); ++i) {
    header.requires_grad |= message.requires_grad[i] ? uint64_t{1} << i : 0;
  }
  if (device_.is_cpu()) {
    send_on_host(header, layout, message.tensors);
  } else {
    send_on_device(header, layout, message.tensors);
  }
}

void SendChannel::send_on_host(Header header, const Layout& layout, const Tensors& tensors) {
  int64_t bytes = agreement_.bytes();
  if (!agreement_.fits(layout)) {
    bytes = layout.bytes;
    const at::Tensor announcement = pool_.take(agreement_.bytes());
    header.announces = 1;
    header.next_bytes = bytes;
    std::memcpy(announcement.data_ptr(), &header, sizeof(header));
    layout.write(announcement.data_ptr<uint8_t>());
    start(announcement, tag_);
    header.announces = 0;
  }
  agreement_.adopt(layout);
  const at::Tensor buffer = pool_.take(bytes);
  std::memcpy(buffer.data_ptr(), &header, sizeof(header));
  copy_into(buffer, layout, tensors);
  start(buffer, tag_);
}

void SendChannel::send_on_device(Header header, const Layout& layout, const Tensors& tensors) {
  header.announces = agreement_.fits(layout) ? 0 : 1;
  agreement_.adopt(layout);
  const at::Tensor head = headers_.take(kHeaderBytes);
  std::memcpy(head.data_ptr(), &header, sizeof(header));
  start(head, kHeaderTag);
  if (header.announces != 0) {
    const at::Tensor announcement = headers_.take(kAnnouncementBytes);
    layout.write(announcement.data_ptr<uint8_t>());
    start(announcement, kHeaderTag);
  }
  const at::Tensor buffer = pool_.take(layout.bytes);
  copy_into(buffer, layout, tensors);
  start(buffer.slice(0, kHeaderBytes), 0);
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

DeviceInbox::DeviceInbox(comm::Group group, int from, at::Device device)
    : group_(std::move(group)), from_(from), pool_(group_, device), headers_(group_) {}

void DeviceInbox::expect(int channel) {
  Channel& expecting = channels_[channel];
  expecting.expects = expecting.arrived.empty();
  receive_header();
  while (header_ && header_->first.done()) { // so that payloads arrive while this rank computes
    read();
  }
}

Arrival DeviceInbox::next(int channel, const std::string& what) {
  Channel& wanted = channels_[channel];
  while (wanted.arrived.empty()) {
    if (!header_) {
      throw Error("pipeline", concat(what, ": next() without expect()"));
    }
    read();
  }
  Arrival arrival = std::move(wanted.arrived.front());
  wanted.arrived.pop_front();
  return arrival;
}

void DeviceInbox::receive_header() {
  const auto expects = [](const auto& channel) { return channel.second.expects; };
  if (!header_ && std::any_of(channels_.begin(), channels_.end(), expects)) {
    const at::Tensor buffer = headers_.take(kHeaderBytes);
    header_.emplace(group_.recv(buffer, from_, kHeaderTag, "header of a message"), buffer);
  }
}

void DeviceInbox::read() {
  header_->first.wait();
  Arrival arrival;
  arrival.header = header_in(header_->second, concat("rank ", from_));
  header_.reset();
  Channel& channel = channels_[arrival.header.channel];
  if (arrival.header.announces != 0) {
    const at::Tensor announcement = headers_.take(kAnnouncementBytes);
    group_.recv(announcement, from_, kHeaderTag, "types and shapes").wait();
    channel.layout = Layout::read(announcement.data_ptr<uint8_t>(), arrival.header.count);
  }
  arrival.layout = channel.layout;
  arrival.buffer = pool_.take(arrival.layout.bytes);
  arrival.payload = group_.recv(arrival.buffer.slice(0, kHeaderBytes), from_, 0, "payload of a message");
  channel.arrived.push_back(std::move(arrival));
  channel.expects = false;
  receive_header();
}

RecvChannel::RecvChannel(comm::Group group, int from, int tag, std::string what, std::shared_ptr<DeviceInbox> inbox)
    : group_(std::move(group)),
      inbox_(std::move(inbox)),
      from_(from),
      tag_(tag),
      what_(std::move(what)),
      pool_(group_) {}

void RecvChannel::expect() {
  if (inbox_) {
    inbox_->expect(tag_);
  } else if (!expected_) {
    at::Tensor buffer = pool_.take(agreement_.bytes());
    expected_.emplace(group_.recv(buffer, from_, tag_, what_), buffer);
  }
}

Arrival RecvChannel::arrive_on_host() {
  expected_->first.wait();
  Arrival arrival;
  arrival.buffer = std::move(expected_->second);
  expected_.reset();
  arrival.header = header_in(arrival.buffer, what_);
  arrival.layout = agreement_.layout();
  if (arrival.header.announces != 0 && arrival.header.sequence == sequence_ + 1) {
    arrival.layout = Layout::read(arrival.buffer.data_ptr<uint8_t>(), arrival.header.count);
    arrival.buffer = pool_.take(arrival.header.next_bytes);
    arrival.payload = group_.recv(arrival.buffer, from_, tag_, what_);
  }
  agreement_.adopt(arrival.layout); // for every message, as the sender does: both count the changes
  return arrival;
}

Message RecvChannel::recv(int64_t micro_batch) {
  expect();
  Arrival arrival = inbox_ ? inbox_->next(tag_, what_) : arrive_on_host();
  const Header& header = arrival.header;
  if (header.sequence != sequence_ + 1) {
    throw Error("pipeline", concat(what_, ": expected message ", sequence_ + 1, ", received message ", header.sequence),
                "The two stages run different programs or schedules: start all ranks with the same configuration.");
  }
  arrival.payload.wait();
  ++sequence_;
  if (header.micro_batch != micro_batch) {
    throw Error("pipeline",
                concat(what_, ": expected micro-batch ", micro_batch, ", received micro-batch ", header.micro_batch),
                "The two stages run different schedules.");
  }
  Message message;
  message.micro_batch = header.micro_batch;
  message.fingerprint = header.fingerprint;
  message.identified_by_contents = header.identified_by_contents != 0;
  message.received = header.received;
  message.tensors = arrival.layout.views(arrival.buffer);
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    message.requires_grad.push_back(((header.requires_grad >> i) & 1) != 0);
  }
  return message;
}

} // namespace trireme::pipeline
