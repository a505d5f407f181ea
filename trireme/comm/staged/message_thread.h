#pragma once

#include <trireme/comm/backend.h>
#include <trireme/comm/staged/copies.h>

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace trireme::comm::staged {

/// Carries the messages of a group between GPUs through a host backend of its own. No message waits for one of another peer or of the
/// other direction: the thread polls them all, so that ranks may send to each other in any order.
class MessageThread {
 public:
  MessageThread(std::shared_ptr<Backend> host, std::chrono::milliseconds timeout);
  /// Messages under way fail.
  ~MessageThread();
  MessageThread(const MessageThread&) = delete;
  MessageThread& operator=(const MessageThread&) = delete;

  std::shared_ptr<Pending> send(const Copies& copies, const at::Tensor& tensor, int to, int tag);
  std::shared_ptr<Pending> recv(const Copies& copies, const at::Tensor& tensor, int from, int tag);

 private:
  struct Message;
  struct Shared;
  class Ticket;

  std::shared_ptr<Pending> add(std::shared_ptr<Message> message);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

} // namespace trireme::comm::staged
