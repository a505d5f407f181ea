// Every key of offload and of its files that the table calls honoured does something: two values, and what an engine on
// the simulated device does or holds differs.
#include "offload_case.h"

#include <tests/support/aio_watch.h>
#include <tests/support/key_observers.h>

#include <trireme/base/file.h>
#include <trireme/base/json.h>
#include <trireme/config/deepspeed_json.h>
#include <trireme/monitor/chrome_trace.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::KeyObserver;
using testing::IsEmpty;

/// A GPT of six layers on the device, of a run file whose folders are within one that ends with it.
class MovedRun {
 public:
  MovedRun(comm::World& world, json run) : folder_(make_scratch_folder("trireme_offload_keys")) {
    static const bool started = (start_single_threaded(), true);
    (void)started;
    for (const char* const section : {"offload_optimizer", "offload_param"}) {
      json& zero = run["engine"]["zero_optimization"];
      if (zero.contains(section) && zero[section].contains("nvme_path")) {
        zero[section]["nvme_path"] = (folder_.path / zero[section]["nvme_path"].get<std::string>()).string();
      }
    }
    torch::manual_seed(1);
    models::GptOptions shape = small_gpt();
    shape.layers = 6;
    models::Gpt model(shape);
    InitializeOptions options;
    options.device = sim::device();
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
    options.config = config::read_deepspeed(JsonNode::parse(run.at("engine").dump(), "test.json"));
    options.training_data = std::make_shared<Counting>();
    engine_ = initialize(world, options).engine;
  }
  Engine& train(int steps) {
    for (int step = 0; step < steps; ++step) {
      engine_->train_batch();
    }
    return *engine_;
  }
  const fs::path& folder() const { return folder_.path; }

 private:
  ScratchFolder folder_;
  std::shared_ptr<Engine> engine_;
};

// Where things are between steps: whether in files, in which of two folders, and bytes of the device for each
// parameter.
json places(comm::World& world, const json& run) {
  const int64_t before = sim::memory().bytes;
  MovedRun moved(world, run);
  const Engine& engine = moved.train(1);
  json seen = {{"files", engine.offload_traffic().has_value()},
               {"on the device", (sim::memory().bytes - before) / engine.num_parameters()}};
  for (const char* const name : {"one", "other"}) {
    seen[name] = fs::exists(moved.folder() / name / "trireme.rank0");
  }
  return seen;
}

// Bytes read and written before the first step, and by three.
json traffic(comm::World& world, const json& run) {
  MovedRun moved(world, run);
  json seen;
  for (const int steps : {0, 3}) {
    const offload::Traffic bytes = moved.train(steps).offload_traffic().value();
    seen.push_back({bytes.read, bytes.written});
  }
  return seen;
}

// How often the host has waited for a write of three steps: in a run that does not wait for each some are still under
// way.
json waits_for_writes(comm::World& world, const json& run) {
  MovedRun moved(world, run);
  monitor::tracer().start(0);
  moved.train(3);
  monitor::tracer().stop();
  const fs::path file = moved.folder() / "trace.json";
  monitor::tracer().write(file);
  const std::string trace = read_file(file);
  int found = 0;
  for (size_t at = trace.find("wait for a write to disk"); at != std::string::npos;
       at = trace.find("wait for a write to disk", at + 1)) {
    ++found;
  }
  return found;
}

// Whether the host waits for copies because their memory is not pinned, in a step after the first.
json waits_for_copies(comm::World& world, const json& run) {
  MovedRun moved(world, run);
  moved.train(1);
  sim::reset_host_synchronisations();
  moved.train(1);
  const auto names = sim::host_synchronisation_names();
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.starts_with("copy from memory that is not pinned"); });
}

json losses(comm::World& world, const json& run) {
  MovedRun moved(world, run);
  json seen;
  for (int step = 0; step < 4; ++step) {
    seen.push_back(moved.train(1).loss());
  }
  return seen;
}

// What threads do where there is no io_uring: the bytes of a request, and how many threads there are for it.
json requests_of_threads(comm::World& world, const json& run) {
  ::setenv("TRIREME_AIO", "threads", 1);
  test::watch_aio();
  MovedRun moved(world, run);
  ::unsetenv("TRIREME_AIO");
  moved.train(1);
  int threads = 0;
  for (const fs::directory_entry& task : fs::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    threads += name == "trireme-aio" ? 1 : 0;
  }
  return {test::aio_seen().largest_write, threads};
}

json requests_of_a_ring(comm::World& world, const json& run) {
  test::watch_aio();
  MovedRun moved(world, run);
  moved.train(1);
  return {test::aio_seen().most_at_once, test::aio_seen().overlaps};
}

