#include <trireme/engine/zero_memory.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/what_stays.h>
#include <trireme/plan/run_estimate.h>
#include <trireme/shards/zero/unit.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>

namespace trireme::engine {
namespace {

using estimate::Category;
using offload::Place;

constexpr int64_t kNoUnit = -1;

// Describes a module by a layer for each unit and one for the parameters between them: layouts need no more.
class Described {
 public:
  explicit Described(torch::nn::Module& model) {
    for (zero::Unit* const unit : zero::units_of(model)) { // the order of zero::ModelUnits
      add_unit(unit->module());
      for (zero::Unit* const tile : zero::tiles_of(unit->module())) {
        add_unit(tile->module());
      }
    }
    std::set<const void*> seen;
    for (const auto& item : model.named_parameters()) {
      const at::Tensor& parameter = item.value();
      if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      const auto found = unit_of_.find(parameter.unsafeGetTensorImpl());
      const int64_t own = found == unit_of_.end() ? kNoUnit : found->second;
      add(own, item.key(), parameter);
      built_bytes += parameter.numel() * static_cast<int64_t>(parameter.element_size());
      if (own != kNoUnit) {
        unit_sizes_[own] += parameter.numel();
      }
    }
  }
  int64_t largest_unit() const {
    int64_t most = 0;
    for (const auto& [unit, size] : unit_sizes_) {
      most = std::max(most, size);
    }
    return most;
  }

  estimate::Model model;
  int64_t built_bytes = 0; // of the model as built

 private:
  void add_unit(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : zero::own_parameters(module)) {
      unit_of_.emplace(parameter.unsafeGetTensorImpl(), units_);
    }
    ++units_;
  }
  void add(int64_t unit, const std::string& name, const at::Tensor& parameter) {
    const bool goes_on =
        unit == kNoUnit ? !model.layers.empty() && !model.layers.back().is_unit : layers_of_units_.count(unit) > 0;
    if (!goes_on) {
      model.layers.push_back({.name = name, .type = "", .is_unit = unit != kNoUnit});
      layers_of_units_[unit] = model.layers.size() - 1;
    }
    estimate::Layer& layer = model.layers[unit == kNoUnit ? model.layers.size() - 1 : layers_of_units_.at(unit)];
    layer.parameters.push_back(
        {.name = name,
         .numel = parameter.numel(),
         .whole = false,
         .columns = parameter.dim() > 1 ? parameter.numel() / std::max<int64_t>(1, parameter.size(0)) : 0,
         .trained = parameter.requires_grad()});
  }

