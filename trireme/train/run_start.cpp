#include <trireme/train/run_start.h>

#include <trireme/train/read_run.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/config/adapter_config.h>
#include <trireme/engine/same_options.h>
#include <trireme/models/adapter_files.h>

#include <nlohmann/json.hpp>

#include <string_view>
#include <vector>

namespace trireme::train {

namespace fs = std::filesystem;

namespace {

// "data.pack is true, and was false": what a checkpoint's run had otherwise; `only`: of this key. Empty: nothing, or it
// cannot be read.
std::string changed_data_keys(const config::RunConfig& run, const fs::path& from, std::string_view only = {}) {
  const auto newest = checkpoint::find_newest(from);
  std::vector<std::string> changes;
  try {
    const nlohmann::json before = newest ? checkpoint::Manifest::read(*newest).config : nlohmann::json();
    const auto had = before.is_object() ? before.find("data") : before.end();
    const auto has = run.resolved.find("data");
    if (!before.is_object() || had == before.end() || has == run.resolved.end()) {
      return "";
    }
    for (const auto& [key, value] : has->items()) {
      const auto old = had->find(key);
      if (old != had->end() && *old != nlohmann::json(value) && key != "prefetch" && (only.empty() || key == only)) {
        changes.push_back(value.is_structured()
                              ? concat("data.", key, " is not as it was")
                              : concat("data.", key, " is ", value.dump(), ", and was ", old->dump()));
      }
    }
  } catch (const std::exception&) {
    return ""; // the load has reported it
  }
  return join(changes, "; ");
}

} // namespace

std::optional<fs::path> saved_by(const std::string& job, const fs::path& folder, const comm::Group& group) {
  if (job.empty() || !checkpoint::find_newest(folder, group)) {
    return std::nullopt;
  }
  const auto newest = checkpoint::Checkpoint::open(folder, "", group);
  const nlohmann::json client = newest.state().value("client", nlohmann::json::object());
  return client.value(kJob, "") == job ? std::optional(newest.folder()) : std::nullopt;
}

std::optional<RunStart> find_start(const TrainCommand& command, const std::string& job, const comm::Group& group) {
  if (!continues(command)) {
    return std::nullopt;
  }
  const bool restarted = env::flag("TRIREME_RESTART");
  const fs::path own_folder = command.out / "checkpoints";
  const bool from_path = command.resume && command.resume_from != "auto";
  const auto own = from_path && restarted ? saved_by(job, own_folder, group) : std::nullopt;
  if (from_path && !own) {
    return RunStart{command.resume_from, true};
  }
  return RunStart{own.value_or(own_folder), false};
}

void check_first_weights(const config::RunConfig& run, const comm::Group& group) {
  engine::check_together(group, [&] {
    if (const std::vector<AbsentWeights> absent = absent_weights(run); !absent.empty()) {
      throw InputError("train",
                       concat("there is no ", absent.front().path.string(), " (model.", absent.front().key,
                              "), with which this run begins"),
                       "Put it back: only a run that continues from a checkpoint does without.");
    }
  });
}

bool load_checkpoint(engine::Engine& engine, const config::RunConfig& run, const fs::path& from,
                     const comm::Group& group) {
  try {
    if (!engine.load_checkpoint(from)) {
      return false;
    }
    const std::string change = changed_data_keys(run, from, "pack"); // of the same samples
    if (!change.empty() && group.rank() == 0) {
      log::warning(change);
    }
    return true;
  } catch (const InputError& error) {
    const bool is_of_data = std::string_view(error.what()).starts_with("[data]");
    const std::string changes = is_of_data ? changed_data_keys(run, from) : "";
    if (changes.empty()) {
      throw;
    }
    throw InputError("train", concat("the samples are others than those of ", from.string(), ": ", changes),
                     "Set it back, or begin a new run with the saved weights: model.init_from.");
  }
}

void check_alpha(const config::RunConfig& run, const fs::path& from, const comm::Group& group) {
  const auto newest = run.training.lora ? checkpoint::find_newest(from, group) : std::nullopt;
  if (!newest) {
    return;
  }
  engine::check_together(group, [&] {
    if (group.rank() != 0) {
      return;
    }
    nlohmann::json config;
    try {
      config = checkpoint::Manifest::read(*newest).config;
    } catch (const Error&) {
      return; // the load reports it, and may take an older one
    }
    constexpr const char* kAlpha = "/training/lora/alpha";
    const nlohmann::json alpha = config.value(nlohmann::json::json_pointer(kAlpha), nlohmann::json());
    if (alpha.is_number() && alpha.get<double>() != run.training.lora->alpha) {
      throw InputError("train",
                       concat("training.lora.alpha is ", run.training.lora->alpha, ", but the adapters of ",
                              newest->string(), " were trained with ", alpha.get<double>()),
                       concat("Set it to ", alpha.get<double>(), ": with another the model would not be the same."));
    }
  });
}

void note_other_base(config::RunConfig& run) {
  if (!run.training.lora || run.model.lora().init_from.empty() || run.model.init_from().empty()) {
    return;
  }
  const fs::path& adapter = run.model.lora().init_from;
  const std::string base = config::other_base_of_adapter(adapter, run.model.init_from());
  if (!base.empty() && !models::has_base_sample(adapter)) {
    run.notes.push_back(concat("model.adapter: ", adapter.string(), " was trained on ", printable(base),
                               ", and this model is ", run.model.init_from().string(), '.'));
  }
}

} // namespace trireme::train
