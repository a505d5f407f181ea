// A short training of which everything that can be is in files, and what may be left of one.
#pragma once

#include "shell.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <map>
#include <set>
#include <sstream>
#include <thread>

namespace trireme::tools {

/// Names of everything below a folder, but for TensorBoard's, which have the time in them, and the number of the claim,
/// which counts starts.
inline std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  std::error_code gone;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, gone)) {
    std::string name = std::filesystem::relative(entry.path(), folder).string();
    if (name.starts_with("logs/attempt.")) {
      name = "logs/attempt";
    }
    if (!name.starts_with("tensorboard/")) {
      names.insert(name);
    }
  }
  return names;
}

/// Entries of /dev/shm that were not there before. Other jobs come and go: what is ours stays.
inline std::string left_in_shared_memory(const std::set<std::string>& before) {
  std::string left = "not looked";
  for (int look = 0; look < 100 && !left.empty(); ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(look == 0 ? 0 : 100));
    left.clear();
    for (const std::string& name : files_in("/dev/shm")) {
      left += before.count(name) == 0 ? name + " " : "";
    }
  }
  return left;
}

/// The run file: states, gradients, parameters of stage 3 and activations are in `nvme` and `moved`, folders in `disk`.
inline std::string run_in_files(const std::filesystem::path& tokens, const std::filesystem::path& disk) {
  const auto nvme = [&](int buffers) {
    return nlohmann::json{{"device", "nvme"}, {"nvme_path", disk / "nvme"}, {"buffer_count", buffers}};
  };
  nlohmann::json states = nvme(3);
  states.update({{"pipeline_read", true}, {"pipeline_write", true}});
  nlohmann::json parameters = nvme(3);
  parameters["max_in_cpu"] = 0;
  const nlohmann::json engine = {{"train_batch_size", 4},
                                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
                                 {"pipeline", {{"activation_checkpoint_interval", 1}}}, // a list of layers
                                 {"zero_optimization",
                                  {{"stage", 3},
                                   {"reduce_bucket_size", 20'000},
                                   {"stage3_param_persistence_threshold", 0},
                                   {"offload_optimizer", states},
                                   {"offload_param", parameters}}},
                                 {"activation_checkpointing", {{"policy", "nvme"}, {"nvme_path", disk / "moved"}}},
                                 {"aio", {{"block_size", 4 << 20}, {"queue_depth", 1}}}};
  return nlohmann::json{
      {"model",
       {{"type", "gpt"}, {"layers", 1}, {"hidden", 64}, {"heads", 2}, {"sequence_length", 16}, {"vocab_size", 50}}},
      {"data", {{"type", "tokens"}, {"train", {tokens}}, {"shuffle", true}}},
      {"training", {{"steps", 4}, {"checkpoint_every", 2}}},
      {"engine", engine}}
      .dump(1);
}

/// Bytes of each tensor of a rank's part of a checkpoint, without paddings, in which nothing is.
inline std::map<std::string, std::string> saved_tensors(const std::filesystem::path& checkpoint, int rank) {
  const std::string file = read_file(checkpoint / concat("rank0000", rank, ".safetensors"));
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  std::map<std::string, std::string> tensors;
  const auto described = nlohmann::json::parse(file.substr(8, header));
  for (const auto& [name, about] : described.items()) {
    if (name != "__metadata__" && !name.starts_with("padding@")) {
      const uint64_t begin = about.at("data_offsets").at(0);
      const uint64_t end = about.at("data_offsets").at(1);
      tensors[name] = file.substr(8 + header + begin, end - begin);
    }
  }
  EXPECT_GT(tensors.size(), 10u);
  return tensors;
}

/// "3: 3.912 0.71", step, loss and norm of the gradients, of each line of a run's metrics.
inline std::vector<std::string> trained_steps(const std::filesystem::path& out) {
  std::vector<std::string> steps;
  std::istringstream lines(std::filesystem::exists(out / "metrics.jsonl") ? read_file(out / "metrics.jsonl") : "");
  for (std::string line; std::getline(lines, line);) {
    const auto step = nlohmann::json::parse(line);
    steps.push_back(concat(step.at("step").dump(), ": ", step.at("loss").dump(), ' ', step.at("grad_norm").dump()));
  }
  return steps;
}

} // namespace trireme::tools
