#include "show_plan.h"

#include "calibrate.h"
#include "run_estimate.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/plan/search.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <iostream>

namespace trireme::tools {
namespace {

using nlohmann::ordered_json;
using plan::Prediction;

constexpr size_t kShownRefusals = 8;

std::string size_text(int64_t number) {
  return format_bytes(static_cast<double>(number));
}

// The run without its layout.
plan::Job job_of(config::RunConfig run, const std::string& run_file, int64_t ranks) {
  if (run.model.kind != config::ModelConfig::Kind::gpt) {
    throw InputError("plan", concat(run_file, " describes a model that is no gpt"), "The plan knows the layers of \"type\": \"gpt\".");
  }
  plan::Job job;
  const int64_t of_replica = ranks_of_replica(run);
  job.batch = run.engine.batch.train ? *run.engine.batch.train : run.engine.batch_for(run.parallel.data.value_or(std::max<int64_t>(1, ranks / of_replica))).train;
  job.partition = run.pipeline.partition;
  job.autocast = run.engine.precision.autocast;
  job.clips = run.engine.gradient_clipping > 0;
  job.context_kind = run.parallel.context_kind;
  run.parallel = config::ParallelConfig();
  run.engine.zero.shard_size.reset(); // hybrid sharding is not planned
  run.pipeline.stages = 1;
  run.pipeline.chunks = 1;
  run.engine.batch = {job.batch, 1, {}, run.engine.batch.where};
  config::RunEstimate described = describe_run(run, 1);
  job.base = std::move(described.run);
  job.gpt = run.model.gpt;
  if (job.gpt.vocab_size == 0) { // the tokenizer's: the embedding says how many
    job.gpt.vocab_size = job.base.model.layers.front().parameters.front().numel / job.gpt.hidden;
  }
  return job;
}

double tokens_per_second(const plan::Job& job, const Prediction& prediction) {
  return static_cast<double>(job.batch * job.gpt.sequence_length) / prediction.step_seconds;
}

// Operations of the model, without recomputation, that a rank does in a second.
double model_flops(const plan::Job& job, const plan::Cluster& cluster, const Prediction& prediction) {
  double sum = 0;
  for (const plan::LayerCost& layer : plan::layer_costs(cluster, job, prediction.layout)) {
    sum += layer.flops;
  }
  const plan::Layout& layout = prediction.layout;
  return sum * static_cast<double>(layout.accumulation(job)) / static_cast<double>(layout.pipe) / prediction.step_seconds;
}

ordered_json row_json(const plan::Job& job, const plan::Cluster& cluster, const Prediction& prediction) {
  const plan::Layout& layout = prediction.layout;
  ordered_json row = {{"pipe", layout.pipe},
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
                      {"offload", nullptr},
                      {"memory_bytes", prediction.memory_bytes > 0 ? ordered_json(prediction.memory_bytes) : ordered_json()}};
  row["memory"] = ordered_json::object();
  for (const estimate::Item& item : prediction.memory) {
    row["memory"][item.name] = item.bytes;
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

// What moving masters and optimizer states to the host would leave in a rank's memory, and that it cannot be done.
ordered_json offload_json(const plan::Job& job, const plan::Cluster& cluster, Prediction prediction) {
  int64_t moved = 0;
  for (const estimate::Item& item : prediction.memory) {
    moved += item.name == "optimizer_states" || item.name == "masters" ? item.bytes : 0;
  }
  prediction.memory_bytes -= moved;
  prediction.refused = concat("offload of optimizer states and masters (", size_text(moved), " of a rank) is not built yet");
  ordered_json row = row_json(job, cluster, prediction);
  row["offload"] = "optimizer";
  return row;
}

// The layout whose offload is shown: what needs least of what is too large, or the best one.
const Prediction* offloaded(const plan::Plan& found) {
  const auto known = std::find_if(found.refused.begin(), found.refused.end(), [](const Prediction& p) { return !p.memory.empty(); });
  if (found.best.empty()) {
    return known == found.refused.end() ? nullptr : &*known;
  }
  return &found.best.front();
}

void print_json(const plan::Job& job, const plan::Cluster& cluster, const plan::Plan& found) {
  const auto print = [](const ordered_json& row) { std::cout << row.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n'; };
  for (const Prediction& prediction : found.best) {
    print(row_json(job, cluster, prediction));
  }
  if (const Prediction* prediction = offloaded(found)) {
    print(offload_json(job, cluster, *prediction));
  }
  for (const Prediction& prediction : found.refused) {
    print(row_json(job, cluster, prediction));
  }
}

void print_heading(const plan::Job& job, const plan::Cluster& cluster) {
  std::cout << concat(format_count(static_cast<double>(job.base.model.parameters())), " parameters, ", job.batch, " samples of ", job.gpt.sequence_length,
                      " tokens a step, ", estimate::type_name(job.base.compute), ", ", job.base.optimizer, "; ", cluster.name, ": ", cluster.hosts,
                      cluster.hosts == 1 ? " host x " : " hosts x ", cluster.ranks_per_host, " ranks of ", size_text(cluster.memory_bytes), "\n\n");
}

void print_best(const plan::Job& job, const plan::Cluster& cluster, const plan::Plan& found) {
  std::cout << "    pipe  data  context  tensor  SP  ZeRO  micro-batch  schedule         recompute    memory  bubble       step  tokens/s  TFLOP/s a rank\n";
  for (size_t i = 0; i < found.best.size(); ++i) {
    const Prediction& p = found.best[i];
    const plan::Layout& layout = p.layout;
    const std::string schedule = layout.pipe == 1 ? "-" : concat(pipeline::schedule_name(layout.schedule), layout.chunks > 1 ? concat(" x ", layout.chunks) : "");
    std::cout << std::right << std::setw(2) << i + 1 << std::setw(6) << layout.pipe << std::setw(6) << layout.data << std::setw(9) << layout.context
              << std::setw(8) << layout.tensor << std::setw(4) << (layout.sequence_parallel ? "yes" : "-") << std::setw(6) << layout.zero_stage << std::setw(13)
              << concat(layout.micro_batch, " x ", layout.accumulation(job)) << "  " << std::left << std::setw(17) << schedule << std::right << std::setw(9)
              << (layout.recompute > 0 ? "yes" : "-") << std::setw(10) << size_text(p.memory_bytes) << std::fixed << std::setprecision(1) << std::setw(6)
              << 100 * p.bubble << " %" << std::setw(11) << format_seconds(p.step_seconds) << std::setw(10) << format_count(tokens_per_second(job, p))
              << std::setprecision(model_flops(job, cluster, p) < 1e12 ? 3 : 1) << std::setw(16) << model_flops(job, cluster, p) / 1e12 << '\n';
  }
  const Prediction& first = found.best.front();
  std::cout << "\nthe first, memory of the rank that needs most\n";
  for (const estimate::Item& item : first.memory) {
    if (item.bytes > 0 && (cluster.on_host || (item.name != "data" && item.name != "baseline"))) {
      std::cout << "  " << std::left << std::setw(22) << item.name << std::right << std::setw(9) << size_text(item.bytes) << "  " << item.formula
                << (item.numbers.empty() ? "" : concat(" = ", item.numbers)) << '\n';
    }
  }
  std::cout << "the first, sent by a rank in a step\n";
  for (const plan::AxisBytes& axis : first.traffic) {
    std::cout << "  " << std::left << std::setw(22) << axis.axis << std::right << std::setw(9) << size_text(axis.bytes) << "  " << axis.link << '\n';
  }
  std::cout << concat("the first, a step of ", format_seconds(first.step_seconds), ": computation and collectives between layers ", format_seconds(first.pipeline_seconds),
                      " (bubble ", std::round(1000 * first.bubble) / 10, " %), sums of gradients not hidden ", format_seconds(first.reduce_seconds), ", optimizer ",
                      format_seconds(first.optimizer_seconds), "\n\n");
}

void print_refused(const plan::Job& job, const plan::Cluster& cluster, const plan::Plan& found) {
  if (const Prediction* prediction = offloaded(found)) {
    std::cout << concat("refused: ", offload_json(job, cluster, *prediction).at("refused").get<std::string>(), '\n');
  }
  for (size_t i = 0; i < std::min(kShownRefusals, found.refused.size()); ++i) {
    const Prediction& p = found.refused[i];
    std::cout << concat("refused: ", plan::describe(p.layout, job), ": ", p.refused, '\n');
  }
  if (found.refused.size() > kShownRefusals) {
    std::cout << concat("and ", found.refused.size() - kShownRefusals, " more divisions of the ranks: --json lists all\n");
  }
}

} // namespace

int show_plan(const PlanCommand& command) {
  const config::RunConfig run = config::read_run_file(command.run_file, command.overrides);
  plan::Cluster cluster;
  if (command.calibrate) {
    const plan::Job job = job_of(run, command.run_file.string(), command.ranks);
    cluster = calibrate(job, static_cast<int>(command.ranks));
    write_file_atomically(command.cluster, plan::write_cluster(cluster), 0644);
    log::info("wrote ", command.cluster.string());
  } else {
    cluster = plan::read_cluster(command.cluster);
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
    std::cout << concat("looked at ", found.candidates, " layouts in ", format_seconds(seconds), ": worked out the memory of ", found.estimated, ", simulated ",
                        found.simulated, '\n');
  }
  if (found.best.empty()) {
    log::error("no layout of ", cluster.ranks(), cluster.ranks() == 1 ? " rank" : " ranks", " fits this run");
    return 1;
  }
  return 0;
}

} // namespace trireme::tools
