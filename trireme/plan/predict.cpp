#include <trireme/plan/predict.h>

#include <trireme/plan/conflict.h>

#include <trireme/base/error.h>
#include <trireme/plan/choose_ways.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/traffic.h>
#include <trireme/plan/link_time.h>
#include <trireme/plan/move_time.h>
#include <trireme/plan/predict_memory.h>

#include <algorithm>
#include <cmath>

namespace trireme::plan {
namespace {

constexpr double kSmallSum = 40;       // bytes of loss, norm and counts
constexpr double kLargestWhole = 4e18; // largest that is a whole number, with what is added to it

// Seconds of `communication` that remain if it overlaps the share `overlap` of the computation beside it.
double exposed(double communication, double overlap, double computation) {
  return std::max(0.0, communication - overlap * computation);
}

class Step {
 public:
  Step(const Cluster& cluster, const Job& job, const Layout& layout, const Needs& needs, Shared& shared)
      : cluster_(cluster),
        job_(job),
        layout_(layout),
        layouts_(needs.layouts),
        run_(layouts_.run()),
        shared_(shared),
        replicas_{run_.gradient_ranks(), run_.tensor_ranks} {
    for (int64_t stage = 0; stage < run_.stages; ++stage) {
      moved_.push_back(move_times(cluster, run_, layouts_.of(stage),
                                  layout.moves_nothing() || needs.moves.empty()
                                      ? estimate::StageMoves()
                                      : needs.moves[static_cast<size_t>(stage)]));
    }
  }

  void into(Prediction& out) const {
    pipeline::Costs costs;
    costs.parts = part_costs();
    const pipeline::Timeline& timeline = shared_.timeline(layout_, costs);
    out.bubble = timeline.bubble;
    out.pipeline_seconds = std::max(timeline.total, over_processors(timeline));

    std::vector<double> end(static_cast<size_t>(run_.stages), 0); // end of the last backward
    std::vector<double> last(end.size(), 0);                      // duration of that
    for (const pipeline::TimelineSpan& span : timeline.spans) {
      const auto stage = static_cast<size_t>(span.stage);
      end[stage] = std::max(end[stage], span.end);
      if (span.op != pipeline::Op::forward && span.micro_batch == run_.accumulation - 1) {
        last[stage] += span.end - span.begin;
      }
    }
    double reduced = 0;
    for (int64_t stage = 0; stage < run_.stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      const bucket::FlatLayout& flat = layouts_.of(stage);
      const MoveTimes& moved = moved_[s];
      reduced = std::max(reduced, end[s] + tied(stage) + std::max(reduction(flat, last[s]), leaving(moved, last[s])));
      out.optimizer_seconds = std::max(out.optimizer_seconds, optimizer(flat, moved));
    }
    out.reduce_seconds = std::max(0.0, reduced - timeline.total) + small_sums();
    if (run_.on_device && run_.moves_states() &&
        run_.offload.optimizer.delayed_update) { // overlaps the next step's computation
      out.optimizer_seconds = std::max(0.0, out.optimizer_seconds - out.pipeline_seconds);
    }
    out.step_seconds = out.pipeline_seconds + out.reduce_seconds + out.optimizer_seconds;
  }

 private:
  // Seconds for which a part of the stage gathers units of stage 3 for a forward or a backward, without units still
  // gathered, spread evenly.
  double gathering(int64_t stage) const {
    if (!run_.shards(3)) {
      return 0;
    }
    const int64_t bytes = run_.parameter_bytes() * layouts_.gathers(stage).elements(layouts_.of(stage));
    return bytes == 0
               ? 0
               : gather_seconds(cluster_, replicas_,
                                static_cast<double>(bytes) / static_cast<double>(2 * run_.accumulation * run_.chunks));
  }

