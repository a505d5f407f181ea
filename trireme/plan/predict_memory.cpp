#include <trireme/plan/predict_memory.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace trireme::plan {
namespace {

int64_t needed(const Cluster& cluster, const estimate::StageMemory& memory) {
  return (cluster.on_host ? memory.peak() : memory.peak_on_device()) + cluster.reserved_bytes;
}

std::string too_large(const Cluster& cluster, const Prediction& prediction) {
  const auto counted = [&](const estimate::Item& item) { // libtorch and data are not on a GPU
    return cluster.on_host || (item.name != "baseline" && item.name != "data") ? item.bytes : 0;
  };
  const auto largest = std::max_element(prediction.memory.begin(), prediction.memory.end(),
                                        [&](const auto& a, const auto& b) { return counted(a) < counted(b); });
  std::string name = largest->name;
  std::replace(name.begin(), name.end(), '_', ' ');
  return concat("a rank needs ", format_bytes(prediction.memory_bytes), " of its ", format_bytes(cluster.memory_bytes),
                ": ", format_bytes(prediction.memory_bytes - cluster.memory_bytes), " too much, most for ", name, " (",
                format_bytes(largest->bytes), ')');
}

// Sum over the ranks of the host that needs most; `of` has the bytes of each stage.
int64_t largest_host(const Cluster& cluster, const estimate::Run& run, const std::vector<int64_t>& of) {
  int64_t most = 0;
  for (int64_t host = 0; host < cluster.hosts; ++host) {
    int64_t sum = 0;
    for (int64_t rank = host * cluster.ranks_per_host; rank < (host + 1) * cluster.ranks_per_host; ++rank) {
      sum += of[static_cast<size_t>(rank / run.ranks_of_stage())];
    }
    most = std::max(most, sum);
  }
  return most;
}

// Adds the bytes on a host and in its files.
void add_moves(const Cluster& cluster, const Needs& needs, size_t shown, Prediction& out) {
  const estimate::Run& run = needs.layouts.run();
  std::vector<int64_t> on_host;
  std::vector<int64_t> in_files;
  for (size_t stage = 0; stage < needs.moves.size(); ++stage) {
    on_host.push_back(needs.moves[stage].sure_host_peak() +
                      (cluster.on_host ? 0 : needs.memory[stage].always_on_host()));
    in_files.push_back(needs.moves[stage].disk_bytes());
  }
  out.on_host = needs.moves[shown].on_host;
  out.in_files = needs.moves[shown].in_files;
  std::ranges::copy_if(needs.moves[shown].in_files_at_times, std::back_inserter(out.in_files),
                       [](const estimate::Item& item) { return item.name == estimate::kActivations; });
  out.host_bytes = cluster.on_host ? 0 : largest_host(cluster, run, on_host) + cluster.host.reserved_bytes;
  out.disk_bytes = largest_host(cluster, run, in_files);
  for (const estimate::Way way : estimate::kWays) {
    int64_t most = 0;
    for (const estimate::StageMoves& stage : needs.moves) {
      most = std::max(most, stage.bytes(way));
    }
    if (most > 0) {
      out.moved.push_back({way, most});
    }
  }
}

// Why hosts with this much memory and disk have no room for what is moved; empty: they have.
std::string no_room(const Prediction& of, int64_t memory_bytes, int64_t disk_bytes) {
  const auto too_small = [](const char* what, int64_t needed, int64_t there) {
    return there == 0 ? concat("offload needs ", format_bytes(needed), " of the ", what,
                               " of a host, which the cluster does not describe")
                      : concat("offload needs ", format_bytes(needed), " of the ", what, " of a host, which has ",
                               format_bytes(there));
  };
  if (of.host_bytes > memory_bytes) {
    return too_small("memory", of.host_bytes, memory_bytes);
  }
  return of.disk_bytes > disk_bytes ? too_small("disk", of.disk_bytes, disk_bytes) : "";
}

// The same for the first two steps if policies are still to be chosen, which move activations to the described hosts
// and disks.
std::string no_room_to_measure(const Cluster& cluster, const Needs& needs) {
  const auto if_described = [](int64_t bytes) { return bytes > 0 ? bytes : std::numeric_limits<int64_t>::max(); };
  Prediction first;
  add_moves(cluster, needs, 0, first);
  const std::string why = no_room(first, if_described(cluster.host.memory_bytes), if_described(cluster.disk.bytes));
  return why.empty() ? "" : concat("in the first two steps, which measure activations, ", why);
}

} // namespace

void add_memory(const Cluster& cluster, Needs& needs, Prediction& out) {
  const estimate::Run& run = needs.layouts.run();
  const std::vector<estimate::StageMemory>& memory = needs.memory = estimate::memory_of(needs.layouts);
  const auto largest = std::max_element(memory.begin(), memory.end(), [&](const auto& a, const auto& b) {
    return needed(cluster, a) < needed(cluster, b);
  });
  out.memory = largest->items;
  out.memory_bytes = needed(cluster, *largest);
  out.refused = out.memory_bytes > cluster.memory_bytes ? too_large(cluster, out) : "";
  if (!run.moves_states() && !run.moves_parameters() && !run.moves_activations()) {
    return;
  }
  needs.moves = estimate::moves_of(needs.layouts);
  const bool is_chosen = !run.activations.automatic;
  if (is_chosen) {
    add_moves(cluster, needs, static_cast<size_t>(largest - memory.begin()), out);
  }
  if (out.refused.empty()) {
    out.refused =
        is_chosen ? no_room(out, cluster.host.memory_bytes, cluster.disk.bytes) : no_room_to_measure(cluster, needs);
  }
}

} // namespace trireme::plan
