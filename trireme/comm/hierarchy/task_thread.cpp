#include <trireme/comm/hierarchy/task_thread.h>

#include <omp.h>

#include <exception>
#include <utility>

namespace trireme::comm {

struct TaskThread::Shared {
  struct Task {
    std::function<void()> run;
    bool done = false;
    std::exception_ptr error;
  };

  std::function<void()> interrupt;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Task>> queue;
  std::exception_ptr broken;
  bool stopping = false;

  void work() {
    omp_set_num_threads(1); // otherwise a copy on this thread would start a second team of threads
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || !queue.empty(); });
      if (queue.empty()) {
        return;
      }
      const auto task = queue.front();
      if (stopping && !broken) {
        broken = std::make_exception_ptr(Trouble(Trouble::Kind::interrupted, "the group is closed"));
      }
      if (!broken) {
        lock.unlock();
        std::exception_ptr error;
        try {
          task->run();
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        broken = error;
      }
      task->run = nullptr; // releases the tensors
      task->error = broken;
      task->done = true;
      queue.pop_front();
      changed.notify_all();
    }
  }
};

class TaskThread::Ticket : public Pending {
 public:
  Ticket(std::shared_ptr<Shared> shared, std::shared_ptr<Shared::Task> task)
      : shared_(std::move(shared)), task_(std::move(task)), exceptions_at_start_(std::uncaught_exceptions()) {}
  ~Ticket() override {
    if (std::uncaught_exceptions() > exceptions_at_start_ && !Ticket::done()) {
      shared_->interrupt();
    }
    finish();
  }

  void wait() override {
    finish();
    if (task_->error) {
      std::rethrow_exception(task_->error);
    }
  }
  bool done() override {
    const std::lock_guard lock(shared_->mutex);
    return task_->done;
  }

 private:
  void finish() {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [&] { return task_->done; });
  }

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Shared::Task> task_;
  const int exceptions_at_start_;
};

TaskThread::TaskThread(std::function<void()> interrupt) : shared_(std::make_shared<Shared>()) {
  shared_->interrupt = std::move(interrupt);
  thread_ = std::thread([shared = shared_] { shared->work(); });
}

TaskThread::~TaskThread() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->changed.notify_all();
  thread_.join();
}

std::shared_ptr<Pending> TaskThread::run(std::function<void()> task) {
  auto entry = std::make_shared<Shared::Task>();
  entry->run = std::move(task);
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->queue.push_back(entry);
  }
  shared_->changed.notify_all();
  return std::make_shared<Ticket>(shared_, std::move(entry));
}

} // namespace trireme::comm
