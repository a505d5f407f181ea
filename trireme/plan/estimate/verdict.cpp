#include <trireme/plan/estimate/verdict.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <algorithm>

namespace trireme::estimate {
namespace {

bool exceeds(int64_t need, int64_t limit) {
  return static_cast<double>(need) > kMargin * static_cast<double>(limit);
}

int64_t mapped(int64_t bytes) {
  return bytes + kAddressSpace;
}

// What a rank has on its GPU, largest first.
std::string uses_on_device(const StageMemory& stage) {
  std::vector<const Item*> items;
  for (const Category category : kCategories) {
    if (category != Category::data && category != Category::baseline && stage.item(category).bytes > 0) {
      items.push_back(&stage.item(category));
    }
  }
  std::stable_sort(items.begin(), items.end(), [](const Item* a, const Item* b) { return a->bytes > b->bytes; });
  std::string text;
  for (const Item* const item : items) {
    text += concat(text.empty() ? "" : ", ", item->name, ' ', format_bytes(item->bytes));
  }
  if (const int64_t start = stage.start - stage.always_on_host(); start == stage.peak_on_device()) {
    text += concat("; while it is built ", format_bytes(start));
  }
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

void add_device(const std::vector<StageMemory>& stages, Need& need) {
  for (const StageMemory& stage : stages) {
    const int64_t least =
        std::max(stage.model_states() + stage.item(Category::activations).bytes, stage.start - stage.always_on_host());
    if (least > need.least_on_device) {
      need.least_on_device = least;
      need.on_device = uses_on_device(stage);
    }
    need.peak_on_device =
        std::max(need.peak_on_device,
                 kDeviceLibraries + static_cast<int64_t>(kDeviceGaps * static_cast<double>(stage.peak_on_device())));
  }
}

} // namespace

Need need_of(const std::vector<StageMemory>& stages, int64_t data_ranks) {
  Need need{.what = "model states and activations"};
  for (const StageMemory& stage : stages) {
    const int64_t least = stage.model_states() + stage.item(Category::activations).bytes;
    need.least_of_a_rank = std::max(need.least_of_a_rank, least);
    need.least_of_all += data_ranks * least;
    need.peak_of_a_rank = std::max(need.peak_of_a_rank, stage.peak());
    need.peak_of_all += data_ranks * stage.peak();
  }
  return need;
}

Need host_need_of(const std::vector<StageMemory>& stages, const std::vector<StageMoves>& moves, int64_t data_ranks) {
  Need need{.what = "states, parameters and activations on the host"};
  int64_t moved = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const int64_t least = moves[s].sure_host_peak();
    const int64_t peak = moves[s].host_peak() + stages[s].always_on_host();
    need.least_of_a_rank = std::max(need.least_of_a_rank, least);
    need.least_of_all += data_ranks * least;
    need.peak_of_a_rank = std::max(need.peak_of_a_rank, peak);
    need.peak_of_all += data_ranks * peak;
    moved += data_ranks * moves[s].sure_host_bytes();
  }
  if (need.least_of_all > moved) {
    need.what = "models in one piece, built on the host in fp32,";
  }
  return need;
}

Need need_of(const Run& run) {
  const StageLayouts layouts(run);
  const std::vector<StageMemory> stages = memory_of(layouts);
  if (!run.on_device) {
    return need_of(stages, run.ranks_of_stage());
  }
  Need need = host_need_of(stages, moves_of(layouts), run.ranks_of_stage());
  add_device(stages, need);
  return need;
}

std::string why_too_large(const Need& need, const MemoryAtHand& memory, int64_t ranks) {
  if (exceeds(mapped(need.least_of_a_rank), memory.process_bytes)) {
    return concat(need.what, " of a rank need ", format_bytes(need.least_of_a_rank), ", libraries and stacks ",
                  format_bytes(kAddressSpace), " of address space, a process may have ",
                  format_bytes(memory.process_bytes), " (ulimit -v)");
  }
  if (exceeds(need.least_of_all, memory.bytes)) {
    return concat(need.what, " of ", ranks, ranks == 1 ? " rank need " : " ranks need ",
                  format_bytes(need.least_of_all), ", ", memory.source, ' ', format_bytes(memory.bytes));
  }
  return "";
}

std::string why_too_large_on_device(const Need& need, const MemoryAtHand& memory) {
  return exceeds(need.least_on_device, memory.device_bytes)
             ? concat("a rank needs ", format_bytes(need.least_on_device), " of its GPU (", need.on_device,
                      "), which has ", format_bytes(memory.device_bytes), " free")
             : "";
}

bool fits(const Need& need, const MemoryAtHand& memory) {
  return need.peak_on_device <= memory.device_bytes && mapped(need.peak_of_a_rank) <= memory.process_bytes &&
         need.peak_of_all <= memory.bytes;
}

} // namespace trireme::estimate
