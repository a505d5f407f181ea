#include <trireme/train/run_start.h>

#include <trireme/base/env.h>
#include <trireme/checkpoint/checkpoint.h>

#include <nlohmann/json.hpp>

namespace trireme::train {

namespace fs = std::filesystem;

std::optional<fs::path> saved_by(const std::string& job, const fs::path& folder, const comm::Group& group) {
  if (job.empty() || !checkpoint::find_newest(folder, group)) {
    return std::nullopt;
  }
  const auto newest = checkpoint::Checkpoint::open(folder, "", group);
  const nlohmann::json client = newest.state().value("client", nlohmann::json::object());
  return client.value(kJob, "") == job ? std::optional(newest.folder()) : std::nullopt;
}

std::optional<RunStart> find_start(const TrainCommand& command, const std::string& job, const comm::Group& group) {
  const bool restarted = env::flag("TRIREME_RESTART");
  if (!command.resume && !restarted) {
    return std::nullopt;
  }
  const fs::path own_folder = command.out / "checkpoints";
  const bool from_path = command.resume && command.resume_from != "auto";
  const auto own = from_path && restarted ? saved_by(job, own_folder, group) : std::nullopt;
  if (from_path && !own) {
    return RunStart{command.resume_from, true};
  }
  return RunStart{own.value_or(own_folder), false};
}

} // namespace trireme::train
