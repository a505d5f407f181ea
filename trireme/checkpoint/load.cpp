#include <trireme/checkpoint/checkpoint.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/exchange.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/checkpoint/safetensors.h>

#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

namespace trireme::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

struct Checkpoint::Content {
  fs::path folder;
  Manifest manifest;
  mutable std::mutex mutex;
  mutable std::vector<std::shared_ptr<const Safetensors>> files;

  // Opens a file at its first use and checks that the manifest describes it.
  const Safetensors& file(size_t index) const {
    const std::lock_guard lock(mutex);
    if (!files[index]) {
      const ShardFile& expected = manifest.files[index];
      auto opened = std::make_shared<const Safetensors>(Safetensors::open(folder / expected.name));
      const auto id = opened->metadata().find(kSaveIdKey);
      if (opened->file_bytes() != expected.bytes || id == opened->metadata().end() ||
          id->second != manifest.about.save_id) {
        throw InputError("checkpoint", concat((folder / expected.name).string(), " is from another save"),
                         "Restore the file or use another checkpoint.");
      }
      files[index] = std::move(opened);
    }
    return *files[index];
  }

  // Visits each shard once, so that the cost is that of the elements.
  void fill(const TensorEntry& tensor, const Region& region, char* out) const {
    for (const StoredShard& shard : tensor.shards) {
      const std::vector<CommonRun> wanted = common_runs(region, shard.region, tensor.shape);
      if (wanted.empty()) {
        continue;
      }
      const Safetensors& from = file(shard.file);
      const TensorInfo& info = from.info(shard.key);
      if (info.dtype != tensor.dtype || info.numel() != shard.region.end - shard.region.begin) {
        throw InputError("checkpoint", concat(from.path().string(), ": \"", shard.key, "\" does not match tensor \"",
                                              tensor.name, "\" in the manifest"));
      }
      const int64_t first = wanted.front().in_other;
      const at::Tensor source = from.range(shard.key, first, wanted.back().in_other + wanted.back().numel);
      const auto element = static_cast<int64_t>(source.element_size());
      const char* data = static_cast<const char*>(source.data_ptr());
      for (const CommonRun& run : wanted) {
        std::memcpy(out + run.in_one * element, data + (run.in_other - first) * element,
                    static_cast<size_t>(run.numel * element));
      }
    }
  }

  // `region` is valid, and `out` has its elements.
  void fill(const TensorEntry& tensor, const Region& region, const at::Tensor& out, const std::string& where) const {
    const at::ScalarType type = scalar_type(tensor.dtype, where);
    if (out.device().is_cpu() && out.scalar_type() == type) {
      fill(tensor, region, static_cast<char*>(out.data_ptr()));
      return;
    }
    const at::Tensor read = at::empty({out.numel()}, type);
    fill(tensor, region, static_cast<char*>(read.data_ptr()));
    out.detach().view({-1}).copy_(read);
  }
};

// Agrees with the other ranks on the checkpoint to open.
class Opener {
 public:
  static constexpr int kMostLooks = 10;
  static constexpr int kWaits = 6;
  static constexpr std::chrono::milliseconds kWait{50};

  Opener(const fs::path& path, const std::string& tag, const comm::Group& group, const OpenOptions& options)
      : path_(checkpoints_of(path)), tag_(tag), group_(group), options_(options) {}

  Checkpoint open() {
    std::string removed;
    for (int look = 0; look < kMostLooks; ++look) {
      const json choice = decide(group_, json::object(), [&](const std::vector<json>&) { return candidates(); });
      if (auto opened = open_one_of(choice, removed)) {
        return *std::move(opened);
      }
      if (choice.at("is_named").get<bool>()) {
        break;
      }
    }
    throw Error("checkpoint", concat(removed, " was removed while it was read, perhaps by its training"),
                "Try again, or raise training.keep_checkpoints.");
  }

 private:
  // The first intact one. nullopt if one was removed before it was opened: `removed`.
  std::optional<Checkpoint> open_one_of(const json& choice, std::string& removed) const {
    std::string problems;
    for (const std::string candidate : choice.at("folders")) {
      json report;
      auto content = std::make_shared<Checkpoint::Content>();
      try {
        load(candidate, *content);
      } catch (const PeerError&) {
        throw;
      } catch (const std::exception& error) {
        report = {{"problem", to_json(Problem::of(error))}};
      }
      const json verdict = decide(group_, report, [&](const std::vector<json>& reports) {
        json joint = to_json(joined(reports));
        if (!joint.is_null()) {
          joint["is_removed"] = !is_there(candidate);
        }
        return joint;
      });
      if (verdict.is_null()) {
        if (group_.rank() == 0 && !(problems.empty() && choice.at("stale").get<std::string>().empty())) {
          log::warning("[checkpoint] ", choice.at("stale").get<std::string>(), problems, "taking ", candidate,
                       " (step ", content->manifest.about.step, ")");
        }
        return Checkpoint(content);
      }
      if (verdict.at("is_removed").get<bool>()) {
        removed = candidate;
        return std::nullopt;
      }
      problems += concat(verdict.at("happened").get<std::string>(), "; ");
    }
    problems.resize(problems.size() - 2);
    throw InputError(
        "checkpoint",
        concat(choice.at("folders").size() == 1 ? "the checkpoint is damaged: " : "no intact checkpoint: ", problems),
        "Nothing was loaded.");
  }

