#include <trireme/plan/estimate/moves.h>

#include <trireme/base/error.h>
#include <trireme/memory/aio/options.h>
#include <trireme/memory/offload/ratio.h>
#include <trireme/optim/returning.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/gather_plan.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/said.h>
#include <trireme/shards/bucket/pinned_blocks.h>
#include <trireme/shards/bucket/returning.h>
#include <trireme/shards/bucket/shard_plan.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

namespace trireme::estimate {
namespace {

using offload::Place;

constexpr int64_t kOnDevice = 1 + bucket::kReturningParts; // shards that are stepped or returned

int64_t power_of_two(int64_t bytes) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

// The largest buckets of these sizes, at most `most`.
FileBuffers largest_of(std::vector<int64_t> sizes, int64_t most) {
  const int64_t count = std::min(static_cast<int64_t>(std::ssize(sizes)), most);
  std::partial_sort(sizes.begin(), sizes.begin() + count, sizes.end(), std::greater<>());
  FileBuffers out{count, 0, count == std::ssize(sizes)};
  for (int64_t i = 0; i < count; ++i) {
    out.bytes += sizes[static_cast<size_t>(i)];
    out.pinned_bytes += power_of_two(sizes[static_cast<size_t>(i)]);
  }
  return out;
}

// Adds `count` equal sizes, but no more than largest_of(sizes, most) needs.
void add_sizes(std::vector<int64_t>& sizes, int64_t size, int64_t count, int64_t most) {
  sizes.insert(sizes.end(), static_cast<size_t>(std::min(count, most + 1)), size);
}

int64_t sum(const std::vector<Item>& items, const std::string& axis = "") {
  int64_t bytes = 0;
  for (const Item& item : items) {
    bytes += axis.empty() || item.axis == axis ? item.bytes : 0;
  }
  return bytes;
}

constexpr const char* kParameters = "parameters";
constexpr const char* kGradients = "gradients";
constexpr const char* kBuilding = "modules as they are built";

int64_t named(const std::vector<Item>& items, const std::string& name, const std::string& axis = "") {
  int64_t bytes = 0;
  for (const Item& item : items) {
    bytes += item.name == name && (axis.empty() || item.axis == axis) ? item.bytes : 0;
  }
  return bytes;
}

using Layouts = std::vector<const bucket::FlatLayout*>;

// Number of buckets, from the front, whose masters and states are offloaded.
int64_t moved_buckets(const Run& run, const bucket::FlatLayout& layout) {
  if (!run.moves_states()) {
    return 0;
  }
  if (!run.on_device) {
    return std::ssize(layout.buckets());
  }
  return std::ranges::count_if(layout.buckets(), [&](const bucket::Bucket& bucket) {
    return offload::is_moved(bucket.begin, bucket.end, layout.numel(), run.offload.optimizer.ratio);
  });
}

void add_states(const Run& run, const bucket::FlatLayout& layout, std::vector<int64_t>& in_files, Elsewhere& out) {
  const bool files = run.offload.optimizer.place == Place::nvme;
  const int64_t count = moved_buckets(run, layout);
  const int64_t states = run.states();
  out.state_buckets += count;
  for (int64_t b = 0; b < count; ++b) {
    const bucket::Bucket& bucket = layout.buckets()[b];
    const int64_t each = bucket.numel() / run.shard_ranks();
    const bool stays_there =
        run.moves_parameters() && bucket.unit != bucket::TensorInfo::kNoUnit; // a parameter in fp32 is its own master
    const int64_t master = run.precision.has_masters() || (run.on_device && !stays_there) ? 4 * each : 0;
    const int64_t scales = run.scale_bytes(each);
    out.elements += each;
    out.state_bytes += states * (run.state_bytes() * each + scales);
    out.master_bytes += master;
    out.largest_elements = std::max(out.largest_elements, each);
    const bool is_cut = !run.on_device || run.offload.optimizer.ratio >= 1; // a ratio counts whole buckets
    for (const auto& [elements, chunks] : files ? chunks_of(run, layout, b, is_cut) : std::vector<bucket::ChunkRun>()) {
      const int64_t in_file =
          aio::round_up(master > 0 ? 4 * elements : 0) +
          states * (aio::round_up(run.state_bytes() * elements) + aio::round_up(run.scale_bytes(elements)));
      if (in_file > 0) {
        out.state_file_bytes += chunks * in_file;
        add_sizes(in_files, in_file, chunks, run.offload.optimizer.buffer_count);
      }
    }
    if (run.on_device) {
      out.state_pieces.push_back(master);
      for (int64_t state = 0; state < states; ++state) {
        out.state_pieces.push_back(run.state_bytes() * each);
      }
      for (int64_t state = 0; state < states && scales > 0; ++state) {
        out.state_pieces.push_back(scales);
      }
      if (!run.gradients_in_files()) {
        out.gradient_pieces.push_back(run.gradient_bytes() * each);
      }
    }
  }
}

void add_states(const Run& run, const Layouts& layouts, Elsewhere& out) {
  std::vector<int64_t> in_files;
  for (const bucket::FlatLayout* const layout : layouts) {
    add_states(run, *layout, in_files, out);
  }
  out.state_buffers = largest_of(std::move(in_files), run.offload.optimizer.buffer_count);
}

struct InMemory {
  int64_t elements = 0; // kept in memory by max_in_cpu
  std::vector<int64_t> in_files = {};
  std::vector<int64_t> stepped = {}; // on the GPU
};

void add_parameters(const Run& run, const bucket::FlatLayout& layout, bool is_trained, InMemory& sums, Elsewhere& out) {
  const int64_t e = run.parameter_bytes();
  const bool files = run.offload.parameters.place == Place::nvme;
  const int64_t state_buckets = moved_buckets(run, layout);
  for (int64_t b = 0; b < std::ssize(layout.buckets()); ++b) {
    const bucket::Bucket& bucket = layout.buckets()[b];
    if (bucket.unit == bucket::TensorInfo::kNoUnit) {
      continue;
    }
    const int64_t each = bucket.numel() / run.shard_ranks();
    if (run.on_device && is_trained && b >= state_buckets) {
      sums.stepped.push_back(each);
    }
    out.parameters += each;
    if (!files) {
      out.parameter_pieces.push_back(e * each);
      continue;
    }
    if (sums.elements + each <= run.offload.parameters.max_in_cpu) {
      sums.elements += each;
      out.beside_kept_parameters += power_of_two(e * each) - e * each;
      continue;
    }
    out.parameters_in_files += each;
    const int64_t bytes = sums.in_files.emplace_back(aio::round_up(e * each));
    out.parameter_file_bytes += bytes;
    out.stepped_file_bytes += is_trained ? bytes : 0;
  }
}

void add_parameters(const Run& run, const Layouts& trained, const Layouts& frozen, Elsewhere& out) {
  InMemory sums;
  for (const auto* const layouts : {&trained, &frozen}) {
    for (const bucket::FlatLayout* const layout : *layouts) {
      add_parameters(run, *layout, layouts == &trained, sums, out);
    }
  }
  out.parameter_buffers = largest_of(std::move(sums.in_files), run.offload.parameters.buffer_count);
  out.buckets_stepped_on_device = std::ssize(sums.stepped);
  out.stepped_on_device = std::accumulate(sums.stepped.begin(), sums.stepped.end(), int64_t{0});
  out.most_on_device = largest_of(std::move(sums.stepped), kOnDevice).bytes;
}

void add_gradients(const Run& run, const Layouts& layouts, Elsewhere& out) {
  std::vector<int64_t> in_files;
  for (const bucket::FlatLayout* const layout : layouts) {
    const int64_t count = moved_buckets(run, *layout); // stepped by the host
    for (int64_t b = 0; b < count; ++b) {
      for (const auto& [elements, chunks] : chunks_of(run, *layout, b, !run.on_device)) {
        const int64_t in_file = aio::round_up(run.gradient_bytes() * elements);
        out.gradient_file_bytes += chunks * in_file;
        add_sizes(in_files, in_file, chunks, run.offload.optimizer.buffer_count);
      }
    }
  }
  out.gradient_buffers = largest_of(std::move(in_files), run.offload.optimizer.buffer_count);
}

class Moves {
 public:
  Moves(const StageLayouts& layouts, int64_t stage)
      : layouts_(layouts),
        run_(layouts.run()),
        layout_(layouts.of(stage)),
        there_(elsewhere_of(run_, {&layout_}, {&layouts.frozen(stage)})) {
    out_.stage = stage;
    if (there_.elements > 0) {
      states(run_.offload.optimizer.place);
    }
    if (there_.parameters > 0) {
      parameters(run_.offload.parameters.place);
    }
    if (there_.parameters > 0 || (run_.on_device && there_.elements > 0)) {
      gathered(stage);
    }
    if (run_.moves_parameters() && run_.offload.parameters.place == Place::nvme) {
      building(stage);
    }
    activations(stage);
    if (run_.on_device) {
      out_.host_at_start = run_.shards(3)     ? 0
                           : !run_.layer_list ? 4 * run_.model.parameters()
                           : run_.builds_on_host()
                               ? run_.parameter_bytes() * (layout_.numel() + frozen_whole(run_, stage))
                               : 0;
      const offload::Options& offload = run_.offload;
      const bool states_there = offload.optimizer.place == Place::host && there_.elements > 0;
      const int64_t sets = offload.optimizer.delayed_update ? 2 : 1;
      int64_t beside = 0;
      if (offload.optimizer.pin_memory) {
        beside += (states_there ? lost(there_.state_pieces) : 0) + sets * lost(there_.gradient_pieces) +
                  lost(there_.gradient_buffers);
      }
      if (offload.parameters.pin_memory) {
        beside += lost(there_.parameter_pieces) + there_.beside_kept_parameters + lost(there_.parameter_buffers);
      }
      add(out_.on_host, "pinned blocks", "padding to powers of two", "", beside);
    }
  }
  StageMoves take() { return std::move(out_); }

