#include <trireme/plan/move_time.h>

#include <algorithm>

namespace trireme::plan {

using estimate::Way;

ActivationTimes& ActivationTimes::operator+=(const ActivationTimes& other) {
  leave_over_link += other.leave_over_link;
  leave_to_files += other.leave_to_files;
  back_over_link += other.back_over_link;
  back_from_files += other.back_from_files;
  copied += other.copied;
  return *this;
}

double MoveTimes::forward(double passes, const ActivationTimes& activations) const {
  return std::max({units_over_link / (2 * passes), activations.leave_over_link,
                   units_from_files / (2 * passes) + activations.leave_to_files});
}

double MoveTimes::backward(double passes, const ActivationTimes& activations) const {
  const double of_gradients = in_every_micro_batch ? 1 / passes : 0;
  return std::max({gradients_up * of_gradients,
                   units_over_link / (2 * passes) + gradients_down * of_gradients + activations.back_over_link,
                   units_from_files / (2 * passes) + gradients_in_files * of_gradients + activations.back_from_files});
}

double MoveTimes::optimizer() const {
  const double disk = reads + writes;
  const double slowest = std::max({disk, pass, returns});
  return slowest + (disk + pass + returns - slowest) / static_cast<double>(std::max<int64_t>(1, buckets + shards));
}

MoveTimes move_times(const Cluster& cluster, const estimate::Run& run, const bucket::FlatLayout& layout,
                     const estimate::StageMoves& moves) {
  MoveTimes out;
  if (moves.moved.empty()) {
    return out;
  }
  const auto ranks = static_cast<double>(cluster.ranks_per_host);
  const auto seconds = [](int64_t bytes, double bandwidth) {
    return bytes == 0 ? 0 : static_cast<double>(bytes) / bandwidth;
  };
  const auto of = [&](Way way, auto&& counts) {
    int64_t bytes = 0;
    for (const estimate::Item& item : moves.moved) {
      bytes += item.axis == estimate::way_name(way) && counts(item) ? item.bytes : 0;
    }
    return bytes;
  };
  const auto units = [](const estimate::Item& item) { return item.name == estimate::kUnits; };
  const auto gradients = [](const estimate::Item& item) { return item.name.starts_with("gradients"); };
  const auto others = [&](const estimate::Item& item) {
    return !units(item) && !gradients(item) && item.name != estimate::kActivations;
  };
  const double link = cluster.host.link_bandwidth;
  const double reading = cluster.disk.read_bandwidth / ranks;
  const double writing = cluster.disk.write_bandwidth / ranks;
  out.gradients_up = seconds(of(Way::to_host, gradients), link);
  out.gradients_down = seconds(of(Way::to_device, gradients), link);
  out.gradients_in_files =
      seconds(of(Way::from_files, gradients), reading) + seconds(of(Way::to_files, gradients), writing);
  out.in_every_micro_batch = run.stages == 1 && (run.moves_gradients() || run.gradients_in_files());
  out.units_over_link = seconds(of(Way::to_device, units), link);
  out.units_from_files = seconds(of(Way::from_files, units), reading);
  out.reads = seconds(of(Way::from_files, others), reading);
  out.writes = seconds(of(Way::to_files, others), writing);
  if (!out.in_every_micro_batch) { // written once, after the last backward, and read for the step
    out.writes += out.gradients_in_files;
    out.gradients_in_files = 0;
  }
  out.returns = std::max(seconds(of(Way::to_device, others), link), seconds(of(Way::to_host, others), link));

  const estimate::Elsewhere there = estimate::elsewhere_of(run, layout);
  const auto e = run.parameter_bytes();
  const bool copies = run.precision.has_masters(); // masters are read and written, and the parameter is written
  const int64_t element = run.gradient_bytes() + 2 * run.states() * run.state_bytes() + 8 + (copies ? e : 0);
  const double bandwidth =
      cluster.on_host ? cluster.memory_bandwidth / cluster.sharing() : cluster.host.memory_bandwidth / ranks;
  out.pass = seconds(there.elements * element, bandwidth);
  out.shards = there.buckets_stepped_on_device;
  int64_t elements = 0;
  while (out.buckets < std::ssize(layout.buckets()) && elements < there.elements * run.shard_ranks()) {
    elements += layout.buckets()[out.buckets++].numel();
  }
  return out;
}

ActivationTimes activation_times(const Cluster& cluster, int64_t bytes, activations::Way way) {
  const auto seconds = [&](bool moves, double bandwidth) {
    return moves && bandwidth > 0 ? static_cast<double>(bytes) / bandwidth : 0;
  };
  const double link = seconds(activations::moves(way) && !cluster.on_host, cluster.host.link_bandwidth);
  const auto ranks = static_cast<double>(cluster.ranks_per_host);
  const double copied = cluster.on_host
                            ? 2 * cluster.sharing() * seconds(activations::to_nvme(way), cluster.memory_bandwidth)
                            : 0; // a copy reads and writes
  return {link, seconds(activations::to_nvme(way), cluster.disk.write_bandwidth / ranks), link,
          seconds(activations::to_nvme(way), cluster.disk.read_bandwidth / ranks), copied};
}

} // namespace trireme::plan
