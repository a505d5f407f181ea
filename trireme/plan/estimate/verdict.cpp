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
  return run.on_device ? host_need_of(memory_of(layouts), moves_of(layouts), run.ranks_of_stage())
                       : need_of(memory_of(layouts), run.ranks_of_stage());
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

bool fits(const Need& need, const MemoryAtHand& memory) {
  return mapped(need.peak_of_a_rank) <= memory.process_bytes && need.peak_of_all <= memory.bytes;
}

} // namespace trireme::estimate