 private:
  // Padding of blocks of pinned memory.
  static int64_t lost(const std::vector<int64_t>& pieces) {
    return bucket::pinned_bytes(pieces) - std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
  }
  static int64_t lost(const FileBuffers& buffers) { return buffers.pinned_bytes - buffers.bytes; }
  static void add(std::vector<Item>& to, const std::string& name, const std::string& formula,
                  const std::string& numbers, int64_t bytes, const char* axis = "") {
    if (bytes > 0) {
      to.push_back({name, formula, numbers, bytes, axis});
    }
  }
  void move(Way way, const std::string& name, const std::string& formula, const std::string& numbers, int64_t bytes) {
    add(out_.moved, name, formula, numbers, bytes, way_name(way));
  }

  // Masters and states; M: elements that are moved.
  void states(Place place) {
    const bool files = place == Place::nvme;
    const std::string m = std::to_string(there_.elements);
    std::vector<Item>& to = files ? out_.in_files : out_.on_host;
    add(to, "optimizer_states",
        said(run_, run_.states(), " states x ", run_.state_bytes(), " M",
             run_.optimizer.state_type == optim::StateType::int8 ? ", with scales" : ""),
        said(run_, run_.states(), " x ", run_.state_bytes(), " x ", m), there_.state_bytes);
    add(to, "masters", run_.on_device && !run_.precision.has_masters() ? "4 M, a copy to be stepped" : "4 M",
        said(run_, "4 x ", there_.master_bytes / 4), there_.master_bytes);
    if (files) {
      const int64_t bytes = there_.state_file_bytes;
      add(to, "gaps", "to whole blocks of 4096 bytes", "", bytes - there_.state_bytes - there_.master_bytes);
      const int64_t passes = run_.optimizer.needs_norms() ? 2 : 1; // LAMB needs all norms before it steps
      const char* const formula = passes > 1 ? "twice: for the norms, and for the step" : "once, in blocks";
      const std::string numbers = passes > 1 ? said(run_, "2 x ", bytes) : std::to_string(bytes);
      move(Way::from_files, kMovedStates, formula, numbers, there_.state_buffers.hold_all ? 0 : passes * bytes);
      move(Way::to_files, kMovedStates, formula, numbers, passes * bytes);
      out_.initial_states = run_.offload.optimizer.fast_init ? 0 : bytes;
    }
    if (run_.gradients_in_files()) {
      const int64_t bytes = there_.gradient_file_bytes;
      const int64_t times = run_.stages == 1 ? run_.accumulation : 1; // a pipeline accumulates first
      const bool reads_norm =
          !run_.on_device && (run_.clips || run_.precision.compute == Type::fp16); // a GPU has it before the move
      const int64_t passes = (reads_norm ? 1 : 0) + (run_.optimizer.needs_norms() ? 2 : 1);
      const int64_t reads = times - 1 + passes;
      add(out_.in_files, kGradients, said(run_, run_.gradient_bytes(), " M, in blocks"), "", bytes);
      move(Way::to_files, "gradients", said(run_, run_.gradient_bytes(), times > 1 ? " M for each micro-batch" : " M"),
           said(run_, times, " x ", bytes), times * bytes);
      move(Way::from_files, "gradients",
           said(run_, run_.gradient_bytes(), " M", times > 1 ? " for each micro-batch but the first," : "",
                passes > 1 ? " for norms and for the step" : " for the step"),
           said(run_, reads, " x ", bytes), there_.gradient_buffers.hold_all ? 0 : reads * bytes);
    }
    if (run_.on_device) {
      gradients_of_a_device(m);
      buffers_of_files(there_.state_buffers, "chunks of masters and states");
    }
  }

