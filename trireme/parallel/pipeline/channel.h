#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/message.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace trireme::pipeline {

/// Byte buffers of a channel, reused when no tensor views them.
class BufferPool {
 public:
  explicit BufferPool(comm::Group group, at::Device device = at::kCPU) : group_(std::move(group)), device_(device) {}
  at::Tensor take(int64_t bytes);

 private:
  comm::Group group_;
  at::Device device_;
  std::vector<at::Tensor> buffers_;
};

/// The length of the next message, known to both ends of a channel. While types and shapes stay the same a message
/// is one transfer of a known length, so the receiver can post it in advance. When they change, the sender uses that
/// transfer to announce them. Channels whose messages always change announce each in a short transfer of little
/// cost.
class Agreement {
 public:
  int64_t bytes() const { return bytes_; }
  bool fits(const Layout& layout) const { return known_ && !announce_all_ && layout == layout_; }
  const Layout& layout() const { return layout_; }
  void adopt(const Layout& layout);

 private:
  bool known_ = false;
  bool announce_all_ = false;
  int changes_in_a_row_ = 0;
  int64_t bytes_ = kAnnouncementBytes;
  Layout layout_;
};

/// The sending end of one direction between two virtual stages.
class SendChannel {
 public:
  /// `to` is a rank of `group`; `tag` identifies the channel; `what` names it in messages: "activations of stage 0 for
  /// stage 1". Messages are sent from memory of `device`; the other end receives into the same kind of device.
  SendChannel(comm::Group group, int to, int tag, std::string what, at::Device device = at::kCPU);

  /// Copies the tensors into a buffer and starts to send it.
  /// Cost: one copy, and the transfer in the background.
  void send(const Message& message);
  /// Frees the buffers of the first `received` messages: the other end has received them.
  void release(uint64_t received);
  /// Waits until all messages are sent.
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
  BufferPool headers_; // on the host, if `device` is not
  Agreement agreement_;
  uint64_t sequence_ = 0;
  struct Travelling {
    uint64_t sequence;
    comm::Work work;
    at::Tensor buffer;
  };
  std::deque<Travelling> travelling_;
};

/// An incoming message: its header has arrived, `payload` is the transfer of the rest.
struct Arrival {
  Header header;
  Layout layout;
  at::Tensor buffer;
  comm::Work payload;
};

/// Receives the messages of one rank for channels on a GPU. GPU backends match messages by order only (NCCL has
/// no tags). So the headers of all channels arrive on the host in one stream, and each starts its payload's
/// receive.
class DeviceInbox {
 public:
  DeviceInbox(comm::Group group, int from, at::Device device);

  /// Posts the receive for the next message of the channel.
  void expect(int channel);
  /// Waits for that message's header. Errors: Error for any other message.
  Arrival next(int channel, const std::string& what);

 private:
  void read();
  /// Receives one header in advance while a channel expects a message.
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

/// The receiving end of one direction between two virtual stages.
class RecvChannel {
 public:
  /// `inbox` receives messages on a GPU; null: messages are on the host.
  RecvChannel(comm::Group group, int from, int tag, std::string what, std::shared_ptr<DeviceInbox> inbox = nullptr);

  /// Posts the receive for the next message, so that it can arrive while this rank computes.
  void expect();
  /// Waits for the next message (on a GPU: until its order among the messages is known). Its tensors lie in a buffer
  /// that is reused once they are freed. Errors: Error when it is not that of `micro_batch`; PeerError when the
  /// neighbour is lost.
  Message recv(int64_t micro_batch);
  uint64_t received() const { return sequence_; }

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
