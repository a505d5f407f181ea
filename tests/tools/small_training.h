// Trainings of a tiny model as `trireme train` does them, in this process.
#pragma once

#include <trireme/train/task.h>
#include <trireme/train/train_run.h>

#include <trireme/base/file.h>
#include <trireme/base/hash.h>
#include <trireme/comm/world.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::tools {

using train::Task;

namespace fs = std::filesystem;
using nlohmann::json;

// The test's process; its children are ranks.
inline const fs::path& folder() {
  static const fs::path made = [] {
    fs::path path = fs::path(testing::TempDir()) / concat("trireme_run_keys_", ::getpid());
    fs::create_directories(path);
    return path;
  }();
  return made;
}

inline std::string file(const std::string& name, const std::string& content) {
  write_file_atomically(folder() / name, content);
  return (folder() / name).string();
}

inline std::string tokens_file(const std::string& name, int stride) {
  std::string bytes;
  for (int i = 0; i < 600; ++i) {
    bytes += static_cast<char>(i * stride % 50);
    bytes += '\0';
  }
  return file(name, bytes);
}

// IDX: 24 images of 8 x 8, or their labels.
inline std::string images_file(const std::string& name, int stride, int width = 8) {
  std::string bytes("\0\0\x08\x03\0\0\0\x18\0\0\0\x08\0\0\0\x08", 16);
  bytes.back() = static_cast<char>(width);
  for (int i = 0; i < 24 * 8 * width; ++i) {
    bytes += static_cast<char>(i * stride % 251);
  }
  return file(name, bytes);
}

inline std::string labels_file(const std::string& name, int stride) {
  std::string bytes("\0\0\x08\x01\0\0\0\x18", 8);
  for (int i = 0; i < 24; ++i) {
    bytes += static_cast<char>(i * stride % 10);
  }
  return file(name, bytes);
}

inline std::string digest(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  return concat(values.scalar_type(), ' ', values.sizes(), ' ',
                fnv1a({static_cast<const char*>(values.data_ptr()), values.nbytes()}));
}

inline config::RunConfig read(const json& run) {
  return config::read_run(JsonNode::parse(run.dump(), "run.json"), folder());
}

inline const fs::path& out() {
  static const fs::path path = folder() / "out";
  return path;
}

// As `trireme train` does it, into an empty run folder or going on with what is there.
inline void run_training(comm::World& world, const json& run, bool resume = false,
                         std::optional<at::Device> device = std::nullopt) {
  if (world.rank() == 0) {
    if (!resume) {
      fs::remove_all(out());
    }
    file("run.json", run.dump());
  }
  world.group().barrier("run file").wait();
  train::TrainCommand command;
  command.run_file = folder() / "run.json";
  command.out = out();
  command.resume = resume;
  EXPECT_EQ(train::train(command, train::Registry(), world, device), 0);
  world.group().barrier("trained").wait();
}

// The model before training; data need not fit it.
inline json model(comm::World&, const json& run) {
  const config::RunConfig config = read(run);
  torch::manual_seed(1);
  const data::Datasets datasets = data::make_datasets(config.data);
  const Task task = train::Registry().make_task({config, datasets});
  if (task.pipeline) {
    task.pipeline->build();
  }
  const torch::nn::Module& module = task.pipeline ? *task.pipeline : *task.model;
  json seen;
  for (const auto& item : module.named_parameters()) {
    seen[item.key()] = digest(item.value());
  }
  return seen;
}

inline json common() {
  return {{"model",
           {{"type", "gpt"}, {"layers", 1}, {"hidden", 16}, {"heads", 2}, {"sequence_length", 8}, {"vocab_size", 260}}},
          {"data", {{"type", "tokens"}, {"train", tokens_file("tokens.bin", 3)}}},
          {"training", {{"steps", 2}}},
          {"engine", {{"train_batch_size", 12}, {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}}}};
}

/// Leaves an empty folder.
class SmallTrainingTest : public testing::Test {
 protected:
  ~SmallTrainingTest() override {
    fs::remove_all(folder());
    fs::create_directories(folder());
  }
  static void TearDownTestSuite() { fs::remove_all(folder()); }
};

} // namespace trireme::tools
