#include <trireme/engine/offload_room.h>

#include <trireme/base/hash.h>
#include <trireme/base/log.h>
#include <trireme/engine/same_options.h>
#include <trireme/memory/offload/preflight.h>
#include <trireme/plan/estimate/machine_memory.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/estimate/what_stays.h>
#include <trireme/plan/run_estimate.h>
#include <trireme/store/sockets.h>

#include <torch/types.h>

#include <sys/stat.h>

#include <algorithm>
#include <string>

namespace trireme::engine {
namespace {

using offload::FolderUse;
using offload::Place;

// Adds the use of other ranks of this host on the same disks. All ranks have the same kinds of folders.
void add_up(const Parts& parts, std::vector<FolderUse>& uses) {
  constexpr int64_t kFields = 5;
  const auto folders = std::ssize(uses);
  at::Tensor own = torch::zeros({folders, kFields}, torch::kInt64);
  check_together(parts.ranks.everyone, [&] {
    for (int64_t i = 0; i < folders; ++i) {
      const FolderUse& use = uses[static_cast<size_t>(i)];
      struct stat disk = {};
      if (::stat(offload::existing_folder(use.folder).c_str(), &disk) != 0) {
        disk.st_dev = 0;
      }
      const std::string host = store::host_identity();
      const int64_t fields[kFields] = {static_cast<int64_t>(fnv1a({host.data(), host.size()})),
                                       static_cast<int64_t>(disk.st_dev), use.state_bytes, use.parameter_bytes,
                                       use.gradient_bytes};
      for (int64_t field = 0; field < kFields; ++field) {
        own[i][field] = fields[field];
      }
    }
  });
  at::Tensor all = torch::zeros({parts.ranks.everyone.size(), folders, kFields}, torch::kInt64);
  parts.ranks.everyone.all_gather(all, own, "what ranks have in files").wait();
  const auto rows = all.accessor<int64_t, 3>();
  const auto mine = own.accessor<int64_t, 2>();
  for (int64_t i = 0; i < folders; ++i) {
    FolderUse& use = uses[static_cast<size_t>(i)];
    for (int64_t rank = 0; rank < parts.ranks.everyone.size(); ++rank) {
      const auto row = rows[rank][i];
      if (rank == parts.ranks.everyone.rank() || row[0] != mine[i][0] || row[1] != mine[i][1]) {
        continue;
      }
      ++use.ranks;
      use.state_bytes += row[2];
      use.parameter_bytes += row[3];
      use.gradient_bytes += row[4];
    }
  }
}

void check(const Parts& parts, const InitializeOptions& options, std::vector<FolderUse> uses) {
  add_up(parts, uses);
  check_together(parts.ranks.everyone, [&] {
    offload::check_room(uses, options.config.offload, estimate::memory_at_hand().bytes, !parts.device().is_cpu());
  });
}

FolderUse of_this_rank(const std::string& folder) {
  FolderUse use;
  use.folder = folder;
  use.ranks = 1;
  return use;
}

// The engine's run for elsewhere_of(), with the ranks that share these buffers; without its model.
estimate::Run run_of(const Parts& parts, const InitializeOptions& options,
                     const std::vector<const bucket::FlatParameters*>& buffers) {
  estimate::Run run;
  plan::set_engine(options.config, run);
  run.precision = parts.settings.precision;
  run.on_device = !parts.device().is_cpu();
  run.accumulation = parts.settings.batch.accumulation;
  for (const bucket::FlatParameters* const buffer : buffers) {
    std::optional<int64_t>& shards = run.zero.shard_size;
    shards = std::max<int64_t>(shards.value_or(1), buffer->plan().size());
    run.data_ranks =
        std::max(run.data_ranks, *shards * parts.agreement.sync->groups().replicas(buffer->reduce_group()).size());
  }
  return run;
}

} // namespace

void check_room_for_shards(const Parts& parts, const InitializeOptions& options, const ShardBytes& own) {
  const offload::Options& wanted = options.config.offload;
  if (options.state_store || wanted.parameters.place != Place::nvme) {
    return;
  }
  std::vector<FolderUse> uses = {of_this_rank(wanted.parameters.nvme_path)};
  uses.front().parameter_bytes = own.parameters;
  if (wanted.optimizer.place == Place::nvme) {
    FolderUse& states = wanted.optimizer.nvme_path == wanted.parameters.nvme_path
                            ? uses.front()
                            : uses.emplace_back(of_this_rank(wanted.optimizer.nvme_path));
    states.state_bytes = states.gradient_bytes = own.gradients;
  }
  check(parts, options, std::move(uses));
}

void check_room_for_states(const Parts& parts, const InitializeOptions& options,
                           const std::vector<bucket::FlatParameters*>& buffers) {
  const offload::OptimizerOptions& wanted = options.config.offload.optimizer;
  if (options.state_store || parts.agreement.sync->remote_states() != nullptr || wanted.place != Place::nvme) {
    return;
  }
  FolderUse own = of_this_rank(wanted.nvme_path);
  for (const bucket::FlatParameters* const buffer : buffers) {
    const estimate::Elsewhere there = estimate::elsewhere_of(run_of(parts, options, {buffer}), buffer->layout());
    own.state_bytes += there.state_file_bytes;
    if (!parts.device().is_cpu()) { // on the CPU gradients have their files since there are buffers
      own.gradient_bytes += there.gradient_file_bytes;
    }
  }
  own.state_bytes += own.gradient_bytes;
  check(parts, options, {own});
}

void note_offload(const Parts& parts, const InitializeOptions& options) {
  const bool asked = options.config.offload.optimizer.place != Place::device ||
                     options.config.offload.parameters.place != Place::device;
  if (!asked || options.state_store || parts.agreement.sync->remote_states() != nullptr ||
      parts.ranks.everyone.rank() != 0) {
    return;
  }
  std::vector<const bucket::FlatParameters*> all;
  std::vector<const bucket::FlatLayout*> trained;
  std::vector<const bucket::FlatLayout*> frozen;
  for (const auto* const buffers : {&parts.buffers.trained, &parts.buffers.frozen}) {
    for (const auto& buffer : *buffers) {
      all.push_back(buffer.get());
      (buffers == &parts.buffers.trained ? trained : frozen).push_back(&buffer->layout());
    }
  }
  estimate::Run run = run_of(parts, options, all);
  const bool any_large = std::ranges::any_of(all, [&](const bucket::FlatParameters* buffer) { // logged as not sharded
    return std::ranges::any_of(buffer->layout().tensors(), [&](const bucket::TensorInfo& tensor) {
      return tensor.numel() >= run.zero.param_persistence_threshold;
    });
  });
  const estimate::Elsewhere there = estimate::elsewhere_of(run, trained, frozen);
  if (const std::string where = estimate::where_things_are(run, there); !where.empty()) {
    log::info(where);
  }
  if (there.parameters == 0 && (any_large || parts.ranks.pipe.size() > 1)) { // other stages may have some
    run.offload.parameters.place = Place::device;
  }
  for (const std::string& note : estimate::what_stays(run, there)) {
    log::info(note);
  }
}

} // namespace trireme::engine