const json kCommon =
    json::parse(R"({"engine": {"train_batch_size": 12, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "zero_optimization": {"reduce_bucket_size": 1000, "stage3_param_persistence_threshold": 40}}})");

json zero(const char* text) {
  return {{"engine", {{"zero_optimization", json::parse(text)}}}};
}

std::vector<KeyObserver> offload_keys() {
  const std::string_view optimizer = "engine.zero_optimization.offload_optimizer";
  const std::string_view parameters = "engine.zero_optimization.offload_param";
  const json on_host = zero(R"({"offload_optimizer": {"device": "cpu"}})");
  const json in_files = zero(R"({"offload_optimizer": {"device": "nvme", "nvme_path": "one"}})");
  const json stage_three = zero(R"({"stage": 3, "offload_optimizer": {"device": "cpu"}})");
  const json parameters_in_files = zero(
      R"({"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme", "nvme_path": "one", "max_in_cpu": 0}})");
  return {
      {optimizer, "", "device", "none", "cpu", places},
      {optimizer, "", "nvme_path", "one", "other", places, in_files},
      {optimizer, "", "buffer_count", 3, 100, traffic, in_files},
      {optimizer, "", "pin_memory", true, false, waits_for_copies, on_host},
      {optimizer, "", "pipeline_read", false, true, traffic, in_files},
      {optimizer, "", "pipeline_write", false, true, waits_for_writes, in_files},
      {optimizer, "", "fast_init", false, true, traffic, in_files},
      {optimizer, "", "ratio", 1.0, 0.5, places, on_host},
      {optimizer, "", "delayed_update", false, true, losses, on_host},
      {parameters, "", "device", "none", "cpu", places, stage_three},
      {parameters, "", "nvme_path", "one", "other", places, parameters_in_files},
      {parameters, "", "buffer_count", 3, 100, traffic, parameters_in_files},
      {parameters, "", "max_in_cpu", 0, 5000, traffic, parameters_in_files},
      {parameters, "", "pin_memory", true, false, waits_for_copies, parameters_in_files},
  };
}

// One bucket of many blocks.
json blocks() {
  json base = zero(R"({"reduce_bucket_size": 1000000, "offload_optimizer": {"device": "nvme", "nvme_path": "one"}})");
  base["engine"]["aio"] = {{"block_size", 4096}};
  return base;
}

std::vector<KeyObserver> thread_keys() {
  return {
      {"engine.aio", "", "block_size", 4096, 8192, requests_of_threads, blocks()},
      {"engine.aio", "", "intra_op_parallelism", 1, 3, requests_of_threads, blocks()},
  };
}

std::vector<KeyObserver> ring_keys() {
  return {
      {"engine.aio", "", "queue_depth", 8, 2, requests_of_a_ring, blocks()},
      {"engine.aio", "", "single_submit", false, true, requests_of_a_ring, blocks()},
      {"engine.aio", "", "overlap_events", true, false, requests_of_a_ring, blocks()},
  };
}

// A key that is honoured from now on gets an observer above.
TEST(OffloadKeysTest, EveryHonouredKeyIsObserved) {
  std::vector<KeyObserver> all;
  for (const auto& part : {offload_keys(), thread_keys(), ring_keys()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  const auto is_offload = [](std::string_view section) {
    return section.starts_with("engine.zero_optimization.offload_") || section == "engine.aio";
  };
  EXPECT_THAT(test::without_observer(all, is_offload), IsEmpty());
}

TEST(OffloadKeysTest, KeysOfPlacesHaveAnEffect) {
  EXPECT_THAT(test::without_effect(offload_keys(), 1, kCommon), IsEmpty());
}

TEST(OffloadKeysTest, KeysOfTransfersByThreadsHaveAnEffect) {
  EXPECT_THAT(test::without_effect(thread_keys(), 1, kCommon), IsEmpty());
}

TEST(OffloadKeysTest, KeysOfTransfersByIoUringHaveAnEffect) {
  if (!test::has_io_uring()) {
    GTEST_SKIP() << "no io_uring, so nothing that these keys could change";
  }
  EXPECT_THAT(test::without_effect(ring_keys(), 1, kCommon), IsEmpty());
}

// What has no effect must not be taken for one.
TEST(OffloadKeysTest, AKeyWithoutEffectIsFound) {
  const json in_files = zero(
      R"({"offload_param": {"device": "nvme", "nvme_path": "one", "max_in_cpu": 0}, "stage": 3, "offload_optimizer": {"device": "cpu"}})");
  const std::vector<KeyObserver> idle = {
      {"engine.zero_optimization.offload_param", "", "buffer_size", 1000, 2000, traffic, in_files}};
  EXPECT_THAT(test::without_effect(idle, 1, kCommon),
              testing::ElementsAre(testing::HasSubstr("buffer_size has no effect")));
}

} // namespace
} // namespace trireme::engine
