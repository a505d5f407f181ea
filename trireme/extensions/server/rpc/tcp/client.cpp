#include <trireme/base/error.h>
#include <trireme/comm/shm/arena.h>
#include <trireme/extensions/server/rpc/tcp/streams.h>
#include <trireme/extensions/server/rpc/tcp/tcp.h>
#include <trireme/store/connect.h>

#include <nlohmann/json.hpp>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::rpc::tcp {
namespace {

using comm::shm::Arena;
using std::chrono::milliseconds;

constexpr milliseconds kBeforeAnotherTry{20};
/// Bytes that a reading thread takes before other threads get the mutex.
constexpr size_t kReadOfAReply = 4 << 20;

struct Asked {
  std::span<std::byte> room;
  bool shared_room = false;
  std::string header;
  std::atomic<bool> done{false};
};

/// The connection, shared by the client and its calls.
class Line : public FrameTaker {
 public:
  Line(Descriptor socket, std::string address) : socket_(std::move(socket)), address_(std::move(address)) {}

  ~Line() override { close(); }

  /// Offers this process's memory to the server.
  void greet(Clock::time_point deadline) {
    nlohmann::json offer = nlohmann::json::object();
    const bool can_share = Arena::obstacle().empty();
    if (can_share) {
      offer = {{"host", store::host_identity()}, {"arena", Arena::process().address()}};
    }
    const auto asked = call(offer.dump(), {}, {});
    const auto answer = nlohmann::json::parse(wait(*asked, deadline), nullptr, false);
    shared_ = can_share && answer.is_object() && answer.value("shared", false);
  }

  std::shared_ptr<Asked> call(const std::string& header, std::span<const std::byte> body, std::span<std::byte> room) {
    const auto asked = std::make_shared<Asked>();
    Head head;
    head.header_bytes = header.size();
    head.body_bytes = body.size();
    head.room_bytes = room.size();
    if (header.size() > kLargestHeader || body.size() > kLongestBody || room.size() > kLongestBody) {
      throw Error("rpc",
                  concat("a request with a header of ", header.size(), " bytes, a body of ", body.size(),
                         " and a room of ", room.size(), " is too long."),
                  "Send it in parts.");
    }
    head.body_at = place_of(body);
    head.room_at = place_of(room);
    asked->room = room;
    asked->shared_room = head.room_at != kInStream;
    const std::lock_guard lock(mutex_);
    if (!broken_.empty()) {
      return asked; // wait() throws
    }
    head.id = next_id_++;
    asked_.emplace(head.id, asked);
    sent_ += static_cast<int64_t>(body.size());
    writer_.add(head, header, head.streamed() > 0 ? body : std::span<const std::byte>());
    if (!writer_.send_some(socket_.get())) {
      fail("the connection is broken");
    } else if (thread_.joinable()) {
      wake();
    } else if (!writer_.empty()) {
      start_thread();
    }
    return asked;
  }

  std::string wait(Asked& asked, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    if (!settles(lock, asked, deadline)) {
      // Breaks the connection, because a late response would overwrite reused memory.
      fail("it did not answer before the deadline");
    }
    if (!asked.done) {
      throw PeerError("rpc", concat("the server at ", address_, " is lost: ", broken_, "."),
                      "See its output; connect again when it is back.");
    }
    return asked.header;
  }

  bool wait_until(Asked& asked, Clock::time_point time) {
    std::unique_lock lock(mutex_);
    return settles(lock, asked, time);
  }

