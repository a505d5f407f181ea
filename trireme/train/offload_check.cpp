#include <trireme/train/offload_check.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/plan/estimate/machine_memory.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/stage_layouts.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iomanip>
#include <iostream>

namespace trireme::train {
namespace {

using estimate::Item;
using estimate::StageMoves;
using estimate::Way;
using nlohmann::ordered_json;

bool is_of_parameters(const Item& item) {
  return item.name.find("parameters") != std::string::npos || item.name == estimate::kUnits;
}

offload::KindUse use_of(const StageMoves& moves, bool parameters) {
  offload::KindUse use;
  for (const Item& item : moves.in_files) {
    use.bytes += is_of_parameters(item) == parameters ? item.bytes : 0;
  }
  for (const Item& item : moves.moved) {
    const int64_t bytes = item.name != estimate::kActivations && is_of_parameters(item) == parameters ? item.bytes : 0;
    use.read_bytes += item.axis == estimate::way_name(Way::from_files) ? bytes : 0;
    use.write_bytes += item.axis == estimate::way_name(Way::to_files) ? bytes : 0;
    const int64_t of_states = item.name == estimate::kMovedStates ? bytes : 0;
    use.state_read_bytes += item.axis == estimate::way_name(Way::from_files) ? of_states : 0;
    use.state_write_bytes += item.axis == estimate::way_name(Way::to_files) ? of_states : 0;
  }
  use.start_bytes = parameters ? moves.built_parameters : moves.initial_states;
  (parameters ? use.building_bytes : use.gradient_bytes) =
      parameters ? moves.building_bytes() : moves.gradient_file_bytes();
  return use;
}

std::string spoken_way(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

void print_items(const std::string& heading, const std::vector<Item>& items, bool with_way) {
  if (items.empty()) {
    return;
  }
  std::cout << heading << '\n';
  for (const Item& item : items) {
    std::cout << "  " << std::left << std::setw(26) << item.name.substr(0, 26) << std::right << std::setw(9)
              << format_bytes(item.bytes) << "  " << (with_way ? concat(spoken_way(item.axis), ": ") : "")
              << item.formula << (item.numbers.empty() ? "" : concat(" = ", item.numbers)) << '\n';
  }
}

ordered_json items_json(const std::vector<Item>& items) {
  ordered_json out = ordered_json::array();
  for (const Item& item : items) {
    out.push_back({{"what", item.name}, {"formula", item.formula}, {"numbers", item.numbers}, {"bytes", item.bytes}});
    if (!item.axis.empty()) {
      out.back()["way"] = item.axis;
    }
  }
  return out;
}

} // namespace

std::vector<offload::FolderUse> folder_uses(const estimate::Run& run, const std::vector<StageMoves>& moves,
                                            int64_t first, int64_t count) {
  std::vector<offload::FolderUse> folders;
  for (const StageMoves& stage : moves) {
    const int64_t begin = std::max(first, stage.stage * run.ranks_of_stage());
    const int64_t end = std::min(first + count, (stage.stage + 1) * run.ranks_of_stage());
    if (begin < end) {
      offload::add_use(folders, run.offload, use_of(stage, false), use_of(stage, true), end - begin,
                       {run.activations.nvme_path, stage.activation_bytes(), stage.moved_activations()});
    }
  }
  return folders;
}

std::vector<offload::FolderUse> folder_uses(const estimate::Run& run, const std::vector<StageMoves>& moves) {
  return folder_uses(run, moves, 0, run.stages * run.ranks_of_stage());
}

bool uses_files(const estimate::Run& run) {
  return run.offload.uses_files() || run.activations.uses_nvme();
}

void check_files(const estimate::Run& run) {
  if (!uses_files(run)) {
    return;
  }
  const estimate::StageLayouts layouts(run);
  const std::vector<StageMoves> moves = estimate::moves_of(layouts);
  const std::vector<estimate::StageMemory> memory = estimate::memory_of(layouts);
  int64_t needed = 0;   // always
  int64_t at_start = 0; // before there are states
  for (const StageMoves& of : moves) {
    const estimate::StageMemory& stage = memory[static_cast<size_t>(of.stage)];
    needed += run.ranks_of_stage() * (run.on_device ? of.sure_host_bytes() + stage.always_on_host() : stage.peak());
    at_start += run.ranks_of_stage() * of.host_at_start;
  }
  const int64_t memory_bytes = estimate::memory_at_hand().bytes;
  offload::check_room(folder_uses(run, moves), run.offload,
                      at_start > memory_bytes ? 0 : std::max<int64_t>(0, memory_bytes - needed), run.on_device);
}

std::vector<std::string> look_at_disks(const estimate::Run& run, int64_t first, int64_t count) {
  std::vector<std::string> lines;
  const std::vector<offload::FolderUse> folders = folder_uses(run, estimate::moves_of(run), first, count);
  offload::check_room(folders, run.offload, std::nullopt,
                      run.on_device); // its memory is unknown, or only known to the host that starts the ranks
  for (const offload::Preflight& disk : offload::preflight(folders, run.offload)) {
    lines.insert(lines.end(), disk.lines.begin(), disk.lines.end());
  }
  return lines;
}

ordered_json disk_json(const offload::Preflight& preflight) {
  return {{"folder", preflight.use.folder.string()},
          {"filesystem", preflight.disk.filesystem},
          {"direct", preflight.disk.direct},
          {"alignment", preflight.disk.alignment},
          {"engine", preflight.disk.engine},
          {"free_bytes", preflight.disk.free_bytes},
          {"file_bytes", preflight.use.most_bytes()},
          {"start_file_bytes", preflight.use.bytes_at_start()},
          {"activation_file_bytes", preflight.use.activation_bytes},
          {"read_bytes_per_s", preflight.disk.read_bytes_per_s},
          {"write_bytes_per_s", preflight.disk.write_bytes_per_s},
          {"read_bytes", preflight.use.read_bytes},
          {"write_bytes", preflight.use.write_bytes},
          {"start_bytes", preflight.use.start_bytes},
          {"read_ms", 1e3 * preflight.read_seconds},
          {"write_ms", 1e3 * preflight.write_seconds},
          {"waited_ms", 1e3 * preflight.waited_seconds}};
}

void print_offload(const estimate::Run& run, const std::vector<StageMoves>& moves) {
  for (const StageMoves& stage : moves) {
    const std::string of = run.stages > 1 ? concat("stage ", stage.stage, ": ") : "";
    print_items(of + "on the host of a rank's device", stage.on_host, false);
    if (stage.host_at_start > stage.host_bytes()) {
      std::cout << of << "at the start a model in one piece is built there in fp32, which takes more: "
                << format_bytes(stage.host_at_start) << '\n';
    }
    print_items(of + "in files of a rank", stage.in_files, false);
    print_items(of + "in files of a rank for a time", stage.in_files_at_times, false);
    print_items(of + "moved by a rank in a step", stage.moved, true);
    if (!stage.moved.empty()) {
      std::cout << "M elements that are moved, A micro-batches\n\n";
    }
  }
}

void add_offload(ordered_json& stage, const StageMoves& moves) {
  if (moves.disk_bytes() > 0) {
    stage["in_files_at_times"] = items_json(moves.in_files_at_times);
    stage["disk_bytes"] = moves.disk_bytes();
  }
  if (moves.moved.empty()) {
    return;
  }
  stage["on_host"] = items_json(moves.on_host);
  stage["in_files"] = items_json(moves.in_files);
  stage["moved"] = items_json(moves.moved);
  stage["host_bytes"] = moves.host_bytes();
  stage["host_start_bytes"] = moves.host_at_start;
  stage["file_bytes"] = moves.file_bytes();
  for (const Way way : estimate::kWays) {
    stage[concat(estimate::way_name(way), "_bytes")] = moves.bytes(way);
  }
}

} // namespace trireme::train
