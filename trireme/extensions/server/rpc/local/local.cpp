#include <trireme/extensions/server/rpc/local/local.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace trireme::rpc::local {
namespace {

constexpr const char* kNext = "The server's thread has ended: see its messages.";

/// State that a server and its clients share.
class Desk {
 public:
  struct Asked {
    std::shared_ptr<std::atomic<int64_t>> received; // bytes received by its client
    std::optional<std::string> reply;
    bool broken = false;
  };

  void ask(uint64_t client, std::string header, std::span<const std::byte> body, std::span<std::byte> room,
           std::shared_ptr<Asked> asked) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      asked->broken = true;
      return;
    }
    const uint64_t id = ++last_id_;
    PendingCall& waiting = waiting_[id];
    waiting = {client, std::move(asked), {body.begin(), body.end()}, std::vector<std::byte>(room.size()), room};
    events_.push_back({Event::Kind::request, client, id, std::move(header), waiting.body, waiting.reply});
    changed_.notify_all();
  }
  std::string wait(const Asked& asked, const std::string& name, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return asked.reply || asked.broken; });
    if (!asked.reply) {
      throw PeerError(
          "rpc",
          concat("local://", name, asked.broken ? " ended before it answered" : " did not answer before the deadline"),
          kNext);
    }
    return *asked.reply;
  }
  bool wait_until(const Asked& asked, Clock::time_point time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, time, [&] { return asked.reply || asked.broken; });
  }
  bool done(const Asked& asked) {
    const std::lock_guard lock(mutex_);
    return asked.reply || asked.broken;
  }
  void leave(uint64_t client) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, waiting] : waiting_) { // the server may still read their memory
      if (waiting.client == client) {
        waiting.asked = nullptr;
      }
    }
    events_.push_back({Event::Kind::gone, client, 0, {}, {}, {}});
    changed_.notify_all();
  }
  std::optional<Event> next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return !events_.empty(); })) {
      return std::nullopt;
    }
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  void reply(uint64_t id, std::string header, size_t body_bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) {
      return;
    }
    if (PendingCall& waiting = found->second; waiting.asked) {
      const size_t bytes = std::min(body_bytes, waiting.reply.size());
      std::copy_n(waiting.reply.begin(), bytes, waiting.room.begin());
      *waiting.asked->received += static_cast<int64_t>(bytes);
      waiting.asked->reply = std::move(header);
      changed_.notify_all();
    }
    waiting_.erase(found);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& [id, waiting] : waiting_) {
      if (waiting.asked) {
        waiting.asked->broken = true;
      }
    }
    changed_.notify_all();
  }

 private:
  struct PendingCall {
    uint64_t client = 0;
    std::shared_ptr<Asked> asked; // null: the client has left
    std::vector<std::byte> body;
    std::vector<std::byte> reply;
    std::span<std::byte> room;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  std::map<uint64_t, PendingCall> waiting_; // the memory of its vectors does not move
  uint64_t last_id_ = 0;
  bool closed_ = false;
};

struct Desks {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Desk>> by_name;
};

Desks& desks() {
  static Desks all;
  return all;
}

class LocalServer final : public Server {
 public:
  explicit LocalServer(std::string name) : name_(std::move(name)) {
    Desks& all = desks();
    const std::lock_guard lock(all.mutex);
    if (!all.by_name.try_emplace(name_, desk_).second) {
      throw InputError("rpc", concat("this process already has a server local://", name_),
                       "Give each server its own name.");
    }
    all.changed.notify_all();
  }
  ~LocalServer() override {
    Desks& all = desks();
    {
      const std::lock_guard lock(all.mutex);
      all.by_name.erase(name_);
    }
    desk_->close();
  }
  std::optional<Event> next(std::chrono::milliseconds timeout) override { return desk_->next(timeout); }
  void reply(uint64_t id, std::string header, size_t body_bytes) override {
    desk_->reply(id, std::move(header), body_bytes);
  }
  std::string address() const override { return "local://" + name_; }

 private:
  std::string name_;
  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
};

class LocalCall final : public Call {
 public:
  LocalCall(std::shared_ptr<Desk> desk, std::string name, std::shared_ptr<Desk::Asked> asked)
      : desk_(std::move(desk)), name_(std::move(name)), asked_(std::move(asked)) {}
  std::string wait(Clock::time_point deadline) override { return desk_->wait(*asked_, name_, deadline); }
  bool wait_until(Clock::time_point time) override { return desk_->wait_until(*asked_, time); }
  bool done() const override { return desk_->done(*asked_); }

 private:
  std::shared_ptr<Desk> desk_;
  std::string name_;
  std::shared_ptr<Desk::Asked> asked_;
};

class LocalClient final : public Client {
 public:
  LocalClient(std::shared_ptr<Desk> desk, std::string name) : desk_(std::move(desk)), name_(std::move(name)) {}
  ~LocalClient() override { desk_->leave(number_); }
  std::shared_ptr<Call> call(std::string header, std::span<const std::byte> body, std::span<std::byte> room) override {
    sent_ += static_cast<int64_t>(body.size());
    auto asked = std::make_shared<Desk::Asked>();
    asked->received = received_;
    desk_->ask(number_, std::move(header), body, room, asked);
    return std::make_shared<LocalCall>(desk_, name_, std::move(asked));
  }
  int64_t bytes_sent() const override { return sent_; }
  int64_t bytes_received() const override { return *received_; }

 private:
  static uint64_t next_number() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  std::shared_ptr<Desk> desk_;
  std::string name_;
  uint64_t number_ = next_number();
  int64_t sent_ = 0;
  std::shared_ptr<std::atomic<int64_t>> received_ = std::make_shared<std::atomic<int64_t>>(0);
};

} // namespace

std::unique_ptr<Server> serve(const std::string& name) {
  return std::make_unique<LocalServer>(name);
}

std::unique_ptr<Client> connect(const std::string& name, Clock::time_point deadline) {
  Desks& all = desks();
  std::unique_lock lock(all.mutex);
  if (!all.changed.wait_until(lock, deadline, [&] { return all.by_name.contains(name); })) {
    throw PeerError("rpc", concat("there is no server local://", name, " in this process"), kNext);
  }
  return std::make_unique<LocalClient>(all.by_name.at(name), name);
}

} // namespace trireme::rpc::local
