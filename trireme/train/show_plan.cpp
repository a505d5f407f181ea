#include <trireme/train/show_plan.h>

#include <trireme/train/calibrate.h>
#include <trireme/train/run_estimate.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/plan/search.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <optional>
#include <utility>

namespace trireme::train {
namespace {

using nlohmann::ordered_json;
using plan::Prediction;

constexpr size_t kShownRefusals = 8;

// The run without its layout.
plan::Job job_of(config::RunConfig run, const std::string& run_file, int64_t ranks) {
  if (!run.model.is_language()) {
    throw InputError("plan", concat(run_file, " describes a ", run.model.type),
                     "Only \"type\": \"gpt\" and \"llama\" can be planned.");
  }
  plan::Job job;
  const int64_t of_replica = ranks_of_replica(run);
  job.batch = run.engine.batch.train
                  ? *run.engine.batch.train
                  : run.engine.batch_for(run.parallel.data.value_or(std::max<int64_t>(1, ranks / of_replica))).train;
  job.partition = run.pipeline.partition;
  job.context_kind = run.parallel.context_kind;
  run.parallel = config::ParallelConfig();
  run.engine.zero.shard_size.reset(); // hybrid sharding is not planned
  run.pipeline.stages = 1;
  run.pipeline.chunks = 1;
  run.engine.batch = {job.batch, 1, {}, run.engine.batch.where};
  activations::Options wanted =
      std::exchange(run.engine.activations, {}); // each layout decides whether it has such parts
  plan::RunEstimate described = describe_run(run, 1);
  if (run.training.freeze.on()) {
    job.trained = plan::trained_in(described.run.model);
  }
  job.base = std::move(described.run);
  job.base.activations = std::move(wanted);
  job.model = run.model.shape();
  if (job.model.vocab_size == 0) { // the tokenizer's: taken from the embedding
    job.model.vocab_size = job.base.model.layers.front().parameters.front().numel / job.model.hidden;
  }
  return job;
}

double tokens_per_second(const plan::Job& job, const Prediction& prediction) {
  return static_cast<double>(job.batch * job.model.sequence_length) / prediction.step_seconds;
}

// Operations of the model per second and rank, without recomputation.
double model_flops(const plan::Job& job, const plan::Cluster& cluster, const Prediction& prediction) {
  double sum = 0;
  for (const plan::LayerCost& layer : plan::layer_costs(cluster, job, prediction.layout)) {
    sum += layer.flops;
  }
  const plan::Layout& layout = prediction.layout;
  return sum * static_cast<double>(layout.accumulation(job)) / static_cast<double>(layout.pipe) /
         prediction.step_seconds;
}

// The sections of zero_optimization for these moves, without nvme_path, which only the hosts know. null: nothing is
// moved.
ordered_json offload_json(const plan::Job& job, const plan::Layout& layout) {
  if (layout.moves_nothing()) {
    return nullptr;
  }
  ordered_json out = ordered_json::object();
  if (layout.states != offload::Place::device) {
    ordered_json& states = out["offload_optimizer"] = {{"device", offload::word(layout.states)}};
    if (layout.states == offload::Place::nvme) { // as the plan assumes
      states.update({{"pipeline_read", true}, {"pipeline_write", true}});
    }
    if (job.base.offload.optimizer.delayed_update) {
      states["delayed_update"] = true;
    }
    if (job.base.offload.optimizer.ratio < 1) {
      states["ratio"] = job.base.offload.optimizer.ratio;
    }
  }
  if (layout.parameters != offload::Place::device) {
    out["offload_param"] = {{"device", offload::word(layout.parameters)}};
  }
  return out;
}

// Among the layouts that fit, those with the fewest different axes; the fastest of them.
const Prediction* nearest(const plan::Plan& found, const Prediction& refused) {
  const auto differences = [&](const Prediction& other) {
    const plan::Layout& a = refused.layout;
    const plan::Layout& b = other.layout;
    return (a.pipe != b.pipe) + (a.data != b.data) + (a.context != b.context) + (a.tensor != b.tensor);
  };
  const auto best =
      std::min_element(found.best.begin(), found.best.end(),
                       [&](const Prediction& a, const Prediction& b) { return differences(a) < differences(b); });
  return best == found.best.end() ? nullptr : &*best;
}

ordered_json row_json(const plan::Job& job, const plan::Cluster& cluster, const Prediction& prediction) {
  const plan::Layout& layout = prediction.layout;
  ordered_json row = {
      {"pipe", layout.pipe},
      {"data", layout.data},
      {"context", layout.context},
      {"tensor", layout.tensor},
      {"sequence_parallel", layout.sequence_parallel},
      {"zero_stage", layout.zero_stage},
      {"micro_batch", layout.micro_batch},
      {"accumulation", layout.accumulation(job)},
      {"schedule", pipeline::schedule_name(layout.schedule)},
      {"chunks", layout.chunks},
      {"recompute", layout.recompute},
      {"choices", activations::to_words(prediction.choices)},
      {"offload", offload_json(job, layout)},
      {"memory_bytes", prediction.memory_bytes > 0 ? ordered_json(prediction.memory_bytes) : ordered_json()}};
  row["memory"] = ordered_json::object();
  for (const estimate::Item& item : prediction.memory) {
    row["memory"][item.name] = item.bytes;
  }
  if (!prediction.moves_nothing()) {
    const auto list = [](const std::vector<estimate::Item>& items) {
      ordered_json out = ordered_json::object();
      for (const estimate::Item& item : items) {
        out[item.name] = out.value(item.name, int64_t{0}) + item.bytes;
      }
      return out;
    };
    row["on_host"] = list(prediction.on_host);
    row["in_files"] = list(prediction.in_files);
    row["host_bytes"] = prediction.host_bytes;
    row["disk_bytes"] = prediction.disk_bytes;
    row["moved"] = ordered_json::object();
    for (const plan::MovedBytes& moved : prediction.moved) {
      row["moved"][estimate::way_name(moved.way)] = moved.bytes;
    }
  }
  const bool runs = prediction.refused.empty();
  row["bubble"] = runs ? ordered_json(prediction.bubble) : ordered_json();
  row["step_ms"] = runs ? ordered_json(1e3 * prediction.step_seconds) : ordered_json();
  if (runs) {
    row["pipeline_ms"] = 1e3 * prediction.pipeline_seconds;
    row["reduce_ms"] = 1e3 * prediction.reduce_seconds;
    row["optimizer_ms"] = 1e3 * prediction.optimizer_seconds;
    row["tokens_per_s"] = tokens_per_second(job, prediction);
    row["model_flops_per_s"] = model_flops(job, cluster, prediction);
    row["sent"] = ordered_json::array();
    for (const plan::AxisBytes& axis : prediction.traffic) {
      row["sent"].push_back({{"axis", axis.axis}, {"link", axis.link}, {"bytes", axis.bytes}});
    }
  }
  row["refused"] = runs ? ordered_json() : ordered_json(prediction.refused);
  return row;
}

void print_json(const plan::Job& job, const plan::Cluster& cluster, const plan::Plan& found) {
  const auto print = [](const ordered_json& row) {
    std::cout << row.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n';
  };
  for (const Prediction& prediction : found.best) {
    print(row_json(job, cluster, prediction));
  }
  for (const Prediction& prediction : found.refused) {
    ordered_json row = row_json(job, cluster, prediction);
    const Prediction* const near = nearest(found, prediction);
    row["nearest"] = near == nullptr ? ordered_json() : ordered_json(plan::describe(near->layout, job));
    print(row);
  }
}

void print_heading(const plan::Job& job, const plan::Cluster& cluster) {
  std::cout << concat(format_count(job.base.model.parameters()), " parameters, ", job.batch, " samples of ",
                      job.model.sequence_length, " tokens a step, ", precision::type_name(job.base.precision.compute),
                      ", ", optim::family_of(job.base.optimizer.rule), "; ", printable(cluster.name), ": ",
                      cluster.hosts, cluster.hosts == 1 ? " host x " : " hosts x ", cluster.ranks_per_host,
                      " ranks of ", format_bytes(cluster.memory_bytes), "\n\n");
}

std::string moves_text(const plan::Layout& layout) {
  using offload::Place;
  const auto part = [](const char* what, Place place) {
    return place == Place::device ? "" : concat(what, place == Place::host ? " on the host" : " in files");
  };
  const std::string states = part("states", layout.states);
  const std::string parameters = part("parameters", layout.parameters);
  return states.empty() && parameters.empty()
             ? "-"
             : concat(states, states.empty() || parameters.empty() ? "" : ", ", parameters);
}

void print_item(const estimate::Item& item) {
  std::cout << "  " << std::left << std::setw(22) << item.name << std::right << std::setw(9) << format_bytes(item.bytes)
            << "  " << item.formula << (item.numbers.empty() ? "" : concat(" = ", item.numbers)) << '\n';
}

// Prints the moved data of the first layout.
void print_moves(const Prediction& first) {
  if (first.moves_nothing()) {
    return;
  }
  for (const auto& [items, where] :
       {std::pair(&first.on_host, "on its host"), std::pair(&first.in_files, "in files")}) {
    if (!items->empty()) {
      std::cout << "the first, " << where << '\n';
      for (const estimate::Item& item : *items) {
        print_item(item);
      }
    }
  }
  if (first.host_bytes > 0) {
    std::cout << concat("  a host needs ", format_bytes(first.host_bytes), ", with libtorch and data\n");
  }
  if (first.disk_bytes > 0) {
    std::cout << concat("  a host's disk needs room for ", format_bytes(first.disk_bytes), '\n');
  }
  std::cout << (first.moved.empty() ? "" : "the first, moved by a rank in a step\n");
  for (const plan::MovedBytes& moved : first.moved) {
    std::cout << "  " << std::left << std::setw(22) << estimate::way_name(moved.way) << std::right << std::setw(9)
              << format_bytes(moved.bytes) << '\n';
  }
}

void print_best(const plan::Job& job, const plan::Cluster& cluster, const plan::Plan& found) {
  const bool any_moves =
      std::any_of(found.best.begin(), found.best.end(), [](const Prediction& p) { return !p.layout.moves_nothing(); });
  std::cout << "    pipe  data  context  tensor  SP  ZeRO  micro-batch  schedule         recompute    memory  bubble   "
               "    step  tokens/s  TFLOP/s a rank"
            << (any_moves ? "  offload" : "") << '\n';
  for (size_t i = 0; i < found.best.size(); ++i) {
    const Prediction& p = found.best[i];
    const plan::Layout& layout = p.layout;
    const std::string step = format_seconds(p.step_seconds);
    const std::optional<activations::Way>& policy = job.base.activations.policy;
    const bool recomputes = layout.recompute > 0 || (policy && activations::recomputes(*policy));
    const std::string schedule = layout.pipe == 1 ? "-"
                                                  : concat(pipeline::schedule_name(layout.schedule),
                                                           layout.chunks > 1 ? concat(" x ", layout.chunks) : "");
    std::cout << std::right << std::setw(2) << i + 1 << std::setw(6) << layout.pipe << std::setw(6) << layout.data
              << std::setw(9) << layout.context << std::setw(8) << layout.tensor << std::setw(4)
              << (layout.sequence_parallel ? "yes" : "-") << std::setw(6) << layout.zero_stage << std::setw(13)
              << concat(layout.micro_batch, " x ", layout.accumulation(job)) << "  " << std::left << std::setw(17)
              << schedule << std::right << std::setw(9)
              << (!p.choices.empty() ? "by part"
                  : recomputes       ? "yes"
                                     : "-")
              << std::setw(10) << format_bytes(p.memory_bytes) << std::fixed << std::setprecision(1) << std::setw(6)
              << 100 * p.bubble << " %" << std::setw(11) << (step.size() < 11 ? step : ' ' + step) << std::setw(10)
              << format_count(tokens_per_second(job, p))
              << std::setprecision(model_flops(job, cluster, p) < 1e12 ? 3 : 1) << std::setw(16)
              << model_flops(job, cluster, p) / 1e12 << (any_moves ? concat("  ", moves_text(layout)) : "") << '\n';
  }
  const Prediction first = plan::predict(cluster, job, found.best.front().layout); // again, with formulas
  std::cout << "\nthe first, memory of the rank that needs most\n";
  for (const estimate::Item& item : first.memory) {
    if (item.bytes > 0 && (cluster.on_host || (item.name != "data" && item.name != "baseline"))) {
      print_item(item);
    }
  }
  if (!first.choices.empty()) {
    const bool asks_for_layers = first.layout.recompute > 0 && first.layout.pipe == 1;
    std::cout << concat(
        "the first, activations by part\n  \"choices\": [\"", join(activations::to_words(first.choices), "\", \""),
        "\"]",
        asks_for_layers ? ", with \"activation_checkpoint_interval\": 1 in \"pipeline\", which makes a list of layers"
                        : "",
        '\n');
  }
  print_moves(first);
  std::cout << (first.traffic.empty() ? "" : "the first, sent by a rank in a step\n");
  for (const plan::AxisBytes& axis : first.traffic) {
    std::cout << "  " << std::left << std::setw(22) << axis.axis << std::right << std::setw(9)
              << format_bytes(axis.bytes) << "  " << axis.link << '\n';
  }
  std::cout << concat("the first, a step of ", format_seconds(first.step_seconds),
                      ": computation and collectives between layers ", format_seconds(first.pipeline_seconds),
                      " (bubble ", std::round(1000 * first.bubble) / 10, " %), sums of gradients not hidden ",
                      format_seconds(first.reduce_seconds), ", optimizer ", format_seconds(first.optimizer_seconds),
                      "\n\n");
}

void print_refused(const plan::Job& job, const plan::Cluster& cluster, const plan::Plan& found) {
  for (size_t i = 0; i < std::min(kShownRefusals, found.refused.size()); ++i) {
    const Prediction& p = found.refused[i];
    std::cout << concat("refused: ", plan::describe(p.layout, job), ": ", p.refused, '\n');
  }
  if (!found.refused.empty() && !found.best.empty()) {
    std::cout << concat("nearest to the first of these that fits: ",
                        plan::describe(nearest(found, found.refused.front())->layout, job), '\n');
  }
  if (cluster.disk.bytes == 0 && !cluster.has_hosts_beside()) {
    std::cout << "offload was not tried: the cluster file says nothing of "
              << (cluster.on_host ? "disks (\"disk\")\n" : "hosts (\"host\", \"disk\")\n");
  }
  if (found.refused.size() > kShownRefusals) {
    std::cout << concat("and ", found.refused.size() - kShownRefusals,
                        " more divisions of the ranks: --json lists all\n");
  }
}

// Checks before measuring, which takes a minute.
void check_description(const PlanCommand& command) {
  std::error_code absent;
  if (std::filesystem::equivalent(command.cluster, command.run_file, absent)) {
    throw InputError(
        "plan",
        concat("--calibrate would write the description of this machine over the run file ", command.run_file.string()),
        "Name another file with --cluster.");
  }
  check_writable(command.cluster);
}

} // namespace

int show_plan(const PlanCommand& command, const Program& program) {
  const config::RunConfig run =
      config::read_run_file(command.run_file, command.overrides, config::Files::may_be_absent, program.types);
  for (const std::string& note : run.notes) {
    log::info(note);
  }
  plan::Cluster cluster;
  if (command.calibrate) {
    const plan::Job job = job_of(run, command.run_file.string(), command.ranks);
    check_description(command);
    cluster = calibrate(job, static_cast<int>(command.ranks), program);
    write_file_atomically(command.cluster, plan::write_cluster(cluster), 0644);
    log::info("wrote ", command.cluster.string());
  } else {
    cluster = plan::read_cluster(command.cluster);
  }
  if (const activations::Options& wanted = run.engine.activations; wanted.automatic) {
    log::info(command.run_file.string(),
              ": what becomes of activations is chosen for each layout as ranks choose it, by planned costs where they "
              "measure (activation_checkpointing.policy \"auto\")");
  } else if (wanted.policy || !wanted.choices.empty()) {
    log::info(command.run_file.string(), ": activation_checkpointing decides about the activations of all layouts");
  }
  if (run.engine.offload.optimizer.place != offload::Place::device ||
      run.engine.offload.parameters.place != offload::Place::device) {
    log::info(command.run_file.string(),
              ": the places of offload_optimizer and offload_param are ignored: layouts that do not fit try all "
              "places; its \"delayed_update\" and \"ratio\" stay");
  }
  if (run.engine.zero.shard_size) {
    log::info(command.run_file.string(), ": mics_shard_size is ignored: the plan shards over all data ranks");
  }
  if (const std::string note = plan::note_on_absent_data(run); cluster.on_host && !note.empty()) {
    log::info(command.run_file.string(), ": ", note);
  }
  const plan::Job job = job_of(run, command.run_file.string(), cluster.ranks());
  const auto start = std::chrono::steady_clock::now();
  plan::SearchOptions options;
  options.best = command.best;
  const plan::Plan found = plan::search(cluster, job, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (command.json) {
    print_json(job, cluster, found);
  } else {
    print_heading(job, cluster);
    if (!found.best.empty()) {
      print_best(job, cluster, found);
    }
    print_refused(job, cluster, found);
    std::cout << concat("looked at ", found.candidates, " layouts in ", format_seconds(seconds),
                        ": worked out the memory of ", found.estimated, ", simulated ", found.simulated, '\n');
  }
  if (found.best.empty()) {
    log::error("no layout of ", cluster.ranks(), cluster.ranks() == 1 ? " rank" : " ranks", " fits this run");
    return 1;
  }
  return 0;
}

} // namespace trireme::train