  json candidates() const {
    if (!is_there(path_)) {
      throw InputError("checkpoint", concat("there is no folder ", path_.string()), "Check the path.");
    }
    if (is_there(path_ / kManifestName)) {
      return named(path_);
    }
    if (!tag_.empty()) {
      if (!tag_problem(tag_).empty() || !is_there(path_ / tag_ / kManifestName)) {
        throw InputError("checkpoint", concat("there is no checkpoint \"", tag_, "\" in ", path_.string()),
                         did_you_mean(tag_, tags()));
      }
      return named(path_ / tag_);
    }
    std::string latest = read_latest(path_);
    json found = listed(latest);
    for (int wait = 0; wait < kWaits && found.at("is_due").get<bool>(); ++wait) {
      std::this_thread::sleep_for(kWait);
      if (const std::string now = read_latest(path_); now != latest) {
        latest = now;
        found = listed(latest);
      }
    }
    if (std::error_code ignored; found.at("folders").empty() && fs::exists(path_ / "config.json", ignored)) {
      throw InputError("checkpoint", concat(path_.string(), " is a Hugging Face folder, not a checkpoint"),
                       "transformers opens it; a run file trains it (\"model\": {\"from\": FOLDER}). Here a run or its "
                       "checkpoints are needed.");
    }
    if (found.at("folders").empty()) {
      throw InputError("checkpoint", concat("there is no checkpoint in ", path_.string()),
                       "Give the folder that holds global_step<N> folders.");
    }
    return found;
  }

  static json named(const fs::path& folder) {
    return {{"folders", {folder.string()}}, {"stale", ""}, {"is_named", true}};
  }

  // Those to open, newest first. "is_due": a save that goes on would explain that `latest` is stale.
  json listed(const std::string& latest) const {
    json folders = json::array();
    bool is_found = false;
    std::string newer; // than the one it names
    const std::vector<FoundCheckpoint> all = list_to_open(path_, latest);
    for (const FoundCheckpoint& one : all) {
      is_found = is_found || one.folder.filename() == latest;
      newer = one.about && all.front().about && one.about->serial > all.front().about->serial && newer.empty()
                  ? one.folder.filename().string()
                  : newer;
      folders.push_back(one.folder.string());
    }
    std::string stale;
    const std::string newest = folders.empty() ? "" : fs::path(folders[0].get<std::string>()).filename().string();
    if (newest != latest) {
      stale = concat((path_ / kLatestName).string(),
                     latest.empty() ? " is missing or empty; "
                     : is_found     ? concat(" names ", latest, ", and ", newest, " was saved after it; ")
                                    : concat(" names ", latest, ", which is not there; "));
    } else if (!newer.empty()) {
      stale =
          concat((path_ / kLatestName).string(), " was made to name ", latest, " after ", newer, " had been saved; ");
    }
    return {
        {"folders", folders}, {"stale", stale}, {"is_named", false}, {"is_due", newest != latest && !latest.empty()}};
  }

  std::vector<std::string> tags() const {
    std::vector<std::string> all;
    for (const FoundCheckpoint& one : list_checkpoints(path_)) {
      all.push_back(one.folder.filename().string());
    }
    return all;
  }

  // Every rank checks all sizes and hashes its share of the files.
  void load(const fs::path& folder, Checkpoint::Content& content) const {
    content.folder = folder;
    content.manifest = Manifest::read(folder);
    content.files.resize(content.manifest.files.size());
    const auto size = static_cast<size_t>(group_.size());
    for (size_t file = 0; file < content.files.size(); ++file) {
      const bool verify_hash = options_.verify_hashes && file % size == static_cast<size_t>(group_.rank());
      if (const std::string problem = file_problem(folder, content.manifest, file, verify_hash); !problem.empty()) {
        throw InputError("checkpoint", problem);
      }
      if (options_.hold_files) {
        content.file(file);
      }
    }
  }

  fs::path path_;
  std::string tag_;
  comm::Group group_;
  OpenOptions options_;
};

Checkpoint::Checkpoint(std::shared_ptr<const Content> content) : content_(std::move(content)) {}

Checkpoint Checkpoint::open(const fs::path& path, const std::string& tag, const OpenOptions& options) {
  return open(path, tag, comm::Group(), options);
}

