#include <trireme/train/show_estimate.h>

#include <trireme/train/measure_run.h>
#include <trireme/train/offload_check.h>
#include <trireme/train/run_estimate.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/monitor/straggler.h>
#include <trireme/plan/estimate/traffic.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>

namespace trireme::train {
namespace {

using estimate::Category;
using estimate::StageMemory;
using estimate::StageTraffic;
using nlohmann::ordered_json;

/// A run and all results about it.
struct Shown {
  config::RunConfig config;
  int64_t ranks = 0;
  estimate::Run run;
  std::vector<std::string> notes;
  std::vector<StageMemory> memory; ///< by stage
  std::vector<StageTraffic> traffic;
  std::vector<estimate::StageMoves> moves; ///< by stage
  std::vector<offload::Preflight> disks;   ///< where --probe asked
  std::vector<StageTraffic> compressed;    // of the steps that compress; empty: none does
  /// Traffic of a run's first steps, which are measured.
  const std::vector<StageTraffic>& of_first_steps() const {
    return run.compression.on() && run.compression.start_step == 0 ? compressed : traffic;
  }
  estimate::MemoryAtHand at_hand;
  std::optional<MeasuredRun> measured;
  int64_t parameters = 0; ///< of the whole model
  int64_t trained = 0;

  bool is_gpt() const {
    return config.model.kind == config::ModelConfig::Kind::gpt; // the textbook's formulas are a GPT's
  }
  const StageMemory& largest() const {
    return *std::max_element(memory.begin(), memory.end(),
                             [](const auto& a, const auto& b) { return a.peak() < b.peak(); });
  }
  /// Memory need of the hosts.
  estimate::Need need() const {
    return run.on_device ? estimate::host_need_of(memory, moves, run.ranks_of_stage())
                         : estimate::need_of(memory, run.ranks_of_stage());
  }
  /// Peak of the largest rank: GPU memory if the measured run trained on one, else host memory.
  int64_t measured_peak() const { return measured->device_peak_bytes.value_or(measured->peak_rss_bytes); }
  int64_t estimated_peak() const {
    int64_t most = 0;
    for (const StageMemory& stage : memory) {
      most = std::max(most, measured->device_peak_bytes ? stage.peak_on_device() : stage.peak());
    }
    return most;
  }
};

// Deviation of an estimate, in percent of the measurement.
double deviation(int64_t estimated, int64_t measured) {
  return measured == 0
             ? 0
             : std::round(1000.0 * static_cast<double>(estimated - measured) / static_cast<double>(measured)) / 10 +
                   0.0; // no -0
}

// Ranks of a stage: replicas are consecutive.
std::vector<int64_t> ranks_of_stage(const Shown& shown, int64_t stage) {
  std::vector<int64_t> ranks;
  for (int64_t replica = 0; replica < shown.run.ranks_of_stage(); ++replica) {
    ranks.push_back(stage * shown.run.ranks_of_stage() + replica);
  }
  return ranks;
}

ordered_json as_json(const estimate::Item& item) {
  return {{"formula", item.formula}, {"numbers", item.numbers}, {"bytes", item.bytes}};
}

ordered_json textbook(const Shown& shown) {
  const models::GptOptions& gpt = shown.config.model.gpt;
  return {{"model_formula", "4nh(13+12h)"},
          {"model_bytes", estimate::textbook_model_bytes(gpt.layers, gpt.hidden)},
          {"activations_formula", "nblh(67+9ml/h)"},
          {"activations_bytes", estimate::textbook_activation_bytes(gpt.layers, shown.run.micro_batch,
                                                                    gpt.sequence_length, gpt.hidden, gpt.heads)}};
}

ordered_json stage_json(const Shown& shown, const StageMemory& memory) {
  const StageTraffic& traffic = shown.traffic[static_cast<size_t>(memory.stage)];
  ordered_json categories = ordered_json::object();
  for (const estimate::Item& item : memory.items) {
    categories[item.name] = as_json(item);
  }
  const auto wire_of = [](const StageTraffic& of) {
    ordered_json wire = ordered_json::array();
    for (const estimate::Item& item : of.items) {
      ordered_json entry = {{"what", item.name}, {"axis", item.axis}};
      entry.update(as_json(item));
      wire.push_back(std::move(entry));
    }
    return wire;
  };
  ordered_json object = {{"stage", memory.stage},
                         {"ranks", ranks_of_stage(shown, memory.stage)},
                         {"parameters", memory.parameters},
                         {"memory", categories},
                         {"model_state_bytes", memory.model_states()},
                         {"start_bytes", memory.start},
                         {"peak_bytes", memory.peak()},
                         {"wire", wire_of(traffic)},
                         {"comm_bytes", traffic.bytes()},
                         {"tied_bytes", traffic.tied_bytes}};
  if (!shown.compressed.empty()) {
    const StageTraffic& compressed = shown.compressed[static_cast<size_t>(memory.stage)];
    object["compressed_wire"] = wire_of(compressed);
    object["compressed_comm_bytes"] = compressed.bytes();
  }
  add_offload(object, shown.moves[static_cast<size_t>(memory.stage)]);
  return object;
}

ordered_json as_json(const Shown& shown) {
  const estimate::Run& run = shown.run;
  ordered_json object = {{"ranks", shown.ranks},
                         {"stages", run.stages},
                         {"data_ranks", run.data_ranks},
                         {"context_ranks", run.context_ranks},
                         {"tensor_ranks", run.tensor_ranks},
                         {"zero_stage", run.zero.stage},
                         {"type", precision::type_name(run.precision.compute)},
                         {"optimizer", optim::family_of(run.optimizer.rule)},
                         {"offload_optimizer", offload::word(run.offload.optimizer.place)},
                         {"offload_param", offload::word(run.offload.parameters.place)},
                         {"micro_batch", run.micro_batch},
                         {"accumulation", run.accumulation},
                         {"parameters", shown.parameters},
                         {"trained_parameters", shown.trained}};
  object["by_stage"] = ordered_json::array();
  for (const StageMemory& memory : shown.memory) {
    object["by_stage"].push_back(stage_json(shown, memory));
  }
  if (shown.is_gpt()) {
    object["textbook"] = textbook(shown);
  }
  const estimate::Need of_ranks = estimate::need_of(shown.memory, run.ranks_of_stage());
  object["peak_bytes"] = of_ranks.peak_of_a_rank;
  object["peak_bytes_of_all"] = of_ranks.peak_of_all;
  const estimate::Need need = shown.need();
  if (run.on_device) {
    object["host_bytes_of_all"] = need.peak_of_all;
  }
  object["memory_at_hand_bytes"] = shown.at_hand.bytes == estimate::MemoryAtHand::kUnlimited
                                       ? ordered_json(nullptr)
                                       : ordered_json(shown.at_hand.bytes);
  object["fits"] = estimate::fits(need, shown.at_hand);
  if (!shown.disks.empty()) {
    object["disks"] = ordered_json::array();
    for (const offload::Preflight& disk : shown.disks) {
      object["disks"].push_back(disk_json(disk));
    }
  }
  if (shown.measured) {
    const MeasuredRun& measured = *shown.measured;
    ordered_json& entry = object["measured"] = {{"steps", measured.steps}, {"peak_rss_bytes", measured.peak_rss_bytes}};
    if (measured.device_peak_bytes) {
      entry["device_peak_bytes"] = *measured.device_peak_bytes;
    }
    entry["peak_deviation_percent"] = deviation(shown.estimated_peak(), shown.measured_peak());
    if (measured.comm_bytes) {
      entry["comm_bytes"] = *measured.comm_bytes;
      entry["comm_deviation_percent"] = deviation(shown.of_first_steps().front().bytes(), *measured.comm_bytes);
    }
    entry["step_ms"] = measured.step_ms;
  }
  object["notes"] = shown.notes;
  return object;
}

// Steps after which the traffic repeats.
int64_t steps_of_round(const estimate::Run& run) {
  return run.averages() ? run.averaging.every : 1;
}

using Row = std::vector<std::string>;

// Aligns columns [first_number, last_number) right, the others left.
void print(const std::vector<Row>& rows, size_t first_number, size_t last_number) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string gap(widths[i] - row[i].size(), ' ');
      const bool is_number = i >= first_number && i <= last_number;
      line += concat(i == 0 ? "" : "  ", is_number ? gap : "", row[i], is_number ? "" : gap);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
}

std::string spoken(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

void print_heading(const Shown& shown) {
  const estimate::Run& run = shown.run;
  std::cout << concat(format_count(shown.parameters), " parameters, ",
                      shown.trained < shown.parameters ? concat(format_count(shown.trained), " trained, ") : "",
                      shown.ranks, shown.ranks == 1 ? " rank" : " ranks");
  if (run.stages * run.context_ranks * run.tensor_ranks > 1) {
    std::cout << concat(" = ", run.stages, run.stages == 1 ? " stage x " : " stages x ", run.data_ranks,
                        " data-parallel", run.context_ranks > 1 ? concat(" x ", run.context_ranks, " context") : "",
                        run.tensor_ranks > 1 ? concat(" x ", run.tensor_ranks, " tensor") : "");
  }
  std::cout << concat(", ZeRO ", run.zero.stage, ", ", precision::type_name(run.precision.compute), ", ",
                      optim::family_of(run.optimizer.rule), ", micro-batches of ", run.micro_batch, " x ",
                      run.accumulation);
  if (run.moves_states() || run.moves_parameters()) {
    const auto part = [](const char* what, offload::Place place) {
      return place == offload::Place::device
                 ? ""
                 : concat(", ", what, place == offload::Place::host ? " on the host" : " in files");
    };
    std::cout << part("states", run.offload.optimizer.place) << part("parameters", run.offload.parameters.place);
  }
  std::cout << "\n\n";
}

// True for categories of host memory of a rank on a GPU.
bool is_of_host(const Shown& shown, size_t category) {
  return shown.run.on_device &&
         (estimate::kCategories[category] == Category::data || estimate::kCategories[category] == Category::baseline);
}

// Prints one column per stage that differs from the one before.
void print_memory(const Shown& shown) {
  std::vector<const StageMemory*> columns;
  for (const StageMemory& memory : shown.memory) {
    if (columns.empty() || memory.peak() != columns.back()->peak() || memory.parameters != columns.back()->parameters) {
      columns.push_back(&memory);
    }
  }
  Row head = {shown.run.on_device ? "memory of a rank on its device" : "memory of a rank"};
  for (const StageMemory* memory : columns) {
    head.push_back(shown.run.stages == 1 ? "" : concat("stage ", memory->stage));
  }
  std::vector<Row> rows = {head};
  const StageMemory& largest = shown.largest();
  for (size_t i = 0; i < largest.items.size(); ++i) {
    if (is_of_host(shown, i)) {
      continue;
    }
    Row row = {spoken(largest.items[i].name)};
    for (const StageMemory* memory : columns) {
      row.push_back(format_bytes(memory->items[i].bytes));
    }
    const estimate::Item& item = largest.items[i];
    row.push_back(item.formula + (item.numbers.empty() ? "" : concat(" = ", item.numbers)));
    rows.push_back(std::move(row));
  }
  const auto add = [&](const std::string& name, const auto& number, const std::string& formula) {
    Row row = {name};
    for (const StageMemory* memory : columns) {
      row.push_back(format_bytes(number(*memory)));
    }
    row.push_back(formula);
    rows.push_back(std::move(row));
  };
  const auto elsewhere = [&](const StageMemory& m) { return shown.run.on_device ? m.always_on_host() : 0; };
  add("all while training", [&](const StageMemory& m) { return m.training() - elsewhere(m); }, "");
  add(
      "start", [&](const StageMemory& m) { return m.start - elsewhere(m); },
      shown.run.builds_on_host()
          ? std::string("parameters in their flat buffer, copied from the host")
          : concat(largest.frozen > 0 ? "trained " : "", "parameters twice, as built and in their flat buffer"));
  add("peak", [&](const StageMemory& m) { return m.peak() - elsewhere(m); }, "the larger of the two");
  print(rows, 1, columns.size());
  std::cout << concat("P ", largest.parameters, " parameters",
                      shown.run.stages > 1 ? concat(" of stage ", largest.stage) : "", ", F ", largest.flat,
                      " with the gaps of the flat buffer",
                      largest.frozen > 0 ? concat(", Z ", largest.frozen, " frozen") : "", ", N ",
                      shown.run.gradient_ranks(), " data-parallel ranks\n\n");
}

void print_traffic(const Shown& shown, const std::vector<StageTraffic>& of, const char* title) {
  std::vector<Row> rows = {{title}};
  for (const StageTraffic& traffic : of) {
    const std::string where = shown.run.stages > 1 ? concat("stage ", traffic.stage, ": ") : "";
    for (const estimate::Item& item : traffic.items) {
      rows.push_back({where + item.name, format_bytes(item.bytes), concat(item.formula, " = ", item.numbers)});
    }
    if (!traffic.items.empty()) {
      rows.push_back({where + "all", format_bytes(traffic.bytes()), concat(traffic.bytes(), " bytes")});
    }
    if (traffic.tied_bytes > 0) {
      rows.push_back(
          {where + "shared gradients", format_bytes(traffic.tied_bytes), "between stages, not in comm_bytes"});
    }
  }
  if (rows.size() > 1) {
    print(rows, 1, 1);
    std::cout << concat("A ", shown.run.accumulation, " micro-batches; ",
                        steps_of_round(shown.run) > 1
                            ? concat("the mean over rounds of ", steps_of_round(shown.run),
                                     " steps, of which the last one sends all; now and then another ")
                            : concat("every ", monitor::kStepsOfExchange, "th step another "),
                        of.front().step_time_bytes, " bytes of step times\n\n");
  }
}

void print_rest(const Shown& shown) {
  if (shown.is_gpt()) {
    const ordered_json book = textbook(shown);
    std::cout << concat("textbook: model 4nh(13+12h) = ", format_bytes(book.at("model_bytes").get<int64_t>()),
                        ", activations nblh(67+9ml/h) = ", format_bytes(book.at("activations_bytes").get<int64_t>()),
                        " (fp32, without embeddings; docs/memory.md)\n");
  }
  for (const offload::Preflight& disk : shown.disks) {
    for (const std::string& line : disk.lines) {
      std::cout << "disk: " << line << '\n';
    }
  }
  const estimate::Need need = shown.need();
  std::cout << concat(shown.ranks == 1 ? "the rank" : "all ranks together",
                      shown.run.on_device ? " on the host, with libtorch and data" : "", ": ",
                      format_bytes(need.peak_of_all));
  if (shown.at_hand.bytes != estimate::MemoryAtHand::kUnlimited) {
    std::cout << concat("; ", shown.at_hand.source, ' ', format_bytes(shown.at_hand.bytes),
                        estimate::fits(need, shown.at_hand) ? "" : ": may not fit");
  }
  std::cout << '\n';
  if (shown.measured) {
    const MeasuredRun& measured = *shown.measured;
    const auto compare = [&](const char* what, int64_t estimated, int64_t real) {
      const double off = deviation(estimated, real);
      std::cout << concat("measured over ", measured.steps, " steps: ", what, ' ', format_bytes(real), " (", real,
                          "), estimated ", format_bytes(estimated), ", ", off > 0 ? "+" : "", off, " %\n");
    };
    compare(measured.device_peak_bytes ? "peak of the largest rank on its device" : "peak of the largest rank",
            shown.estimated_peak(), shown.measured_peak());
    if (measured.comm_bytes) {
      compare("sent by rank 0 in a step", shown.of_first_steps().front().bytes(), *measured.comm_bytes);
    } else {
      std::cout << concat("not measured: what is sent in a step, because replicas average every ",
                          steps_of_round(shown.run), " steps\n");
    }
  }
  for (const std::string& note : shown.notes) {
    std::cout << "note: " << note << '\n';
  }
}

} // namespace

int show_estimate(const EstimateCommand& command, const Program& program) {
  Shown shown;
  std::vector<std::string> overrides = command.overrides;
  const auto files = command.measured_steps > 0 ? config::Files::must_exist : config::Files::may_be_absent;
  shown.config = with_device(config::read_run_file(command.run_file, overrides, files, program.types), command.run_file,
                             overrides, files, program.types);
  shown.ranks = ranks_of(shown.config, command.run_file.string(), command.ranks);
  plan::RunEstimate described = describe_run(shown.config, shown.ranks);
  shown.run = std::move(described.run);
  shown.parameters = described.parameters;
  shown.trained = described.trained;
  shown.notes = shown.config.notes;
  shown.notes.insert(shown.notes.end(), described.notes.begin(), described.notes.end());
  shown.memory = estimate::memory_of(shown.run);
  shown.traffic = estimate::traffic_of(shown.run);
  shown.moves = estimate::moves_of(shown.run);
  if (command.probe) {
    if (!uses_files(shown.run)) {
      throw InputError("estimate", "--probe measures the disks that files of offload are on, and nothing is in files",
                       R"(Say "device": "nvme" and "nvme_path" in zero_optimization.offload_optimizer.)");
    }
    shown.disks = offload::preflight(folder_uses(shown.run, shown.moves), shown.run.offload);
    try {
      check_files(shown.run);
    } catch (const InputError& refusal) {
      shown.notes.push_back(concat("with all its ranks on this host this run is refused: ", refusal.what()));
    }
  }
  if (shown.run.compressed().on()) {
    shown.compressed = estimate::traffic_of(shown.run, estimate::Step::compressed);
  }
  shown.at_hand = estimate::memory_at_hand();
  if (command.measured_steps > 0) {
    shown.measured = measure_run(command, shown.ranks, steps_of_round(shown.run));
  }
  if (command.json) {
    std::cout << as_json(shown).dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n';
    return 0;
  }
  print_heading(shown);
  print_memory(shown);
  print_offload(shown.run, shown.moves);
  print_traffic(
      shown, shown.traffic,
      shown.compressed.empty() ? "sent by a rank in a step" : "sent by a rank in a step that does not compress");
  if (!shown.compressed.empty()) {
    print_traffic(shown, shown.compressed, "sent by a rank in a step that compresses");
  }
  print_rest(shown);
  return 0;
}

} // namespace trireme::train
