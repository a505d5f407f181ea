#include <trireme/comm/staged/message_thread.h>

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <set>

namespace trireme::comm::staged {
namespace {

/// Between two looks at messages that have not moved.
constexpr std::chrono::microseconds kPause{30};

} // namespace

struct MessageThread::Message {
  bool is_send;
  int peer;
  int tag;
  Copies copies;
  at::Tensor tensor;
  at::Tensor pinned;
  std::optional<c10::Event> copied; ///< a send's, to the host
  bool started = false;
  std::shared_ptr<Pending> under_way;
  bool done = false;
  std::optional<c10::Event> arrived; ///< a received one's, on the GPU
  std::exception_ptr error;
};

struct MessageThread::Shared {
  std::shared_ptr<Backend> host;
  std::chrono::milliseconds timeout{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::list<std::shared_ptr<Message>> messages;
  std::exception_ptr broken;
  bool stopping = false;

  // True if it moved.
  bool move(Message& message, std::set<int>& blocked) const {
    if (!message.started) {
      if (message.is_send && (blocked.count(message.peer) != 0 || !message.copied->query())) {
        blocked.insert(message.peer); // those to one peer keep their order
        return false;
      }
      message.started = true;
      message.under_way = message.is_send ? host->send(message.pinned, message.peer, message.tag) : host->recv(message.pinned, message.peer, message.tag);
      return true;
    }
    if (message.under_way && !message.under_way->done()) {
      return false;
    }
    if (message.under_way) {
      message.under_way->wait();
    }
    if (!message.is_send) {
      message.copies.to_device(message.tensor, message.pinned);
      message.arrived = device::event_on(message.copies.up);
    }
    message.done = true;
    return true;
  }

  void fail_all() {
    for (const auto& message : messages) {
      message->error = broken;
      message->done = true;
    }
    for (const auto& message : messages) {
      message->under_way.reset();
      message->tensor.reset();
    }
    messages.clear();
  }

  bool move_all() {
    bool moved = false;
    std::set<int> blocked;
    for (auto next = messages.begin(); next != messages.end();) {
      Message& message = **next;
      moved = move(message, blocked) || moved;
      if (message.done) {
        message.under_way.reset();
        message.tensor.reset();
        next = messages.erase(next);
      } else {
        ++next;
      }
    }
    return moved;
  }

  void work() {
    omp_set_num_threads(1);
    ::pthread_setname_np(::pthread_self(), "staged messages");
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || !messages.empty(); });
      try {
        if (stopping) {
          throw Trouble(Trouble::Kind::interrupted, "the group is closed");
        }
        if (move_all()) {
          changed.notify_all();
        } else {
          changed.wait_for(lock, kPause);
        }
      } catch (...) {
        broken = std::current_exception();
        fail_all();
        changed.notify_all();
        return;
      }
    }
  }
};

class MessageThread::Ticket : public Pending {
 public:
  Ticket(std::shared_ptr<Shared> shared, std::shared_ptr<Message> message)
      : shared_(std::move(shared)), message_(std::move(message)), device_(message_->tensor.device()), exceptions_at_start_(std::uncaught_exceptions()) {}
  ~Ticket() override {
    try {
      if (std::uncaught_exceptions() > exceptions_at_start_) {
        shared_->host->interrupt(); // the peers wait for this rank in vain
      } else {
        Ticket::wait();
      }
    } catch (...) {
      // No caller is left for the error.
    }
  }

  void wait() override {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->changed.wait_for(lock, shared_->timeout, [&] { return message_->done; })) {
      shared_->host->interrupt();
      throw Trouble(Trouble::Kind::deadline, "not done in time");
    }
    if (message_->error) {
      std::rethrow_exception(message_->error);
    }
    if (message_->arrived) {
      message_->arrived->block(device::current_stream(device_));
    }
  }
  bool done() override {
    const std::lock_guard lock(shared_->mutex);
    return message_->done && (!message_->arrived || message_->arrived->query());
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Message> message_;
  at::Device device_;
  const int exceptions_at_start_;
};

MessageThread::MessageThread(std::shared_ptr<Backend> host, std::chrono::milliseconds timeout) : shared_(std::make_shared<Shared>()) {
  shared_->host = std::move(host);
  shared_->timeout = timeout;
  thread_ = std::thread([shared = shared_] { shared->work(); });
}

MessageThread::~MessageThread() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->changed.notify_all();
  thread_.join();
}

std::shared_ptr<Pending> MessageThread::add(std::shared_ptr<Message> message) {
  auto ticket = std::make_shared<Ticket>(shared_, message);
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->broken) {
      message->error = shared_->broken;
      message->done = true;
    } else {
      shared_->messages.push_back(std::move(message));
    }
  }
  shared_->changed.notify_all();
  return ticket;
}

std::shared_ptr<Pending> MessageThread::send(const Copies& copies, const at::Tensor& tensor, int to, int tag) {
  copies.begin(tensor);
  auto [pinned, copied] = copies.to_host(tensor);
  return add(std::make_shared<Message>(Message{true, to, tag, copies, tensor, pinned, std::move(copied), false, nullptr, false, std::nullopt, nullptr}));
}

std::shared_ptr<Pending> MessageThread::recv(const Copies& copies, const at::Tensor& tensor, int from, int tag) {
  copies.begin(tensor);
  return add(std::make_shared<Message>(
      Message{false, from, tag, copies, tensor, empty_pinned(tensor.sizes(), tensor.scalar_type()), std::nullopt, false, nullptr, false, std::nullopt, nullptr}));
}

} // namespace trireme::comm::staged
