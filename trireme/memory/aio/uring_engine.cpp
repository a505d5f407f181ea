#include <trireme/memory/aio/engine.h>

#ifdef TRIREME_HAS_LIBURING

#include <trireme/base/descriptor.h>
#include <trireme/base/log.h>
#include <trireme/memory/aio/quiet_thread.h>

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme::aio {
namespace {

constexpr uint64_t kWake = ~uint64_t{0};             // user_data of the event that add() sends
constexpr int64_t kLargestBuffer = int64_t{1} << 30; // the kernel's limit
constexpr unsigned kMostBuffers = 256;

/// A ring, and pieces of memory registered with it. The pieces are thread-safe.
class Ring {
 public:
  ~Ring() {
    if (ready_) {
      ::io_uring_queue_exit(&ring_);
    }
  }
  /// Returns "", or why there is none.
  std::string open(unsigned entries) {
    if (const int code = ::io_uring_queue_init(entries, &ring_, 0); code != 0) {
      const char* hint = code == -EPERM    ? " (kernel.io_uring_disabled, or the filter of a container)"
                         : code == -ENOMEM ? " (RLIMIT_MEMLOCK)"
                                           : "";
      return concat("io_uring_setup: ", std::strerror(-code), hint);
    }
    ready_ = true;
    const std::unique_ptr<io_uring_probe, void (*)(io_uring_probe*)> known(::io_uring_get_probe_ring(&ring_),
                                                                           ::io_uring_free_probe);
    if (known == nullptr || !::io_uring_opcode_supported(known.get(), IORING_OP_READ) ||
        !::io_uring_opcode_supported(known.get(), IORING_OP_WRITE)) {
      return "this kernel is older than 5.6";
    }
    ::io_uring_ring_dontfork(&ring_);
    buffers_.resize(::io_uring_register_buffers_sparse(&ring_, kMostBuffers) == 0 ? kMostBuffers
                                                                                  : 0); // from kernel 5.19 on
    return "";
  }
  io_uring* get() { return &ring_; }

  bool add_buffer(std::byte* memory, int64_t bytes) {
    for (int64_t done = 0; done < bytes; done += kLargestBuffer) {
      if (!add_piece(memory, memory + done, std::min(kLargestBuffer, bytes - done))) {
        remove_buffer(memory);
        return false;
      }
    }
    return bytes > 0;
  }
  void remove_buffer(const std::byte* memory) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (memory != nullptr && buffers_[i].whole == memory) {
        iovec nothing{nullptr, 0};
        __u64 no_tag = 0;
        ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(i), &nothing, &no_tag, 1);
        buffers_[i] = {};
      }
    }
  }
  /// The number of the piece that contains all of it, or -1.
  int buffer_of(const std::byte* memory, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const RegisteredBuffer& piece = buffers_[i];
      if (piece.whole != nullptr && piece.begin <= memory && memory + bytes <= piece.begin + piece.bytes) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

 private:
  struct RegisteredBuffer {
    const std::byte* whole = nullptr; // the memory that was added; nullptr: free
    const std::byte* begin = nullptr;
    int64_t bytes = 0;
  };

  bool add_piece(const std::byte* whole, std::byte* begin, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto free = std::find_if(buffers_.begin(), buffers_.end(),
                                   [](const RegisteredBuffer& piece) { return piece.whole == nullptr; });
    if (free == buffers_.end()) {
      return false;
    }
    iovec piece{begin, static_cast<size_t>(bytes)};
    __u64 no_tag = 0;
    if (::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(free - buffers_.begin()), &piece, &no_tag,
                                               1) != 1) {
      return false;
    }
    *free = {whole, begin, bytes};
    return true;
  }

  io_uring ring_ = {};
  bool ready_ = false;
  std::mutex mutex_;
  std::vector<RegisteredBuffer> buffers_;
};

