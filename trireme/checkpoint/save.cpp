#include <trireme/checkpoint/checkpoint.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/stamp.h>
#include <trireme/checkpoint/exchange.h>
#include <trireme/checkpoint/folder.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/shard_report.h>
#include <trireme/checkpoint/size_signal.h>
#include <trireme/checkpoint/staging.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <optional>
#include <set>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string file_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof name, "rank%05d.safetensors", rank);
  return name;
}

void check_claim(const SaveOptions& options) {
  if (options.check_claim) {
    options.check_claim();
  }
}

// First exchange: agrees on a tag and creates the folder.
json agree(const fs::path& root, const std::vector<json>& reports, const SaveOptions& options,
           std::optional<Staging>& staging) {
  const std::string tag = reports[0].at("tag");
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const std::string other = reports[rank].at("tag");
    if (other != tag && options.tag_validation != TagValidation::ignore) {
      const std::string happened =
          concat("rank ", rank, " saves under the tag \"", other, "\", rank 0 under \"", tag, '"');
      if (options.tag_validation == TagValidation::fail) {
        throw InputError("checkpoint", happened, "Pass the same tag on every rank.");
      }
      log::warning(happened, "; all save under rank 0's");
      break;
    }
  }
  if (const std::string problem = tag_problem(tag); !problem.empty()) {
    throw InputError("checkpoint", concat("cannot save under the tag \"", tag, "\": ", problem));
  }
  std::error_code error;
  if (options.fail_if_exists && fs::exists(root / tag, error)) {
    throw InputError("checkpoint", concat((root / tag).string(), " exists"),
                     "Choose another tag or allow replacing it.");
  }
  if (fs::exists(root / tag, error) && !fs::exists(root / tag / kManifestName, error) &&
      !fs::is_empty(root / tag, error)) {
    throw InputError("checkpoint", concat((root / tag).string(), " exists and is not a checkpoint"),
                     "Move it or choose another tag.");
  }
  check_claim(options);
  About about;
  about.tag = tag;
  about.step = step_of(tag);
  about.world_size = static_cast<int64_t>(reports.size());
  about.save_id = random_id();
  make_private_folders(root);
  remove_dead_stagings(root);
  staging.emplace(root, tag, about.save_id);
  for (const FoundCheckpoint& one : list_checkpoints(root)) {
    about.serial = std::max(about.serial, one.about ? one.about->serial + 1 : 0);
  }
  return {{"tag", tag},
          {"step", about.step},
          {"serial", about.serial},
          {"world_size", about.world_size},
          {"save_id", about.save_id}};
}

// Writes this rank's file and returns the place of each shard.
json write_shards(const fs::path& folder, int rank, const std::string& save_id, const std::vector<TensorShard>& mine) {
  json report = {{"shards", json::array()}};
  std::vector<NamedTensor> tensors;
  std::set<std::string> keys;
  for (const TensorShard& shard : mine) {
    check_shard(shard);
    // An unsharded tensor keeps its name and shape, so that any reader of safetensors can use the file.
    const bool is_whole = shard.box_size.empty() && shard.data.numel() == checked_numel(shard.global_shape);
    std::string key = is_whole ? shard.name : concat(shard.name, '@', shard.begin);
    while (key == "__metadata__" || !keys.insert(key).second) {
      key += '\'';
    }
    tensors.push_back({key, is_whole ? shard.data.reshape(shard.global_shape) : shard.data, shard.lent});
    report["shards"].push_back(report_of(shard, key));
  }
  if (!tensors.empty()) {
    make_private_folders(folder);
    const fs::path file = folder / file_name(rank);
    const WrittenFile written = write_safetensors(file, tensors, {{kSaveIdKey, save_id}, {"format", "pt"}});
    report["bytes"] = written.bytes;
    report["hash"] = written.hash;
  }
  return report;
}

// After a failed save rank 0 has removed the files that it sees: remaining ones are on a disk of this host only.
void remove_own_file(const fs::path& folder, int rank) noexcept {
  std::error_code ignored;
  fs::remove(folder / file_name(rank), ignored);
  fs::remove(folder, ignored); // if it is empty now
}

// Second exchange, after all files are written: makes the checkpoint visible.
void commit(const fs::path& root, const json& agreed, const std::vector<json>& reports, const json& state,
            const json& config, const SaveOptions& options, Staging& staging) {
  if (const Problem problem = joined(reports)) {
    problem.raise();
  }
  Manifest manifest;
  manifest.about = {kFormatVersion, agreed.at("tag"),        agreed.at("step"),   agreed.at("serial"),
                    utc_now(),      agreed.at("world_size"), agreed.at("save_id")};
  manifest.state = state;
  manifest.config = config;
  const fs::path& temporary = staging.folder();
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const json& report = reports[rank];
    manifest.rank_states.push_back(report.at("state"));
    if (report.contains("bytes")) {
      const std::string name = file_name(static_cast<int>(rank));
      std::error_code error;
      if (fs::file_size(temporary / name, error) != report["bytes"] || error) {
        throw Error("checkpoint",
                    concat("rank ", rank, " wrote ", name, ", but rank 0 does not see it in ", temporary.string()),
                    "Save to a folder that all hosts share.");
      }
      manifest.files.push_back({name, static_cast<int>(rank), report["bytes"], report.at("hash")});
    }
    for (const json& shard : report.at("shards")) {
      add_shard(manifest.tensors, shard, manifest.files.size() - 1, rank);
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    check_coverage(tensor, "the shards of all ranks");
  }
  write_file_atomically(temporary / kManifestName, manifest.to_text());
  check_claim(options);
  put_in_place(staging, root / manifest.about.tag);
  check_claim(options); // nothing is undone: existing files may be the later training's
  try {
    write_file_atomically(root / kLatestName, manifest.about.tag + "\n", staging.latest());
  } catch (...) {
    take_back(staging, root / manifest.about.tag);
    throw;
  }
}

} // namespace

std::string step_tag(int64_t step) {
  return concat("global_step", step);
}

void save(const fs::path& root, const std::string& tag, const comm::Group& group, const std::vector<TensorShard>& mine,
          const json& state, const json& rank_state, const SaveOptions& options, const json& config) {
  const SizeSignalBlock block;
  std::optional<Staging> staging; // rank 0's
  const json agreed = decide(group, {{"tag", tag}}, [&](const std::vector<json>& reports) {
    check_storable(state, "state"); // before anything is written
    check_storable(config, "config");
    return agree(root, reports, options, staging);
  });
  const std::string common_tag = agreed.at("tag");

  json report;
  try {
    const std::string save_id = agreed.at("save_id");
    report = write_shards(Staging::folder_of(root, common_tag, save_id), group.rank(), save_id, mine);
    check_storable(rank_state, "rank state");
    report["state"] = rank_state;
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& error) {
    report = {{"problem", to_json(Problem::of(error))}};
  }
  const auto put_together = [&](const std::vector<json>& reports) {
    try {
      commit(root, agreed, reports, state, config, options, *staging);
      check_claim(options);
    } catch (...) {
      staging.reset(); // before the other ranks get the error
      throw;
    }
    remove_old(root, common_tag, options.keep_last, *staging);
    staging.reset();
    return json();
  };
  try {
    decide(group, report, put_together);
  } catch (const PeerError&) { // rank 0 may still need the files, or has them in place
    throw;
  } catch (...) {
    remove_own_file(Staging::folder_of(root, common_tag, agreed.at("save_id")), group.rank());
    throw;
  }
}

} // namespace trireme::checkpoint
