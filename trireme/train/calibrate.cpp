#include <trireme/train/calibrate.h>

#include <trireme/train/launch_options.h>

#include <trireme/base/cores.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/launch/launcher.h>
#include <trireme/memory/aio/probe.h>
#include <trireme/plan/estimate/machine_memory.h>
#include <trireme/plan/fit_block.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>

namespace trireme::train {
namespace {

using nlohmann::json;

// Starts ranks that take the measurements of `spec` and returns rank 0's results.
json measured(const json& spec, int ranks, const std::vector<std::pair<std::string, std::string>>& variables,
              const Program& program) {
  const ScratchFolder scratch(make_scratch_folder("trireme-plan"));
  const std::filesystem::path file = scratch.path / "measure.json";
  write_file_atomically(file, spec.dump());
  launch::LaunchOptions options;
  options.ranks = ranks;
  options.command = rank_words(program);
  options.command.insert(options.command.end(), {"measure-machine", file.string()});
  options.extra_env = variables;
  options.log_dir = scratch.path / "logs";
  if (const int status = launch::run(options); status != 0) {
    throw Error("plan", concat("the ranks that measure ended with exit status ", status));
  }
  return json::parse(read_file(std::filesystem::path(file) += ".result"));
}

// Merges points that are near each other; sizes increase.
plan::SpeedCurve curve_of(const json& points) {
  std::vector<plan::SpeedCurve::Point> sorted;
  for (const json& point : points) {
    sorted.push_back({point.at(0), point.at(1)});
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.size < b.size; });
  plan::SpeedCurve curve;
  for (size_t i = 0; i < sorted.size();) {
    plan::SpeedCurve::Point mean;
    size_t count = 0;
    for (const double first = sorted[i].size; i < sorted.size() && sorted[i].size <= 1.1 * first; ++i, ++count) {
      mean.size += sorted[i].size;
      mean.flops += sorted[i].flops;
    }
    curve.points.push_back({mean.size / static_cast<double>(count), mean.flops / static_cast<double>(count)});
  }
  return curve;
}

// Fits latency and 1 / bandwidth, minimizing the squared relative errors of the gathers' times steps latency + share
// bytes / bandwidth.
plan::Level fitted(const json& rows, int ranks, const std::string& name) {
  const double steps = std::bit_width(static_cast<unsigned>(ranks - 1));
  const double share = 1 - 1.0 / ranks;
  double aa = 0, ab = 0, bb = 0, ay = 0, by = 0;
  for (const json& row : rows) {
    const double t = row.at(1);
    const double a = steps / t;
    const double b = share * row.at(0).get<double>() / t;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    ay += a;
    by += b;
  }
  const double determinant = aa * bb - ab * ab;
  const double latency = std::max(0.0, (ay * bb - by * ab) / determinant);
  const double inverse = latency > 0 ? (by * aa - ay * ab) / determinant : by / bb;
  return {name, ranks, 1 / std::max(inverse, 1e-13), latency};
}

// The median over the sizes.
double all_reduce_gathers(const json& rows) {
  std::vector<double> ratios;
  for (const json& row : rows) {
    ratios.push_back(row.at(2).get<double>() / row.at(1).get<double>());
  }
  std::nth_element(ratios.begin(), ratios.begin() + std::ssize(ratios) / 2, ratios.end());
  return std::clamp(ratios[ratios.size() / 2], 0.5, 2.0);
}

plan::BlockTime block_time(const json& row) {
  return {row.at(0), row.at(1), row.at(2)};
}

// The working directory's disk; none if its files are in memory.
plan::Disk measured_disk() {
  const std::string filesystem = aio::filesystem_of(".");
  if (filesystem.empty() || aio::is_memory(filesystem)) {
    return {};
  }
  const aio::Probe probe = aio::probe(".", {}, 128 << 20);
  log::info("files here (", filesystem, ", ", probe.engine, "): reads ", probe.read_bytes_per_s / 1e9, " and writes ",
            probe.write_bytes_per_s / 1e9, " GB/s");
  return {probe.free_bytes, probe.read_bytes_per_s, probe.write_bytes_per_s};
}

} // namespace