  void buffers_of_files(const FileBuffers& buffers, const char* what) {
    add(out_.on_host, "buffers of files",
        buffers.count == 1 ? said(run_, "the largest of the ", what)
                           : said(run_, "the ", buffers.count, " largest ", what),
        "", buffers.bytes);
  }

  // Gradients accumulate on the host if the GPU keeps none: the sum is copied to the GPU, and back. A pipeline
  // accumulates first.
  void gradients_of_a_device(const std::string& m) {
    const int64_t g = run_.gradient_bytes();
    const int64_t sets = run_.offload.optimizer.delayed_update ? 2 : 1;
    if (run_.gradients_in_files()) {
      buffers_of_files(there_.gradient_buffers, "buckets of gradients");
    } else {
      add(out_.on_host, "gradients",
          said(run_, sets > 1 ? "2 x " : "", g, " M", sets > 1 ? ": the previous step's, and arriving ones" : ""),
          said(run_, sets > 1 ? "2 x " : "", g, " x ", m), sets * g * there_.elements);
    }
    const int64_t times = run_.moves_gradients() && run_.stages == 1 ? run_.accumulation : 1;
    move(Way::to_host, "gradients", said(run_, times > 1 ? "A " : "", g, " M"),
         said(run_, times > 1 ? said(run_, times, " x ") : "", g, " x ", m), times * g * there_.elements);
    move(Way::to_device, "gradients, to be added to", said(run_, "(A - 1) ", g, " M"),
         said(run_, times - 1, " x ", g, " x ", m), (times - 1) * g * there_.elements);
  }

