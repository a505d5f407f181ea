#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/message.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace trireme::pipeline {

/// Byte buffers of a channel, used again once nobody looks into them any more.
class BufferPool {
 public:
  explicit BufferPool(comm::Group group, at::Device device = at::kCPU) : group_(std::move(group)), device_(device) {}
  at::Tensor take(int64_t bytes);

 private:
  comm::Group group_;
  at::Device device_;
  std::vector<at::Tensor> buffers_;
};

/// What both ends of a channel know: how long the next message is. While types and shapes stay
/// the same a message is one transfer of a known length, so the receiver waits for it ahead of time.
/// When they change, the sender uses that transfer to announce them. Channels whose messages change
/// all the time announce each in a short transfer, so that the announcement costs little.
class Agreement {
 public:
  int64_t bytes() const {
    return bytes_;
  }
  bool fits(const Layout& layout) const {
    return known_ && !announce_all_ && layout == layout_;
  }
  const Layout& layout() const {
    return layout_;
  }
  void adopt(const Layout& layout);

 private:
  bool known_ = false;
  bool announce_all_ = false;
  int changes_in_a_row_ = 0;
  int64_t bytes_ = kAnnouncementBytes;
  Layout layout_;
};

/// One direction between two virtual stages, the end that sends.
class SendChannel {
 public:
  /// `to` is a rank of `group`; `tag` names the channel; `what` names it for people: "activations of stage 0 for stage 1".
  /// Messages travel from the memory of `device`; the other end receives into that of the same kind.
  SendChannel(comm::Group group, int to, int tag, std::string what, at::Device device = at::kCPU);

  /// Copies the tensors into a buffer and returns while it travels.
  /// Cost: one copy, and the transfer in the background.
  void send(const Message& message);
  /// The other end has the first `received` messages: their buffers are free.
  void release(uint64_t received);
  /// Waits until everything has left.
  void finish();

 private:
  void start(const at::Tensor& buffer, int tag);
  void send_on_host(Header header, const Layout& layout, const Tensors& tensors);
  void send_on_device(Header header, const Layout& layout, const Tensors& tensors);

  comm::Group group_;
  int to_;
  int tag_;
  std::string what_;
  at::Device device_;
  BufferPool pool_;    // of the device
  BufferPool headers_; // on the host, where the device is not
  Agreement agreement_;
  uint64_t sequence_ = 0;
  struct Travelling {
    uint64_t sequence;
    comm::Work work;
    at::Tensor buffer;
  };
  std::deque<Travelling> travelling_;
};

/// A message on its way in: its header has arrived, `payload` says when the rest has.
struct Arrival {
  Header header;
  Layout layout;
  at::Tensor buffer;
  comm::Work payload;
};

/// Receives what one rank sends to channels whose messages lie on a device. Backends of devices match a message by its order only
/// (NCCL has no tags), so the headers of all channels come on the host in one stream, and each starts its payload's receive.
class DeviceInbox {
 public:
  DeviceInbox(comm::Group group, int from, at::Device device);

  /// Makes ready for the next message of the channel.
  void expect(int channel);
  /// Waits for that message's header. Errors: Error when something else came.
  Arrival next(int channel, const std::string& what);

 private:
  void read();
  /// Receives one header ahead while somebody expects a message.
  void receive_header();

  struct Channel {
    bool expects = false;
    Layout layout;
    std::deque<Arrival> arrived;
  };
  comm::Group group_;
  int from_;
  BufferPool pool_;
  BufferPool headers_;
  std::map<int, Channel> channels_;
  std::optional<std::pair<comm::Work, at::Tensor>> header_;
};

/// One direction between two virtual stages, the end that receives.
class RecvChannel {
 public:
  /// `inbox` receives what lies on a device; null: messages are on the host.
  RecvChannel(comm::Group group, int from, int tag, std::string what, std::shared_ptr<DeviceInbox> inbox = nullptr);

  /// Makes ready for the next message, so that it can arrive while this rank computes.
  void expect();
  /// Waits for the next message (on a device: for its place in the device's order); its tensors lie in a buffer that is used again once they are gone.
  /// Errors: Error when it is not that of `micro_batch`; PeerError when the neighbour is lost.
  Message recv(int64_t micro_batch);
  uint64_t received() const {
    return sequence_;
  }

 private:
  Arrival arrive_on_host();

  comm::Group group_;
  std::shared_ptr<DeviceInbox> inbox_;
  int from_;
  int tag_;
  std::string what_;
  BufferPool pool_;
  Agreement agreement_;
  uint64_t sequence_ = 0;
  std::optional<std::pair<comm::Work, at::Tensor>> expected_;
};

} // namespace trireme::pipeline
