// Models that the memory at hand does not hold train from files, as `trireme train` does it: two ranks and their
// launcher in one control group, stopped and resumed in the middle.
#include "run_folder_on_disk.h"
#include "run_in_files.h"

#include <tests/support/limited_group.h>
#include <tests/support/sanitized.h>

#include <trireme/base/units.h>
#include <trireme/memory/aio/probe.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdlib>
#include <thread>

namespace trireme::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int kSteps = 2;
constexpr int kStopped = 1;    // after so many
constexpr int kDeadline = 600; // seconds of a command
constexpr int kManyLayers = 800;

bool is_long() {
  return std::getenv("TRIREME_LONG_TESTS") != nullptr;
}

std::string size(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

class OffloadMemoryTrainTest : public RunFolderOnDisk {
 protected:
  /// In bf16: of each parameter 2 bytes, 2 of its gradient, and 12 of its master and states. Layers of 1.6 MB, so that
  /// buffers are small; recomputed, so that activations are.
  void write_large(const std::string& name, const json& files) const {
    json zero = {{"stage", 3}, {"stage3_param_persistence_threshold", 1024}};
    zero.update(files);
    const json run = {{"model",
                       {{"type", "gpt"},
                        {"layers", layers_},
                        {"hidden", 256},
                        {"heads", 4},
                        {"sequence_length", 16},
                        {"vocab_size", 50}}},
                      {"data", {{"type", "tokens"}, {"train", {path("tokens.bin")}}, {"shuffle", true}}},
                      {"training", {{"steps", kSteps}}},
                      {"engine",
                       {{"train_batch_size", 2},
                        {"bf16", {{"enabled", true}}},
                        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.001}}}}},
                        {"pipeline", {{"activation_checkpoint_interval", 1}}},
                        {"zero_optimization", zero}}}};
    write_file_atomically(folder / name, run.dump());
  }
  json in_files(int64_t parameters_in_memory) const {
    return {
        {"offload_optimizer",
         {{"device", "nvme"},
          {"nvme_path", path("nvme")},
          {"buffer_count", 3},
          {"pipeline_read", true},
          {"pipeline_write", true},
          {"fast_init", true}}},
        {"offload_param",
         {{"device", "nvme"}, {"nvme_path", path("nvme")}, {"buffer_count", 3}, {"max_in_cpu", parameters_in_memory}}}};
  }
  json estimate(const std::string& run) const {
    const Finished finished = sh(concat(kTrireme, " estimate ", path(run), " -n 2 --json"));
    EXPECT_EQ(finished.status, 0) << finished.output;
    return finished.status == 0 ? json::parse(finished.output) : json();
  }
  static int64_t bytes_in_files(const json& estimate, const std::string& what) {
    int64_t bytes = 0;
    for (const json& item : estimate.at("by_stage").at(0).at("in_files")) {
      bytes += item.at("what") == what ? 2 * item.at("bytes").get<int64_t>() : 0;
    }
    return bytes;
  }
  std::string train_command(const std::string& run, const std::string& out, const std::string& rest = "") const {
    return concat("OMP_NUM_THREADS=1 ", kTrireme, " train ", path(run), " -n 2 --out ", path(out), ' ', rest);
  }
  void SetUp() override {
    if (test::kSanitized) {
      GTEST_SKIP() << "a sanitizer needs memory of its own";
    }
    if (aio::is_memory(aio::filesystem_of(folder))) {
      GTEST_SKIP() << "files of " << folder << " are memory";
    }
    if (!test::LimitedGroup(int64_t{1} << 30).exists() || test::machine_swaps()) {
      GTEST_SKIP() << "this user may not make control groups, or the machine swaps";
    }
  }
  /// In memory, without a limit and a stop.
  void train_without_files(int layers) {
    layers_ = layers;
    write_large("memory.json", json::object());
    const Finished trained = sh(train_command("memory.json", "memory"), kDeadline);
    ASSERT_EQ(trained.status, 0) << trained.output;
    expected_ = trained_steps(folder / "memory");
    ASSERT_EQ(expected_.size(), size_t{kSteps});
    std::filesystem::remove_all(folder / "memory"); // gigabytes
  }

  /// Trains with so much memory for everything, in which the same model without files is refused.
  void expect_to_train(const std::string& name, int64_t limit) {
    const test::LimitedGroup group(limit);
    const Finished refused = sh(concat(group.enter(), train_command("memory.json", "refused")), kDeadline);
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_THAT(refused.output, testing::AllOf(HasSubstr("this run cannot fit"), HasSubstr("the control group ")));

    std::atomic<bool> over{false};
    int64_t most = 0;
    std::thread watching([&] {
      while (!over) {
        most = std::max(most, group.held_bytes());
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    const Finished first =
        sh(concat(group.enter(), train_command(name, "out", concat("--set training.steps=", kStopped))), kDeadline);
    const Finished second = sh(concat(group.enter(), train_command(name, "out", "--resume")), kDeadline);
    over = true;
    watching.join();
    EXPECT_EQ(first.status, 0) << first.output;
    EXPECT_EQ(second.status, 0) << second.output;
    EXPECT_EQ(trained_steps(folder / "out"), expected_) << "losses and norms";
    const int64_t estimated = estimate(name).at("peak_bytes_of_all");
    std::printf("%s: limit %s, held at most %s, estimated with libtorch's code %s\n", name.c_str(), size(limit).c_str(),
                size(most).c_str(), size(estimated).c_str());
    EXPECT_LE(static_cast<double>(most), 1.1 * static_cast<double>(estimated));
    EXPECT_LE(static_cast<double>(estimated), 1.35 * static_cast<double>(most))
        << "libtorch's code is counted, and is not what the group holds: seen 1.2";
    std::filesystem::remove_all(folder / "out");
  }

 private:
  int layers_ = 0;
  std::vector<std::string> expected_;
};

TEST_F(OffloadMemoryTrainTest, ParametersAloneAreMoreThanTheMemory) {
  train_without_files(is_long() ? kManyLayers : 260);
  write_large("all.json", in_files(0));
  const json estimated = estimate("all.json");
  const int64_t limit = bytes_in_files(estimated, "parameters") / 10 * 9;
  EXPECT_GT(bytes_in_files(estimated, "optimizer_states") + bytes_in_files(estimated, "masters"), 4 * limit);
  expect_to_train("all.json", limit);
}

// Parameters stay in memory, 2 bytes of each. Gradients are in files all the same, where masters and parameters have
// theirs: with 2 more in memory no limit is a fourth of 12.
TEST_F(OffloadMemoryTrainTest, StatesAreFourTimesTheMemory) {
  if (!is_long()) {
    GTEST_SKIP() << "libtorch and buffers leave a model of less no room; takes minutes; set TRIREME_LONG_TESTS=1";
  }
  train_without_files(kManyLayers);
  write_large("states.json", in_files(1'000'000'000));
  const json estimated = estimate("states.json");
  expect_to_train("states.json",
                  (bytes_in_files(estimated, "optimizer_states") + bytes_in_files(estimated, "masters")) / 4);
}

} // namespace
} // namespace trireme::tools