  bool done(const Asked& asked) {
    if (asked.done) {
      return true;
    }
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable() && broken_.empty()) {
      read();
    }
    return asked.done || !broken_.empty();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      fail("this side has closed the connection");
    }
    if (thread_.joinable()) {
      wake();
      thread_.join();
    }
  }

  int64_t sent() {
    const std::lock_guard lock(mutex_);
    return sent_;
  }
  int64_t received() {
    const std::lock_guard lock(mutex_);
    return received_;
  }

  // Called by read(), with the mutex.
  Place begin(std::span<const std::byte, kHeadBytes> bytes) override {
    const Head head = unpack(bytes, Head::Kind::reply, 0);
    const auto found = asked_.find(head.id);
    if (found == asked_.end()) {
      throw BadFrame("a response to an unknown request arrived");
    }
    Asked& asked = *found->second;
    if (head.body_bytes > asked.room.size() || (head.body_at != kInStream) != asked.shared_room) {
      throw BadFrame(concat("a response has ", head.body_bytes, " bytes, and its room ", asked.room.size()));
    }
    coming_ = head.id;
    coming_bytes_ = static_cast<int64_t>(head.body_bytes);
    asked.header.resize(head.header_bytes);
    return {asked.header, asked.shared_room ? std::span<std::byte>() : asked.room.first(head.body_bytes)};
  }

  void finished() override {
    const auto found = asked_.find(coming_);
    received_ += coming_bytes_;
    found->second->done = true;
    asked_.erase(found);
  }

 private:
  uint64_t place_of(std::span<const std::byte> bytes) const {
    const bool inside = shared_ && !bytes.empty() && Arena::process().contains(bytes.data(), bytes.size());
    return inside ? Arena::process().offset_of(bytes.data()) : kInStream;
  }

  // Waits until there is a response or the connection is broken; false if `deadline` passes first.
  bool settles(std::unique_lock<std::mutex>& lock, const Asked& asked, Clock::time_point deadline) {
    while (!asked.done && broken_.empty()) {
      if (thread_.joinable()) {
        if (Clock::now() >= deadline) {
          return false;
        }
        arrived_.wait_until(lock, std::min(deadline, Clock::now() + std::chrono::hours(1)));
        continue;
      }
      read();
      if (asked.done || !broken_.empty()) {
        return true;
      }
      const auto now = Clock::now();
      if (now >= deadline) {
        return false;
      }
      pollfd waiting{socket_.get(), POLLIN, 0};
      const int64_t left = std::chrono::ceil<milliseconds>(deadline - now).count();
      if (::poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 0, milliseconds(kBetweenLooks).count()))) ==
          0) {
        look();
      }
    }
    return true;
  }

  void read() {
    try {
      if (!reader_.read_some(socket_.get(), *this, kReadOfAReply)) {
        fail("it has closed the connection");
      }
    } catch (const BadFrame& problem) {
      fail(problem.happened);
    }
  }

  void look() {
    if (store::is_silent(socket_.get())) {
      fail("its host is silent");
    }
  }

  void fail(const std::string& why) {
    if (!broken_.empty()) {
      return;
    }
    broken_ = why;
    ::shutdown(socket_.get(), SHUT_RDWR);
    for (const auto& [id, asked] : asked_) {
      if (asked->shared_room) { // the server may be alive and still write to it
        Arena::process().stop_reuse();
        break;
      }
    }
    asked_.clear();
    arrived_.notify_all();
  }

  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  void start_thread() {
    wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) {
      throw Error("rpc", concat("cannot make an eventfd: ", std::strerror(errno), "."),
                  "Raise the limit on open files (ulimit -n).");
    }
    sigset_t all; // signals are for the program's own threads
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { move_bytes(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void move_bytes() {
    std::unique_lock lock(mutex_);
    while (broken_.empty()) {
      std::array<pollfd, 2> polled = {
          pollfd{socket_.get(), static_cast<short>(POLLIN | (writer_.empty() ? 0 : POLLOUT)), 0},
          pollfd{wake_.get(), POLLIN, 0}};
      lock.unlock();
      const int count = ::poll(polled.data(), polled.size(), static_cast<int>(milliseconds(kBetweenLooks).count()));
      lock.lock();
      if (count == 0) {
        look();
      }
      if (polled[1].revents != 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t read_bytes = ::read(wake_.get(), &count, sizeof(count));
      }
      if (!broken_.empty()) {
        return;
      }
      if (!writer_.send_some(socket_.get())) {
        fail("the connection is broken");
        return;
      }
      if (polled[0].revents != 0) {
        read();
        arrived_.notify_all();
      }
    }
  }

  Descriptor socket_;
  const std::string address_;
  bool shared_ = false;
  std::mutex mutex_;
  std::condition_variable arrived_;
  FrameReader reader_;
  FrameWriter writer_;
  std::map<uint64_t, std::shared_ptr<Asked>> asked_;
  uint64_t next_id_ = 0;
  uint64_t coming_ = 0;
  int64_t coming_bytes_ = 0;
  int64_t sent_ = 0;
  int64_t received_ = 0;
  std::string broken_;
  std::thread thread_;
  Descriptor wake_;
};

class TcpCall : public Call {
 public:
  TcpCall(std::shared_ptr<Line> line, std::shared_ptr<Asked> asked)
      : line_(std::move(line)), asked_(std::move(asked)) {}
  std::string wait(Clock::time_point deadline) override { return line_->wait(*asked_, deadline); }
  bool wait_until(Clock::time_point time) override { return line_->wait_until(*asked_, time); }
  bool done() const override { return line_->done(*asked_); }

 private:
  std::shared_ptr<Line> line_;
  std::shared_ptr<Asked> asked_;
};

class TcpClient : public Client {
 public:
  explicit TcpClient(std::shared_ptr<Line> line) : line_(std::move(line)) {}
  ~TcpClient() override { line_->close(); }
  std::shared_ptr<Call> call(std::string header, std::span<const std::byte> body, std::span<std::byte> room) override {
    return std::make_shared<TcpCall>(line_, line_->call(header, body, room));
  }
  int64_t bytes_sent() const override { return line_->sent(); }
  int64_t bytes_received() const override { return line_->received(); }

 private:
  std::shared_ptr<Line> line_;
};

} // namespace

std::unique_ptr<Client> connect(const store::Endpoint& endpoint, const Access& access, Clock::time_point deadline) {
  const std::string address = address_of(endpoint);
  const store::Secret secret = access.secret.empty() ? store::Secret() : store::Secret(access.secret);
  while (true) {
    try {
      Descriptor socket = store::connect_and_prove(endpoint, secret, access.job, deadline);
      store::let_wait_to_read(socket.get());
      auto line = std::make_shared<Line>(std::move(socket), address);
      line->greet(deadline);
      return std::make_unique<TcpClient>(std::move(line));
    } catch (const store::ConnectError& problem) {
      if (problem.exit_code() == 2) {
        throw InputError("rpc", concat("the server at ", address, " refuses this process: ", problem.happened),
                         problem.next);
      }
      throw PeerError("rpc", concat("no server answers at ", address, ": ", problem.happened), "See its output.");
    } catch (const PeerError&) { // the server has just ended; its successor may listen soon
      if (Clock::now() >= deadline) {
        throw;
      }
      sleep_for(kBeforeAnotherTry);
    }
  }
}

} // namespace trireme::rpc::tcp