  void parameters(Place place) {
    const int64_t e = run_.parameter_bytes();
    if (run_.on_device) {
      const int64_t on_host = there_.parameters - there_.parameters_in_files;
      add(out_.on_host, "parameters", said(run_, e, " U / N", place == Place::nvme ? ", at most max_in_cpu" : ""),
          said(run_, e, " x ", on_host), e * on_host);
      buffers_of_files(there_.parameter_buffers, "buckets of parameters");
    }
    add(out_.in_files, kParameters, said(run_, e, " (U / N - max_in_cpu), in blocks"),
        said(run_, e, " x ", there_.parameters_in_files), there_.parameter_file_bytes);
    const int64_t passes =
        run_.optimizer.needs_norms() && !run_.precision.has_masters() ? 2 : 1; // LAMB's norms, without masters
    const char* const each = passes > 1 ? ", twice: for the norms, and for the step" : "";
    move(Way::from_files, "parameters, to be stepped", said(run_, e, " (U / N - max_in_cpu), in blocks", each), "",
         there_.parameter_buffers.hold_all ? 0 : passes * there_.stepped_file_bytes);
    const int64_t stepped = there_.stepped_on_device;
    const char* const of = there_.elements > 0 ? " of units whose states are on the device" : " U / N";
    move(Way::to_device, "parameters, to be stepped", said(run_, e, of, each),
         said(run_, passes > 1 ? "2 x " : "", e, " x ", stepped), passes * e * stepped);
    move(Way::to_host, "stepped parameters", said(run_, e, of), said(run_, e, " x ", stepped), e * stepped);
    move(Way::to_files, "stepped parameters", said(run_, e, " (U / N - max_in_cpu), in blocks"), "",
         there_.stepped_file_bytes);
    out_.built_parameters = there_.parameter_file_bytes;
  }