  std::vector<pipeline::PartCosts> part_costs() const {
    const std::vector<LayerCost> layers = layer_costs(cluster_, job_, layout_);
    const std::vector<activations::Way> ways = run_.ways();
    const std::vector<int64_t> shared = estimate::shared_inputs(run_);
    std::vector<double> gathers; // by stage
    for (int64_t stage = 0; stage < run_.stages; ++stage) {
      gathers.push_back(gathering(stage));
    }
    std::vector<pipeline::PartCosts> parts;
    const int64_t count = run_.stages * run_.chunks;
    for (int64_t p = 0; p < count; ++p) {
      const int64_t stage = p % run_.stages;
      pipeline::PartCosts& part = parts.emplace_back();
      part = {0, 0, 0, 0, 0, 0};
      ActivationTimes moved;
      for (int64_t i = run_.bounds[p]; i < run_.bounds[p + 1]; ++i) {
        const LayerCost& layer = layers[i];
        part.forward += layer.forward;
        part.backward_input +=
            layer.backward_input +
            (shared[i] > 0 ? gather_seconds(cluster_, {run_.tensor_ranks, 1}, static_cast<double>(shared[i])) : 0);
        moved += activation_times(
            cluster_,
            activations::recomputes(ways[i]) ? estimate::kept_input(run_, shared, i) : run_.model.layers[i].kept,
            ways[i]);
        part.backward_weight +=
            layer.backward_weight + layer.gradients + (run_.computes_weights_later(stage) ? layer.weights_later : 0);
      }
      part.forward += moved.copied;
      part.backward_input += moved.copied;
      part.backward = part.backward_input + part.backward_weight;
      if (run_.splits_backward && !run_.computes_weights_later(stage)) {
        part.backward_input = part.backward;
        part.backward_weight = 0;
      }
      if (run_.stages > 1) {
        part.send_activation = p + 1 < count ? message(p, p + 1, run_.bounds[p + 1] - 1) : 0;
        part.send_grad = p > 0 ? message(p, p - 1, run_.bounds[p] - 1) : 0;
      }
      const double travelling = gathers[stage] + (run_.stages == 1 && run_.shards(2) ? reduce_all(layouts_.of(0)) : 0);
      part.forward += exposed(gathers[stage], cluster_.overlap, part.forward);
      part.backward += exposed(travelling, cluster_.overlap, part.backward);
      part.backward_input += exposed(travelling, cluster_.overlap, part.backward_input);
      // Moves of units, gradients and activations overlap the computation of layers.
      const auto passes = static_cast<double>(run_.accumulation * run_.chunks);
      const MoveTimes& own = moved_[static_cast<size_t>(stage)];
      part.forward = std::max(part.forward, own.forward(passes, moved));
      part.backward = std::max(part.backward, own.backward(passes, moved));
      part.backward_input = std::max(part.backward_input, own.backward(passes, moved));
    }
    return parts;
  }

  double message(int64_t from, int64_t to, int64_t layer) const {
    const int64_t ranks = run_.ranks_of_stage();
    return message_seconds(cluster_, from % run_.stages * ranks, to % run_.stages * ranks, ranks,
                           static_cast<double>(estimate::message_bytes(run_.model.layers[layer].output)));
  }

  // The work of all ranks divided by all processors.
  double over_processors(const pipeline::Timeline& timeline) const {
    double busy = 0;
    for (const pipeline::TimelineSpan& span : timeline.spans) {
      busy += span.end - span.begin;
    }
    return busy * static_cast<double>(run_.ranks_of_stage()) /
           static_cast<double>(cluster_.hosts * cluster_.processors);
  }

  double reduce_all(const bucket::FlatLayout& flat) const {
    const double once = gather_seconds(cluster_, replicas_, static_cast<double>(run_.travel_bytes() * flat.numel()));
    return run_.shards(1) ? once : cluster_.all_reduce_gathers * once;
  }

  // Exposed seconds of the sums of gradients after a stage's last backward.
  double reduction(const bucket::FlatLayout& flat, double last_backward) const {
    if (run_.gradient_ranks() == 1 || (run_.stages == 1 && run_.shards(2))) {
      return 0;
    }
    const double all = reduce_all(flat);
    const double last_bucket = all / static_cast<double>(std::max<int64_t>(1, std::ssize(flat.buckets())));
    return std::max(last_bucket, exposed(all, cluster_.overlap, last_backward));
  }

  // Exposed seconds of gradients that are moved out after a stage's last backward: at least one bucket's.
  double leaving(const MoveTimes& moved, double last_backward) const {
    const double last_bucket = moved.gradients_up / static_cast<double>(std::max<int64_t>(1, moved.buckets));
    if (moved.in_every_micro_batch) {
      return last_bucket / static_cast<double>(run_.accumulation);
    }
    return std::max(last_bucket, exposed(moved.gradients_up, 1, last_backward));
  }

  // Sum of the gradient of a parameter on the first and the last stage.
  double tied(int64_t stage) const {
    if (!job_.model.tie_embeddings || run_.stages == 1 || (stage > 0 && stage < run_.stages - 1)) {
      return 0;
    }
    const auto numel = static_cast<double>(run_.model.layers.front().parameters.front().numel);
    return cluster_.all_reduce_gathers *
           gather_seconds(cluster_, {2, (run_.stages - 1) * run_.ranks_of_stage()}, run_.parameter_bytes() * numel);
  }