plan::Cluster calibrate(const plan::Job& job, int ranks, const Program& program) {
  constexpr int64_t kFewestParameters = 1'000'000, kMostParameters = 50'000'000;
  const models::TransformerShape& model = job.model;
  const int64_t parameters = std::clamp(job.base.model.parameters(), kFewestParameters, kMostParameters);
  const int processors = std::min(ranks, usable_cores());
  log::info("measuring this machine with ", ranks, ranks == 1 ? " rank" : " ranks",
            ": half a minute for a few million parameters, minutes for many more");
  const json compute = measured({{"compute",
                                  {{"family", model.is_gated() ? "llama" : "gpt"},
                                   {"hidden", model.hidden},
                                   {"heads", model.heads},
                                   {"kv_heads", model.kv_heads},
                                   {"head_dim", model.head_dim},
                                   {"intermediate", model.intermediate},
                                   {"attention_bias", model.attention_bias},
                                   {"attention_output_bias", model.attention_output_bias},
                                   {"mlp_bias", model.mlp_bias},
                                   {"qk_norm", model.qk_norm},
                                   {"length", model.sequence_length},
                                   {"vocabulary", model.vocab_size},
                                   {"dropout", model.dropout},
                                   {"type", precision::type_name(job.base.precision.compute)},
                                   {"parameters", parameters}}}},
                                processors, {}, program);
  plan::Cluster out;
  out.name = "localhost";
  out.ranks_per_host = ranks;
  out.processors = processors;
  out.on_host = true;
  out.overlap = 0; // waiting ranks do the work, on the cores that compute
  const estimate::MemoryAtHand memory = estimate::memory_at_hand();
  out.memory_bytes = std::min(memory.bytes == estimate::MemoryAtHand::kUnlimited ? memory.bytes : memory.bytes / ranks,
                              memory.process_bytes);
  out.products = curve_of(compute.at("products"));
  for (const plan::SpeedCurve::Point& point : out.products.points) {
    out.peak_flops = std::max(out.peak_flops, point.flops);
  }
  out.memory_bandwidth = compute.at("optimizer_bytes_per_s");
  const double element = job.base.parameter_bytes();
  const auto length = static_cast<double>(model.sequence_length);
  const double queries = length * static_cast<double>(model.query_width());
  out.pass_bandwidth = element * compute.at("passes_elements").get<double>() / compute.at("passes_s").get<double>();
  const bool matrix = model.dropout > 0;
  const double products = matrix ? 6 : 3.5; // products of 2 L^2 H, with half weight below the diagonal
  // Beside its products attention reads queries, keys and values and writes the results; backward twice as much.
  const double passes = 6 * (queries + length * static_cast<double>(model.key_width()));
  const double beside =
      (passes + (matrix ? 16 * length * length * static_cast<double>(model.heads) : 0)) * element / out.pass_bandwidth;
  const double attention =
      std::max(compute.at("attention_s").get<double>() - beside, 0.3 * compute.at("attention_s").get<double>());
  const double speed = std::min(out.peak_flops, products * 2 * length * queries / attention);
  out.attention.points = {{1, speed}};
  const json& blocks = compute.at("blocks");
  log::info("measured a block of ", model.is_gated() ? "Llama" : "GPT", " with ", blocks.at(0).at(3).get<int64_t>(),
            " parameters");
  plan::fit_block({block_time(blocks.at(0)), block_time(blocks.at(1)), block_time(blocks.at(2))}, job, out);
  if (ranks > 1) {
    for (const char* backend : {"gloo", "shm"}) { // shared memory comes last: ranks of one host use it
      const json rows = measured({{"bytes", {4 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20}}}, ranks,
                                 {{"TRIREME_BACKEND", backend}}, program)
                            .at("collectives");
      out.levels = {fitted(rows, ranks, "inside_host")};
      out.all_reduce_gathers = all_reduce_gathers(rows);
      log::info("all-gather of ", ranks, " ranks over ", backend, ": ", out.levels.front().latency * 1e6, " us and ",
                out.levels.front().bandwidth / 1e9, " GB/s a rank; an all-reduce takes ", out.all_reduce_gathers,
                " of them");
    }
  }
  out.disk = measured_disk();
  return out;
}

} // namespace trireme::train
