#include <trireme/train/join_traces.h>

#include <trireme/train/clock_offset.h>

#include <trireme/base/log.h>
#include <trireme/comm/recorder.h>
#include <trireme/monitor/chrome_trace.h>

#include <torch/utils.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme::train {

// Collectives come from the recorder, which is always on.
void join_traces(comm::World& world, const std::filesystem::path& folder) {
  for (const comm::Record& record : comm::Recorder::process().records()) {
    if (record.finished_us > 0) {
      const int64_t begin = comm::Recorder::process().begin_us();
      monitor::tracer().add(monitor::Lane::communication,
                            record.what.empty() ? record.op : concat(record.op, ' ', record.what),
                            (begin + record.queued_us) * 1000, (begin + record.finished_us) * 1000, record.bytes);
    }
  }
  monitor::tracer().stop();
  monitor::tracer().set_clock_offset_ns(monitor::clock_offset_ns(ask_clock_of_rank_0(world.group())));
  const std::filesystem::path own = folder / monitor::trace_part_name(world.rank());
  const auto unless_it_fails = [](const std::function<void()>& write) {
    try {
      write();
      return true;
    } catch (const Error& error) {
      log::warning("a trace was not written: ", error.what());
      return false;
    }
  };
  at::Tensor missing = torch::tensor({unless_it_fails([&] { monitor::tracer().write(own); }) ? 0 : 1}, torch::kInt64);
  world.group().all_reduce(missing, comm::ReduceOp::sum, "trace").wait();
  if (const auto ranks = missing.item<int64_t>(); ranks > 0 && world.rank() == 0) {
    log::warning("there is no trace: ", ranks, ranks == 1 ? " rank" : " ranks", " could not write theirs; see ",
                 (folder / "logs").string());
  }
  at::Tensor unmerged = torch::zeros({1}, torch::kInt64);
  const std::filesystem::path whole = folder / "trace.json";
  if (world.rank() == 0 && missing.item<int64_t>() == 0) {
    std::vector<std::filesystem::path> parts;
    for (int rank = 0; rank < world.size(); ++rank) {
      parts.push_back(folder / monitor::trace_part_name(rank));
    }
    if (unless_it_fails([&] { monitor::merge_traces(parts, whole); })) {
      log::info("trace: ", whole.string(), " (open it in ui.perfetto.dev)");
    } else {
      unmerged.fill_(1);
      log::warning("the traces of the ranks stay in ", folder.string());
    }
  }
  world.group().all_reduce(unmerged, comm::ReduceOp::sum, "trace").wait();
  if (unmerged.item<int64_t>() == 0) {
    std::error_code error;
    std::filesystem::remove(own, error);
  }
}

} // namespace trireme::train