  // A pass over gradients, states, masters and parameters, and the gathers of parameters beside it. A GPU's host steps
  // what is offloaded at the same time; ranks on the CPU do both.
  double optimizer(const bucket::FlatLayout& flat, const MoveTimes& moved) const {
    const auto owned = static_cast<double>(flat.numel() / run_.shard_ranks());
    const auto here =
        static_cast<double>(flat.numel() / run_.shard_ranks() - estimate::elsewhere_of(run_, flat).elements);
    const double g = run_.gradient_bytes();
    const double e = run_.parameter_bytes();
    const double states = 2.0 * static_cast<double>(run_.states() * run_.state_bytes());
    const double masters = run_.precision.has_masters() ? 8 : e; // read before the parameter is written
    const double sharing = cluster_.sharing();
    const double beside = sharing * here * (g + states + masters + e) / cluster_.memory_bandwidth;
    const double there = moved.optimizer();
    const double pass = cluster_.on_host ? beside + there : std::max(beside, there);
    const double norm = job_.base.clips ? sharing * owned * g / cluster_.memory_bandwidth : 0;
    const double gathers =
        run_.shards(1) ? gather_seconds(cluster_, replicas_, e * static_cast<double>(estimate::whole_elements(flat)))
                       : 0;
    const double hidden = cluster_.overlap * std::min(pass, gathers) *
                          (1 - 1 / static_cast<double>(std::max<int64_t>(1, std::ssize(flat.buckets()))));
    return norm + pass + gathers - hidden;
  }

  // Sums of loss and norm over replicas and stages.
  double small_sums() const {
    const AxisGroup stages{run_.stages, run_.ranks_of_stage()};
    return cluster_.all_reduce_gathers *
           (2 * gather_seconds(cluster_, replicas_, kSmallSum) + gather_seconds(cluster_, stages, kSmallSum));
  }