  int64_t units_ = 0;
  std::map<const void*, int64_t> unit_of_;
  std::map<int64_t, size_t> layers_of_units_;
  std::map<int64_t, int64_t> unit_sizes_;
};

estimate::Run run_of(const estimate::Model& model, int zero_stage, int64_t ranks, const ZeroMemoryOptions& options,
                     Place states, Place parameters) {
  estimate::Run run;
  plan::set_engine(options.config, run);
  run.explains = false;
  run.model = model;
  run.bounds = {0, std::ssize(model.layers)};
  run.data_ranks = ranks;
  const config::BatchKeys& batch = options.config.batch;
  run.accumulation = batch.train || batch.micro ? options.config.batch_for(ranks).accumulation : 1;
  run.zero.stage = zero_stage;
  run.zero.shard_size = options.config.zero.shard_size;
  run.on_device = options.on_gpu;
  run.offload.optimizer.place = states;
  run.offload.parameters.place = parameters;
  return run;
}

ZeroMemory::Row row_of(const Described& described, const ZeroMemory& of, const ZeroMemoryOptions& options, Place states,
                       Place parameters, bool zero_init) {
  ZeroMemory::Row row{.states = states, .parameters = parameters, .zero_init = zero_init};
  const estimate::Run run =
      run_of(described.model, of.zero_stage, of.ranks_per_host * of.hosts, options, states, parameters);
  const estimate::StageLayouts layouts(run);
  const estimate::StageMemory memory = estimate::memory_of(layouts).front();
  const estimate::StageMoves moves = estimate::moves_of(layouts).front();
  row.parameter_bytes = memory.item(Category::parameters).bytes;
  row.gradient_bytes = memory.item(Category::gradients).bytes;
  row.state_bytes = memory.item(Category::optimizer_states).bytes;
  row.master_bytes = memory.item(Category::masters).bytes;
  row.buffer_bytes = memory.item(Category::communication_buffers).bytes + memory.item(Category::offload_buffers).bytes;
  row.start_bytes = memory.start - memory.always_on_host();
  estimate::Run noted = run;
  if (parameters != Place::device && described.largest_unit() == 0) {
    noted.offload.parameters.place = Place::device;
    row.notes.push_back(
        "offload_param moves nothing: no module is zero::Sharded. Make large ones zero::Sharded, or the model a list "
        "of layers");
  }
  for (std::string& note :
       estimate::what_stays(noted, estimate::elsewhere_of(noted, {&layouts.of(0)}, {&layouts.frozen(0)}))) {
    row.notes.push_back(std::move(note));
  }
  const bool whole_at_start = of.zero_stage < 3 || !zero_init; // as the program has built it
  const int64_t built = whole_at_start ? described.built_bytes : 0;
  const int64_t of_rank = of.on_gpu ? std::max(moves.host_bytes(), built) : std::max(row.peak_bytes(), built);
  row.host_bytes = of.ranks_per_host * of_rank;
  row.file_bytes = of.ranks_per_host * moves.disk_bytes();
  return row;
}

ZeroMemory estimate_memory(torch::nn::Module& model, int zero_stage, int64_t ranks_per_host, int64_t hosts,
                           const ZeroMemoryOptions& options) {
  if (ranks_per_host < 1 || hosts < 1) {
    throw InputError(
        "estimate",
        concat("expected at least one rank and one host, got ", ranks_per_host, " ranks on each of ", hosts, " hosts"),
        "Give ranks_per_host >= 1 and hosts >= 1.");
  }
  const Described described(model);
  ZeroMemory out{.zero_stage = zero_stage, .ranks_per_host = ranks_per_host, .hosts = hosts, .on_gpu = options.on_gpu};
  out.parameters = described.model.parameters();
  out.trained = described.model.trained_parameters();
  out.largest_unit = described.largest_unit();
  struct Places {
    Place states;
    Place parameters;
  };
  std::vector<Places> places = {
      {Place::nvme, Place::device}, {Place::host, Place::device}, {Place::device, Place::device}};
  if (zero_stage == 3) {
    places.insert(places.begin(), {{Place::nvme, Place::nvme}, {Place::host, Place::host}});
  }
  for (const Places& place : places) {
    if (!options.on_gpu && (place.states == Place::host || place.parameters == Place::host)) {
      continue; // would move nothing
    }
    for (const bool zero_init : zero_stage == 3 ? std::vector{true, false} : std::vector{false}) {
      out.rows.push_back(row_of(described, out, options, place.states, place.parameters, zero_init));
    }
  }
  std::stable_sort(out.rows.begin(), out.rows.end(),
                   [](const ZeroMemory::Row& a, const ZeroMemory::Row& b) { return a.peak_bytes() < b.peak_bytes(); });
  return out;
}

} // namespace

std::string ZeroMemory::table() const {
  std::ostringstream out;
  out << concat("parameters, gradients and optimizer states, ZeRO ", zero_stage, ", ", hosts,
                hosts == 1 ? " host x " : " hosts x ", ranks_per_host,
                ranks_per_host == 1 ? " rank: " : " ranks: ", format_count(parameters), " parameters",
                trained < parameters ? concat(", ", format_count(trained), " of them trained") : "",
                largest_unit > 0 ? concat(", ", format_count(largest_unit), " in the largest unit") : "", '\n');
  out << "  per host  per " << (on_gpu ? "GPU " : "rank") << "  in files of a host  options\n";
  std::vector<std::string> all_notes;
  for (const Row& row : rows) {
    out << std::right << std::setw(10) << format_bytes(row.host_bytes) << std::setw(10)
        << format_bytes(row.peak_bytes()) << std::setw(20) << (row.file_bytes > 0 ? format_bytes(row.file_bytes) : "-")
        << "  ";
    if (zero_stage == 3) {
      out << concat("offload_param=", offload::word(row.parameters), ", ");
    }
    out << concat("offload_optimizer=", offload::word(row.states),
                  zero_stage == 3 ? concat(", zero_init=", row.zero_init ? 1 : 0) : "", '\n');
    for (const std::string& note : row.notes) {
      if (std::find(all_notes.begin(), all_notes.end(), note) == all_notes.end()) {
        all_notes.push_back(note);
      }
    }
  }
  for (const std::string& note : all_notes) {
    out << "note: " << note << '\n';
  }
  return out.str();
}

ZeroMemory estimate_zero2_memory(torch::nn::Module& model, int64_t ranks_per_host, int64_t hosts,
                                 const ZeroMemoryOptions& options) {
  return estimate_memory(model, 2, ranks_per_host, hosts, options);
}

ZeroMemory estimate_zero3_memory(torch::nn::Module& model, int64_t ranks_per_host, int64_t hosts,
                                 const ZeroMemoryOptions& options) {
  return estimate_memory(model, 3, ranks_per_host, hosts, options);
}

} // namespace trireme::engine
