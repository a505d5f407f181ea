#include <trireme/train/read_run.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>

#include <algorithm>
#include <string>

namespace trireme::train {

std::vector<AbsentWeights> absent_weights(const config::RunConfig& run) {
  std::vector<AbsentWeights> absent;
  const auto add = [&](const std::filesystem::path& path, const char* key) {
    if (!path.empty() && std::ranges::find(run.absent_files, path) != run.absent_files.end()) {
      absent.push_back({path, key});
    }
  };
  if (run.model.kind != config::ModelConfig::Kind::of_program) {
    add(run.model.init_from(), "init_from");
  }
  if (run.model.reads_tokens()) {
    add(run.model.lora().init_from, "adapter");
  }
  return absent;
}

config::RunConfig read_run_to_train(const TrainCommand& command, const config::RunTypes& types, bool has_weights) {
  const auto read = [&](const std::vector<std::string>& overrides, config::Files files) {
    return config::read_run_file(command.run_file, overrides, files, types);
  };
  if (!has_weights) {
    return read(command.overrides, config::Files::must_exist);
  }
  config::RunConfig run = read(command.overrides, config::Files::may_be_absent);
  const std::vector<AbsentWeights> absent = absent_weights(run);
  if (absent.size() < run.absent_files.size()) { // another file is, which the error names
    std::vector<std::string> overrides = command.overrides;
    for (const AbsentWeights& weights : absent) {
      overrides.push_back(concat("model.", weights.key, "=null"));
    }
    read(overrides, config::Files::must_exist);
  }
  return run;
}

bool continues(const TrainCommand& command) {
  return command.resume || env::flag("TRIREME_RESTART");
}

} // namespace trireme::train