  const Cluster& cluster_;
  const Job& job_;
  const Layout& layout_;
  const estimate::StageLayouts& layouts_;
  const estimate::Run& run_;
  Shared& shared_;
  AxisGroup replicas_;
  std::vector<MoveTimes> moved_; // by stage
};

std::vector<AxisBytes> traffic_of(const Cluster& cluster, const Layout& layout, const estimate::StageLayouts& layouts) {
  struct Axis {
    const char* name;
    AxisGroup group;
    bool is_ring; // otherwise some rank sends all of it over the slowest link
  };
  const int64_t t = layout.tensor;
  const std::vector<estimate::StageTraffic> stages = estimate::traffic_of(layouts);
  std::vector<AxisBytes> out;
  for (const Axis& axis : {Axis{"pipe", {layout.pipe, t * layout.context * layout.data}, false},
                           Axis{"data", {layout.gradient_ranks(), t}, true},
                           Axis{"context", {layout.context, t}, false}, Axis{"tensor", {t, 1}, true}}) {
    const std::string slowest = level_name(cluster, axis.group);
    if (slowest.empty()) {
      continue;
    }
    int64_t most = 0;
    for (const estimate::StageTraffic& stage : stages) {
      int64_t sum = 0;
      for (const estimate::Item& item : stage.items) {
        sum += item.axis == axis.name ? item.bytes : 0;
      }
      most = std::max(most, sum);
    }
    const bool goes_around = axis.is_ring && most > 0;
    for (const LevelBytes& level :
         goes_around ? ring_bytes(cluster, axis.group, most) : std::vector{LevelBytes{slowest, most}}) {
      out.push_back({axis.name, level.level, level.bytes});
    }
  }
  return out;
}

Prediction worked_out(const Cluster& cluster, const Job& job, const Layout& layout, Shared& shared, bool with_times);

// `out`: the prediction with everything kept that memory_budget allows. The choice counts only activations; if buffers
// of files leave a host too little memory, less is moved.
Prediction with_chosen_ways(const Cluster& cluster, const Job& job, const Layout& layout, const Needs& needs,
                            Shared& shared, Prediction out) {
  for (const MayMove may_move : {MayMove::to_hosts_and_files, MayMove::to_files, MayMove::nowhere}) {
    const ChosenWays chosen = choose_ways(cluster, job, layout, needs, shared, may_move);
    if (!chosen.refused.empty()) {
      out.refused = out.refused.empty() ? chosen.refused : out.refused;
      return out;
    }
    out = worked_out(cluster, with_choices(job, chosen.choices), layout, shared, true);
    if (out.refused.empty() || std::none_of(chosen.choices.begin(), chosen.choices.end(), activations::moves)) {
      return out;
    }
  }
  return out;
}

Prediction worked_out(const Cluster& cluster, const Job& job, const Layout& layout, Shared& shared, bool with_times) {
  Prediction out;
  out.layout = layout;
  out.refused = why_impossible(job, layout);
  if (out.refused.empty() && layout.ranks() != cluster.ranks()) {
    out.refused = concat("the axes have ", layout.ranks(), " ranks, the cluster ", cluster.ranks());
  }
  if (!out.refused.empty()) {
    return out;
  }
  const estimate::Run run = run_of(job, layout, shared, !cluster.on_host);
  const auto conflict = find_conflict(job, layout, run.on_device);
  out.refused = conflict ? conflict->what : estimate::why_other_parts(run);
  if (!out.refused.empty()) {
    return out;
  }
  Needs needs{estimate::StageLayouts(run)};
  add_memory(cluster, needs, out);
  if (!with_times || !out.refused.empty()) {
    return out;
  }
  if (run.activations.automatic) {
    return with_chosen_ways(cluster, job, layout, needs, shared, std::move(out));
  }
  Step(cluster, job, layout, needs, shared).into(out);
  out.traffic = traffic_of(cluster, layout, needs.layouts);
  out.choices = run.activations.choices;
  return out;
}

} // namespace

Prediction predict(const Cluster& cluster, const Job& job, const Layout& layout) {
  Shared shared(job);
  return predict(cluster, job, layout, shared);
}

Prediction memory_only(const Cluster& cluster, const Job& job, const Layout& layout, Shared& shared) {
  return worked_out(cluster, job, layout, shared, false);
}

Prediction predict(const Cluster& cluster, const Job& job, const Layout& layout, Shared& shared) {
  return worked_out(cluster, job, layout, shared, true);
}

double least_seconds(const Cluster& cluster, const Job& job, const Layout& layout, const std::vector<LayerCost>& costs,
                     Shared& shared) {
  const std::vector<int64_t>& bounds = shared.bounds(layout);
  const auto micro_batches = static_cast<double>(layout.accumulation(job));
  double before = 0; // the first forward on its way to a stage, and the last backward back
  double least = 0;
  double all = 0;
  for (int64_t stage = 0; stage < layout.pipe; ++stage) {
    double work = 0;
    double way = 0;
    for (int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
      const int64_t part = chunk * layout.pipe + stage;
      for (int64_t i = bounds[part]; i < bounds[part + 1]; ++i) {
        const double backward = costs[i].backward() + costs[i].gradients;
        work += costs[i].forward + backward;
        way +=
            chunk == 0 ? costs[i].forward + (layout.schedule == pipeline::ScheduleKind::one_f_one_b ? backward : 0) : 0;
      }
    }
    least = std::max(least, before + micro_batches * work);
    before += way;
    all += micro_batches * work;
  }
  const double sharing = static_cast<double>(cluster.ranks_per_host) / static_cast<double>(cluster.processors);
  return std::max(least, sharing * all / static_cast<double>(layout.pipe));
}

int64_t least_of_a_block(const Job& job, const Layout& layout, bool on_device) {
  const int64_t first = job.model.embeddings();
  const int64_t blocks = job.base.activations.choices.empty() ? 1 : job.model.layers; // otherwise all blocks are equal
  estimate::Run run = run_of_layers(job, layout, blocks);
  run.on_device = on_device;
  return estimate::least_kept(run, first, first + blocks);
}

int64_t least_memory(const Job& job, const Layout& layout, int64_t parameters, int64_t block_kept, bool on_device) {
  const double share = layout.zero_stage >= 1 ? 1.0 / static_cast<double>(layout.gradient_ranks()) : 1.0;
  const double e = job.base.parameter_bytes();
  const auto elsewhere = [&](offload::Place place) { return offload::is_elsewhere(place, on_device); };
  const bool states_moved = elsewhere(layout.states);
  const double kept = states_moved ? 0 : 1; // of what may be moved; a ratio may leave less than a bucket
  const double states =
      (static_cast<double>(job.base.states() * job.base.state_bytes()) + (job.base.precision.has_masters() ? 4 : 0)) *
      kept;
  const double shards = layout.zero_stage >= 3 ? share * (elsewhere(layout.parameters) ? 0 : 1) : 1;
  const double gradients = layout.zero_stage >= 2 ? share * (on_device ? kept : 1) : 1;
  const double a_number = e * shards + e * gradients + states * share;
  // Embeddings replace some blocks.
  const double blocks = std::max(0.0, static_cast<double>(job.model.layers) / static_cast<double>(layout.pipe) -
                                          static_cast<double>(job.model.embedding_parameters()) /
                                              static_cast<double>(job.model.block_parameters()) -
                                          1);
  const double in_flight = static_cast<double>(std::min(layout.pipe, layout.accumulation(job)));
  const double least = a_number * static_cast<double>(parameters) / static_cast<double>(layout.pipe * layout.tensor) +
                       in_flight * std::ceil(blocks) * static_cast<double>(block_kept);
  return static_cast<int64_t>(std::min(least, kLargestWhole));
}

} // namespace trireme::plan