  // A whole module, with what max_in_cpu or a threshold later keeps in memory.
  void building(int64_t stage) {
    const int64_t e = run_.parameter_bytes();
    int64_t bytes = 0;
    for (const bucket::FlatLayout& module : layouts_of_units(run_, stage)) {
      for (const bucket::Bucket& bucket : module.buckets()) {
        bytes += aio::round_up(e * (bucket.numel() / run_.gradient_ranks()));
      }
    }
    add(out_.in_files_at_times, kBuilding,
        concat(e, " P / N, in blocks, until their parameters are in files of their own"), "", bytes);
    out_.built_parameters += bytes;
  }

  void activations(int64_t stage) {
    const ActivationMoves moves = activation_moves(run_, stage);
    const bool chosen = run_.activations.automatic;
    const char* const when =
        chosen ? "from forward to backward, if \"auto\" moves all parts" : "from forward to backward";
    add(out_.on_host, kActivations, when, "", moves.on_host);
    out_.may_stay_on_device = moves.on_host - moves.surely_on_host + (chosen ? moves.staged : 0);
    add(out_.on_host, "buffers of files", "activations that are written", "", moves.staged);
    add(out_.in_files_at_times, kActivations,
        chosen ? "inputs of parts, in the first two steps; then what \"auto\" chooses, if the disk has room for it"
               : "from forward to backward",
        "", moves.in_files);
    const std::string to_files = said(run_, run_.accumulation, " x ", moves.moved_to_files / run_.accumulation);
    move(Way::from_files, kActivations, "of A micro-batches", to_files, moves.moved_to_files);
    move(Way::to_files, kActivations, "of A micro-batches", to_files, moves.moved_to_files);
    if (run_.on_device) {
      const int64_t bytes = moves.moved_to_host + moves.moved_to_files;
      const std::string numbers = said(run_, run_.accumulation, " x ", bytes / run_.accumulation);
      move(Way::to_host, kActivations, "of A micro-batches", numbers, bytes);
      move(Way::to_device, kActivations, "of A micro-batches", numbers, bytes);
    }
  }

