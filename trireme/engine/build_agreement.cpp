#include <trireme/engine/build_agreement.h>

#include <trireme/base/error.h>
#include <trireme/engine/sync_kinds.h>
#include <trireme/mesh/mesh.h>
#include <trireme/precision/cast.h>
#include <trireme/shards/zero/sharded_sync.h>

#include <string>
#include <utility>

namespace trireme::engine {
namespace {

// Hybrid sharding: neighbouring ranks share one sharded copy.
void shard_within(parallel::ReduceGroups& groups, const zero::ZeroOptions& options) {
  const comm::Group& data = groups.data();
  if (!options.shard_size || options.stage == 0 || *options.shard_size == data.size()) {
    return;
  }
  if (*options.shard_size > data.size() || data.size() % *options.shard_size != 0) {
    throw InputError("engine",
                     concat("zero_optimization.mics_shard_size ", *options.shard_size, " does not divide ", data.size(),
                            " data ranks"),
                     "Set it to a divisor of the number of data ranks, or remove it to shard over all of them.");
  }
  const auto shards = static_cast<int>(*options.shard_size);
  const mesh::Mesh mesh(data, mesh::MeshShape::fit(data.size(), {{"replicas", mesh::kRest}, {"shards", shards}}));
  groups.shard_within(mesh.group("shards"), mesh.group("replicas"));
}

// In a process with a world of its own, InitializeOptions::sync must be of the kind that the configuration asks for.
void check_kind(const InitializeOptions& options, const SyncKind* kind) {
  const std::string given = options.sync ? options.sync->kind : "";
  const bool is_asked = kind != nullptr && kind->is_brought && kind->name == given;
  if (!given.empty() && !is_asked) {
    throw InputError(
        "engine",
        concat("InitializeOptions::sync is of kind \"", given, "\", but the configuration does not ask for it"),
        given == "server" ? "Set EngineConfig::server, or remove the sync."
                          : "Set AveragingOptions::elastic, or remove the sync.");
  }
}

std::unique_ptr<parallel::GradientSync> agree_as_asked(const Parts& parts, const parallel::ReduceGroups& groups,
                                                       const InitializeOptions& options) {
  const config::EngineConfig& config = options.config;
  const SyncKind* const kind = kind_of(config);
  check_kind(options, kind);
  if (options.sync) {
    return options.sync->make(groups);
  }
  const at::ScalarType type = precision::scalar_type(parts.settings.precision.communication_type());
  std::unique_ptr<parallel::AllReduceSync> plain;
  if (parts.settings.sharding.states || parts.settings.sharding.gradients) {
    plain = std::make_unique<zero::ShardedSync>(groups, config.data_parallel, type);
  } else {
    plain = std::make_unique<parallel::AllReduceSync>(groups, config.data_parallel, type);
  }
  return kind == nullptr ? std::move(plain)
                         : make_sync(*kind, {config, groups, type, parts.ranks.everyone, std::move(plain)});
}

// Reports a GPU that cannot be used in initialize() instead of in the first backward.
void open_groups(const Parts& parts, const parallel::GradientSync& sync) {
  if (parts.device().is_cpu()) {
    return;
  }
  std::vector<comm::Group> groups = {parts.ranks.everyone, parts.ranks.group,       parts.ranks.pipe,
                                     parts.ranks.tensor,   parts.ranks.model_ranks, sync.step_group()};
  const std::vector<comm::Group> of_sync = sync.groups().every();
  groups.insert(groups.end(), of_sync.begin(), of_sync.end());
  for (const comm::Group& group : groups) {
    group.open(parts.device());
  }
  parts.ranks.context.open(parts.device(), comm::Neighbours::ring); // keys and values are sent around the ring
}

bool any_has_several_reduce_groups(const Parts& parts, const parallel::GradientSync& sync) {
  at::Tensor most = torch::tensor({std::ssize(sync.groups().all())}, torch::kInt64);
  parts.ranks.everyone.all_reduce(most, comm::ReduceOp::max, "number of reduce groups").wait();
  return most.item<int64_t>() > 1;
}

} // namespace

void build_agreement(Parts& parts, const InitializeOptions& options) {
  Agreement& out = parts.agreement;
  parallel::ReduceGroups groups(
      parts.ranks.group, options.reduce_groups ? options.reduce_groups(parts.ranks.group) : std::vector<comm::Group>());
  out.program_groups = static_cast<int>(groups.all().size()) - 1;
  shard_within(groups, options.config.zero);
  if (parts.ranks.tensor.size() > 1) {
    // In buffers of their own, whose layout is the same on all tensor ranks: the order of a sum may depend on the
    // offset in a buffer.
    out.whole.is_sum = options.sequence_parallel;
    out.whole.group = groups.add(options.sequence_parallel ? parts.ranks.stage : parts.ranks.group);
    for (int number = 1; number <= out.program_groups && !options.sequence_parallel; ++number) {
      out.whole.of_program.push_back(groups.add(groups.at(number)));
    }
  }
  out.sync = agree_as_asked(parts, groups, options);
  open_groups(parts, *out.sync);
  out.several_reduce_groups = any_has_several_reduce_groups(parts, *out.sync);
}

} // namespace trireme::engine