class UringEngine : public Engine {
 public:
  UringEngine(Queue& queue, const Options& options)
      : queue_(queue), options_(options), slots_(static_cast<size_t>(options.queue_depth)) {
    for (size_t i = slots_.size(); i > 0; --i) {
      free_.push_back(i - 1);
    }
  }
  std::string open() {
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) {
      return concat("eventfd: ", std::strerror(errno));
    }
    return ring_.open(static_cast<unsigned>(options_.queue_depth) + 2);
  }
  void start() {
    queue_.on_work([this] { wake(); });
    thread_ = quiet_thread([this] { run(); });
  }
  ~UringEngine() override {
    if (thread_.joinable()) {
      queue_.close();
      wake();
      thread_.join();
    }
  }
  const char* name() const override { return "io_uring"; }
  bool add_buffer(std::byte* memory, int64_t bytes) override { return ring_.add_buffer(memory, bytes); }
  void remove_buffer(std::byte* memory) override { ring_.remove_buffer(memory); }

 private:
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto always = ::write(wake_.get(), &one, sizeof(one)); // fails only if it is awake anyway
  }
  void drain_wake() {
    uint64_t count = 0;
    [[maybe_unused]] const auto any = ::read(wake_.get(), &count, sizeof(count));
  }

  void run() {
    watch_wake();
    int refusals = 0;
    while (true) {
      if (options_.overlap_events || in_use() == 0) {
        fill();
      }
      if (in_use() == 0 && queue_.closed()) {
        return;
      }
      const int code = submit(1);
      const bool reaped = reap();
      refusals = code < 0 && !reaped ? refusals + 1 : 0;
      if (code < 0 && (!is_passing(code) || refusals > 1000)) {
        go_on_without(code);
        return;
      }
      if (refusals > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
  static bool is_passing(int code) { return code == -EAGAIN || code == -EBUSY || code == -EINTR; }
  size_t in_use() const { return slots_.size() - free_.size(); }

  void watch_wake() {
    io_uring_sqe* entry = ::io_uring_get_sqe(ring_.get()); // there is room for all slots and this
    ::io_uring_prep_poll_add(entry, wake_.get(), POLLIN);
    ::io_uring_sqe_set_data64(entry, kWake);
    prepared_.push_back(kWake);
  }

  void fill() {
    while (!free_.empty()) {
      const auto request = queue_.take(false);
      if (!request) {
        return;
      }
      pause_if_refused(*request);
      const size_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = *request;
      prepare(slot);
      if (options_.single_submit) {
        submit(0); // entries that it refuses are submitted again by the next
      }
    }
  }

  void prepare(size_t slot) {
    const Request& request = slots_[slot];
    io_uring_sqe* entry = ::io_uring_get_sqe(ring_.get());
    const auto bytes = static_cast<unsigned>(request.bytes);
    const auto offset = static_cast<uint64_t>(request.offset);
    const int buffer = ring_.buffer_of(request.memory, request.bytes);
    if (buffer >= 0 && request.write) {
      ::io_uring_prep_write_fixed(entry, request.descriptor, request.memory, bytes, offset, buffer);
    } else if (buffer >= 0) {
      ::io_uring_prep_read_fixed(entry, request.descriptor, request.memory, bytes, offset, buffer);
    } else if (request.write) {
      ::io_uring_prep_write(entry, request.descriptor, request.memory, bytes, offset);
    } else {
      ::io_uring_prep_read(entry, request.descriptor, request.memory, bytes, offset);
    }
    ::io_uring_sqe_set_data64(entry, slot);
    prepared_.push_back(slot);
  }

  // Submits what is prepared and waits until `finished` requests are done. A negative errno: nothing was submitted.
  int submit(unsigned finished) {
    const int count = ::io_uring_submit_and_wait(ring_.get(), finished);
    if (count > 0) {
      prepared_.erase(prepared_.begin(), prepared_.begin() + std::min<std::ptrdiff_t>(count, std::ssize(prepared_)));
    }
    return count;
  }

  // Whether any request, or the wake-up, is done.
  bool reap() {
    io_uring_cqe* entries[64];
    bool any = false;
    while (const unsigned count = ::io_uring_peek_batch_cqe(ring_.get(), entries, 64)) {
      any = true;
      bool woken = false;
      for (unsigned i = 0; i < count; ++i) {
        const uint64_t slot = entries[i]->user_data;
        const int64_t result = entries[i]->res;
        if (slot == kWake) {
          woken = true;
          continue;
        }
        finish(slot, result);
      }
      ::io_uring_cq_advance(ring_.get(), count);
      if (woken) {
        drain_wake();
        watch_wake();
      }
    }
    return any;
  }
  void finish(size_t slot, int64_t result) {
    const Request request = slots_[slot];
    free_.push_back(slot);
    queue_.give_back(request, result);
  }

  // Completions of submitted requests are read from memory shared with the kernel, without system calls.
  void go_on_without(int code) {
    log::warning("aio: io_uring_enter: ", std::strerror(-code), "; continuing with one thread");
    for (const uint64_t slot : std::exchange(prepared_, {})) {
      if (slot != kWake) {
        finish(slot, transfer_now(slots_[slot]));
      }
    }
    while (in_use() > 0 || !queue_.closed()) {
      reap_shared();
      while (const auto request = queue_.take(false)) {
        pause_if_refused(*request);
        queue_.give_back(*request, transfer_now(*request));
        reap_shared();
      }
      pollfd event{wake_.get(), POLLIN, 0};
      ::poll(&event, 1, in_use() > 0 ? 1 : 1000);
      drain_wake();
    }
  }
  void reap_shared() {
    unsigned head = 0;
    unsigned count = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(ring_.get(), head, entry) {
      ++count;
      if (entry->user_data != kWake) {
        finish(entry->user_data, entry->res);
      }
    }
    ::io_uring_cq_advance(ring_.get(), count);
  }

  Queue& queue_;
  const Options options_;
  Descriptor wake_;
  Ring ring_;
  /// Requests that are prepared or in the kernel, and the indices of free slots.
  std::vector<Request> slots_;
  std::vector<size_t> free_;
  /// Prepared entries that are not submitted yet, in order.
  std::deque<uint64_t> prepared_;
  std::thread thread_;
};

} // namespace

std::unique_ptr<Engine> make_uring_engine(Queue& queue, const Options& options, std::string& why_not) {
  auto engine = std::make_unique<UringEngine>(queue, options);
  why_not = engine->open();
  if (!why_not.empty()) {
    return nullptr;
  }
  engine->start();
  return engine;
}

} // namespace trireme::aio

#else

namespace trireme::aio {

std::unique_ptr<Engine> make_uring_engine(Queue&, const Options&, std::string& why_not) {
  why_not = "built without liburing";
  return nullptr;
}

} // namespace trireme::aio

#endif
