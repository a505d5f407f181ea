// Graphs of the simulated device. As in CUDA nothing of a recording has run when it ends: what it wrote is put back.
#include "capture.h"
#include "guard.h"
#include "sim_device.h"
#include "timeline.h"

#include <trireme/device/graph.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <optional>
#include <set>
#include <thread>

namespace trireme::sim {
namespace {

struct Capture {
  int64_t number;
  std::thread::id thread;
  std::set<int> streams;
  PrivatePool* pool;
  std::vector<std::shared_ptr<RecordedLaunch>> launches;
  std::vector<std::pair<size_t, std::vector<char>>> memory;
  at::Tensor random_state;
  at::Tensor random_state_of_cpu; // kernels that are several of the CPU's draw from it
  std::string invalid;            // why
};

std::optional<Capture> the_capture;
int64_t captures = 0;
bool replaying = false;

[[noreturn]] void fail(const std::string& what) {
  if (the_capture && the_capture->invalid.empty()) {
    the_capture->invalid = what;
  }
  TORCH_CHECK(false, "sim_device: ", what, " is not permitted while a stream is captured");
}

class SimGraph final : public device::Graph {
 public:
  SimGraph(int index, PrivatePool* pool) : index_(index), pool_(pool) {}

  void begin_capture() override {
    const std::lock_guard lock(timeline().mutex);
    TORCH_CHECK(!the_capture, "sim_device: a capture is under way");
    TORCH_CHECK(current_stream(index_) != 0, "sim_device: the default stream cannot be captured");
    the_capture = Capture{.number = ++captures,
                          .thread = std::this_thread::get_id(),
                          .streams = {clock_of(index_, current_stream(index_))},
                          .pool = pool_,
                          .launches = {},
                          .memory = memory_snapshot(index_),
                          .random_state = cpu_generator(index_).get_state().clone(),
                          .random_state_of_cpu = at::detail::getDefaultCPUGenerator().get_state().clone(),
                          .invalid = ""};
  }

  void end_capture() override {
    const std::lock_guard lock(timeline().mutex);
    TORCH_CHECK(the_capture, "sim_device: no capture is under way");
    const Capture done = *std::exchange(the_capture, std::nullopt);
    restore_memory(index_, done.memory);
    cpu_generator(index_).set_state(done.random_state);
    at::Generator(at::detail::getDefaultCPUGenerator()).set_state(done.random_state_of_cpu);
    TORCH_CHECK(done.invalid.empty(), "sim_device: the capture is invalid: ", done.invalid);
    for (const auto& launch : done.launches) {
      TORCH_CHECK(launch->work, "sim_device: ", launch->name, " was captured, but cannot be replayed");
    }
    launches_ = done.launches;
  }

  void replay() override {
    const std::lock_guard lock(timeline().mutex);
    TORCH_CHECK(!launches_.empty(), "sim_device: replay of an empty graph");
    timeline().launch("graph", clock_of(index_, current_stream(index_)));
    replaying = true;
    try {
      for (const auto& launch : launches_) {
        launch->work();
      }
    } catch (...) {
      replaying = false;
      throw;
    }
    replaying = false;
  }

 private:
  int index_;
  PrivatePool* pool_;
  std::vector<std::shared_ptr<RecordedLaunch>> launches_;
};

class SimGraphPool final : public device::GraphPool {
 public:
  explicit SimGraphPool(int index) : index_(index) {}
  std::unique_ptr<device::Graph> graph() override { return std::make_unique<SimGraph>(index_, pool_); }

 private:
  int index_;
  PrivatePool* pool_ = make_private_pool();
};

} // namespace

bool is_captured(int stream) {
  return the_capture && the_capture->streams.contains(stream);
}
bool is_replaying() {
  return replaying;
}
std::shared_ptr<RecordedLaunch> record_launch(const std::string& name) {
  the_capture->launches.push_back(std::make_shared<RecordedLaunch>(RecordedLaunch{name, nullptr}));
  return the_capture->launches.back();
}
void refuse_in_capture(const std::string& what) {
  if (the_capture && the_capture->thread == std::this_thread::get_id()) {
    fail(what);
  }
}
void refuse_capture_of(const std::string& what) {
  fail(what);
}
int64_t capture_of(int stream) {
  return is_captured(stream) ? the_capture->number : 0;
}
void wait_in_capture(int stream, int64_t capture_of_event) {
  if (is_captured(stream) && capture_of_event != the_capture->number) {
    fail("a wait for an event of outside");
  }
  if (the_capture && capture_of_event == the_capture->number) {
    if (stream % kStreamsEach == 0) {
      fail("work of the default stream behind captured work");
    }
    the_capture->streams.insert(stream);
  }
}
PrivatePool* pool_for(int stream) {
  return is_captured(stream) ? the_capture->pool : nullptr;
}

void use_graphs() {
  device::register_graphs(c10::kPrivateUse1, [](at::Device device) -> std::unique_ptr<device::GraphPool> {
    return std::make_unique<SimGraphPool>(device.has_index() ? device.index() : 0);
  });
}

} // namespace trireme::sim
