#include <trireme/memory/aio/engine.h>
#include <trireme/memory/aio/quiet_thread.h>

#include <thread>
#include <vector>

namespace trireme::aio {
namespace {

class ThreadEngine : public Engine {
 public:
  ThreadEngine(Queue& queue, int64_t threads) : queue_(queue) {
    try {
      for (int64_t i = 0; i < threads; ++i) {
        threads_.push_back(quiet_thread([this] { run(); }));
      }
    } catch (...) { // the system has no more threads
      join();
      throw;
    }
  }
  ~ThreadEngine() override { join(); }
  const char* name() const override { return "threads"; }

 private:
  void run() {
    while (const auto request = queue_.take(true)) {
      pause_if_refused(*request);
      queue_.give_back(*request, transfer_now(*request));
    }
  }
  void join() {
    queue_.close();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  Queue& queue_;
  std::vector<std::thread> threads_;
};

} // namespace

std::unique_ptr<Engine> make_thread_engine(Queue& queue, int64_t threads) {
  return std::make_unique<ThreadEngine>(queue, threads);
}

} // namespace trireme::aio