Checkpoint Checkpoint::open(const fs::path& path, const std::string& tag, const comm::Group& group,
                            const OpenOptions& options) {
  return Opener(path, tag, group, options).open();
}

const fs::path& Checkpoint::folder() const {
  return content_->folder;
}

const Manifest& Checkpoint::manifest() const {
  return content_->manifest;
}

int64_t Checkpoint::step() const {
  return manifest().about.step;
}

int64_t Checkpoint::world_size() const {
  return manifest().about.world_size;
}

bool Checkpoint::has(std::string_view name) const {
  return manifest().tensors.find(name) != manifest().tensors.end();
}

const TensorEntry& Checkpoint::entry(std::string_view name) const {
  const auto found = manifest().tensors.find(name);
  if (found == manifest().tensors.end()) {
    const std::string like = nearest(name, names());
    throw InputError(
        "checkpoint", concat(folder().string(), " has no tensor \"", name, '"'),
        like.empty() ? "List them with: trireme inspect CHECKPOINT" : concat("Did you mean \"", like, "\"?"));
  }
  return found->second;
}

std::vector<std::string> Checkpoint::names(std::string_view kind) const {
  std::vector<std::string> all;
  for (const auto& [name, tensor] : manifest().tensors) {
    if (kind.empty() || tensor.kind == kind) {
      all.push_back(name);
    }
  }
  return all;
}

at::Tensor Checkpoint::read(std::string_view name) const {
  const TensorEntry& tensor = entry(name);
  return read_range(name, 0, tensor.numel()).view(tensor.shape);
}

at::Tensor Checkpoint::read_range(std::string_view name, int64_t begin, int64_t end) const {
  const TensorEntry& tensor = entry(name);
  const std::string where = concat(folder().string(), ": tensor \"", name, '"');
  if (begin < 0 || begin > end || end > tensor.numel()) {
    throw InputError("checkpoint",
                     concat(where, " has ", tensor.numel(), " elements, [", begin, ", ", end, ") was asked for"));
  }
  at::Tensor out = at::empty({end - begin}, scalar_type(tensor.dtype, where));
  content_->fill(tensor, {{}, {}, begin, end}, out, where);
  return out;
}

void Checkpoint::read_into(std::string_view name, int64_t begin, at::Tensor out) const {
  const TensorEntry& tensor = entry(name);
  const std::string where = concat(folder().string(), ": tensor \"", name, '"');
  if (!out.is_contiguous() || begin < 0 || out.numel() > tensor.numel() || begin > tensor.numel() - out.numel()) {
    throw InputError("checkpoint", concat(where, " has ", tensor.numel(), " elements, a contiguous tensor of ",
                                          out.numel(), " cannot be filled from element ", begin));
  }
  content_->fill(tensor, {{}, {}, begin, begin + out.numel()}, out, where);
}

void Checkpoint::read_into(std::string_view name, const Region& region, at::Tensor out) const {
  const TensorEntry& tensor = entry(name);
  const std::string where = concat(folder().string(), ": tensor \"", name, '"');
  std::string problem = region_problem(region, tensor.shape);
  if (problem.empty() && out.numel() != region.end - region.begin) {
    problem = concat("has ", region.end - region.begin, " elements there, the tensor to fill has ", out.numel());
  } else if (problem.empty() && !out.is_contiguous()) {
    problem = "cannot fill a tensor that is not contiguous";
  }
  if (!problem.empty()) {
    throw InputError("checkpoint", concat(where, ": ", problem));
  }
  content_->fill(tensor, region, out, where);
}

const json& Checkpoint::state() const {
  return manifest().state;
}

const json& Checkpoint::rank_state(int rank) const {
  if (rank < 0 || static_cast<size_t>(rank) >= manifest().rank_states.size()) {
    throw InputError(
        "checkpoint",
        concat(folder().string(), " was saved by ", world_size(), " ranks, the state of rank ", rank, " was asked for"),
        "Resume with at most that many ranks, or without per-rank state.");
  }
  return manifest().rank_states[static_cast<size_t>(rank)];
}

const json& Checkpoint::config() const {
  return manifest().config;
}

std::optional<fs::path> find_newest(const fs::path& path) {
  const fs::path root = checkpoints_of(path);
  if (!is_there(root) || !fs::is_directory(root)) {
    return std::nullopt;
  }
  if (is_there(root / kManifestName)) {
    return root;
  }
  const std::vector<FoundCheckpoint> all = list_to_open(root, read_latest(root));
  return all.empty() ? std::nullopt : std::optional(all.front().folder);
}

std::optional<fs::path> find_newest(const fs::path& path, const comm::Group& group) {
  const json newest = decide(group, nullptr, [&](const std::vector<json>&) -> json {
    const auto found = find_newest(path);
    return found ? json(found->string()) : json();
  });
  return newest.is_null() ? std::nullopt : std::optional<fs::path>(newest.get<std::string>());
}

} // namespace trireme::checkpoint