  // Parameters moved back: stepped ones to the GPU, and units that a layer is about to use.
  void gathered(int64_t stage) {
    const int64_t e = run_.parameter_bytes();
    int64_t returning = there_.elements;
    if (there_.parameters > 0) {
      returning = std::max<int64_t>(0, there_.elements - there_.parameters); // units stay where they are stepped
      const GatherPlan& plan = layouts_.gathers(stage);
      const int64_t used = (plan.elements(layout_) + plan.elements(layouts_.frozen(stage))) / run_.shard_ranks();
      const double in_files = static_cast<double>(there_.parameters_in_files) / static_cast<double>(there_.parameters);
      const char* const formula = " U' / N, U': units for every forward and backward, less those still gathered";
      move(Way::from_files, kUnits, said(run_, e, formula, ", less what max_in_cpu keeps"),
           said(run_, e, " x ", used, " x ", in_files),
           there_.parameter_buffers.hold_all ? 0 : std::llround(static_cast<double>(e * used) * in_files));
      if (run_.on_device) {
        move(Way::to_device, kUnits, said(run_, e, formula), said(run_, e, " x ", used), e * used);
      }
    }
    if (run_.on_device && returning > 0) {
      move(Way::to_device, "stepped parameters", said(run_, e, " M", there_.parameters > 0 ? ", less units" : ""),
           said(run_, e, " x ", returning), e * returning);
      const bool all = run_.offload.optimizer.delayed_update; // until the next step ends
      const int64_t waiting = all ? returning : std::min(returning, optim::kReturningBuckets * there_.largest_elements);
      add(out_.on_host, "stepped parameters",
          all ? said(run_, e, " M") : said(run_, optim::kReturningBuckets, " buckets"), said(run_, e, " x ", waiting),
          e * waiting);
    }
  }

  const StageLayouts& layouts_;
  const Run& run_;
  const bucket::FlatLayout& layout_;
  const Elsewhere there_;
  StageMoves out_;
};

} // namespace

const char* way_name(Way way) {
  constexpr const char* names[] = {"to_host", "to_device", "from_files", "to_files"};
  return names[static_cast<size_t>(way)];
}

Elsewhere elsewhere_of(const Run& run, const bucket::FlatLayout& layout) {
  return elsewhere_of(run, {&layout}, {});
}

Elsewhere elsewhere_of(const Run& run, const std::vector<const bucket::FlatLayout*>& trained,
                       const std::vector<const bucket::FlatLayout*>& frozen) {
  Elsewhere out;
  if (run.moves_states()) {
    add_states(run, trained, out);
  }
  if (run.moves_parameters()) {
    add_parameters(run, trained, frozen, out);
  }
  if (run.gradients_in_files()) {
    add_gradients(run, trained, out);
  }
  return out;
}

int64_t StageMoves::host_bytes() const {
  return sum(on_host);
}

int64_t StageMoves::file_bytes() const {
  return sum(in_files);
}

int64_t StageMoves::gradient_file_bytes() const {
  return named(in_files, kGradients);
}

int64_t StageMoves::building_bytes() const {
  return named(in_files_at_times, kBuilding);
}

int64_t StageMoves::activation_bytes() const {
  return named(in_files_at_times, kActivations);
}

int64_t StageMoves::activations_on_host() const {
  return named(on_host, kActivations);
}

int64_t StageMoves::moved_activations() const {
  return named(moved, kActivations, way_name(Way::to_files));
}

int64_t StageMoves::disk_bytes() const {
  return std::max(file_bytes() + activation_bytes(),
                  named(in_files, kParameters) + gradient_file_bytes() + building_bytes());
}

int64_t StageMoves::bytes(Way way) const {
  return sum(moved, way_name(way));
}

std::vector<StageMoves> moves_of(const Run& run) {
  return moves_of(StageLayouts(run));
}

std::vector<StageMoves> moves_of(const StageLayouts& layouts) {
  std::vector<StageMoves> out;
  for (int64_t stage = 0; stage < layouts.run().stages; ++stage) {
    out.push_back(Moves(layouts, stage).take());
  }
  return out;
}

} // namespace trireme::estimate
