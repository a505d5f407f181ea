#include <trireme/plan/estimate/memory.h>

#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/wire_sizes.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/estimate/said.h>

#include <algorithm>

namespace trireme::estimate {
namespace {

// The engine's constants: bytes for small sums before fp32 gradients, buckets of sharded gradients in memory at a time,
// units of sharded parameters.
constexpr int64_t kGradientBuckets = 3;
constexpr int64_t kOuterBytes = 8; // averaging's outer optimizer, per parameter
constexpr int64_t kGatheredUnits = 2;

std::string divided(int64_t ranks) {
  return ranks > 1 ? " / N" : "";
}

std::string over(int64_t ranks) {
  return ranks > 1 ? " / " + std::to_string(ranks) : "";
}

// Subtracts what is moved from an item, and says where it is.
void take_out(const Run& run, Item& item, int64_t moved, const std::string& where) {
  if (moved == 0) {
    return;
  }
  if (moved >= item.bytes) {
    item.formula = said(run, "none here: ", where);
    item.numbers.clear();
  } else {
    item.formula += said(run, ", less what is ", where);
    item.numbers += said(run, " - ", moved);
  }
  item.bytes = std::max<int64_t>(0, item.bytes - moved);
}

std::string where_is(offload::Place place) {
  return place == offload::Place::nvme ? "in files" : "on the host";
}

// Z: frozen parameters, which need no flat buffer unless they are sharded.
Item parameters(const StageLayouts& layouts, int64_t stage, const Elsewhere& elsewhere) {
  const Run& run = layouts.run();
  const bucket::FlatLayout& layout = layouts.of(stage);
  const bucket::FlatLayout& frozen = layouts.frozen(stage);
  const int64_t e = run.parameter_bytes();
  const int64_t as_built = frozen_whole(run, stage);
  const bool has_frozen = as_built > 0 || frozen.numel() > 0;
  if (!run.shards(3)) {
    return {
        "", has_frozen ? said(run, e, " (F + Z)") : said(run, e, " F"),
        has_frozen ? said(run, e, " x (", layout.numel(), " + ", as_built, ')') : said(run, e, " x ", layout.numel()),
        e * (layout.numel() + as_built)};
  }
  const int64_t sharded = unit_elements(layout) + frozen.numel();
  const int64_t whole = whole_elements(layout) + as_built;
  Item item{
      "", said(run, e, has_frozen ? " (U / N + F + Z - U)" : " (U / N + F - U)", ": of units a share, the rest whole"),
      said(run, e, " x (", sharded, " / ", run.shard_ranks(), " + ", whole, ')'),
      e * (sharded / run.shard_ranks() + whole)};
  take_out(run, item, e * (run.on_device ? elsewhere.parameters : elsewhere.parameters_in_files),
           where_is(run.offload.parameters.place));
  return item;
}

Item gradients(const Run& run, const bucket::FlatLayout& layout, const Elsewhere& elsewhere) {
  const int64_t g = run.gradient_bytes();
  const int64_t ranks = run.shards(2) ? run.shard_ranks() : 1;
  Item item{"", said(run, g, " F", divided(ranks)), said(run, g, " x ", layout.numel(), over(ranks)),
            g * layout.numel() / ranks};
  take_out(run, item,
           run.moves_gradients()      ? g * elsewhere.elements
           : run.gradients_in_files() ? item.bytes
                                      : 0,
           run.gradients_in_files() ? "in files" : "on the host");
  return item;
}

Item states(const Run& run, const bucket::FlatLayout& layout, const Elsewhere& elsewhere) {
  const int64_t ranks = run.shard_ranks();
  const int64_t each = layout.numel() / ranks;
  Item item{optim::family_of(run.optimizer.rule),
            said(run, run.states(), " states x ", run.state_bytes(), " F", divided(ranks)),
            said(run, run.states(), " x ", run.state_bytes(), " x ", layout.numel(), over(ranks)),
            run.states() * run.state_bytes() * each};
  if (run.optimizer.state_type == optim::StateType::int8) {
    item.formula += said(run, ", a scale of ", optim::kScaleBytes, " bytes for ", optim::kStateBlock);
    item.bytes += run.states() * run.scale_bytes(each);
  }
  take_out(run, item, elsewhere.state_bytes, where_is(run.offload.optimizer.place));
  if (run.has_outer_optimizer()) { // values at the begin of the round, and the momentum
    const int64_t ranks = run.averaging.elastic ? 1 : run.gradient_ranks(); // replicas that may be lost shard nothing
    item.formula += said(run, ", ", kOuterBytes, " F", divided(ranks), " of the outer optimizer");
    item.numbers += said(run, " + ", kOuterBytes, " x ", layout.numel(), over(ranks));
    item.bytes += kOuterBytes * layout.numel() / ranks;
  }
  return item;
}

Item masters(const Run& run, const bucket::FlatLayout& layout, const Elsewhere& elsewhere) {
  const int64_t ranks = run.shard_ranks();
  if (!run.precision.has_masters()) {
    return {"", "none: parameters are fp32", "", 0};
  }
  Item item{"", said(run, "4 F", divided(ranks)), said(run, "4 x ", layout.numel(), over(ranks)),
            4 * layout.numel() / ranks};
  take_out(run, item, elsewhere.master_bytes, where_is(run.offload.optimizer.place));
  return item;
}

class Sum {
 public:
  Sum(const Run& run, Item& item) : run_(run), item_(item) {}
  void add(const std::string& formula, int64_t bytes) {
    item_.formula += said(run_, item_.formula.empty() ? "" : " + ", formula);
    item_.numbers += said(run_, item_.numbers.empty() ? "" : " + ", bytes);
    item_.bytes += bytes;
  }

 private:
  const Run& run_;
  Item& item_;
};

// Buffers of files of a rank on the CPU. A GPU's are on the host, except shards that the GPU steps.
Item offload_buffers(const Run& run, const Elsewhere& elsewhere) {
  Item item;
  Sum sum(run, item);
  const auto add = [&](const FileBuffers& buffers, const char* what) {
    if (buffers.count > 0) {
      sum.add(said(run, "the ", buffers.count, " largest ", what), buffers.bytes);
    }
  };
  if (!run.on_device) {
    add(elsewhere.state_buffers, "chunks of masters and states");
    add(elsewhere.parameter_buffers, "buckets of parameters");
    add(elsewhere.gradient_buffers, "chunks of gradients");
  }
  if (elsewhere.most_on_device > 0) {
    sum.add("the largest shards to be stepped: one arriving, one in the step, one returning",
            run.parameter_bytes() * elsewhere.most_on_device);
  }
  if (item.formula.empty()) {
    item.formula = run.on_device && run.offload.uses_files() ? "none here: on the host" : "none: nothing is in files";
  }
  return item;
}

// Messages to and from the neighbours of a stage: one for each micro-batch in flight, and one expected.
void add_messages(const Run& run, int64_t stage, Sum& sum) {
  const auto chunks = layers_of(run, stage);
  int64_t messages = 0;
  int64_t bytes = 0;
  for (int64_t chunk = 0; chunk < run.chunks; ++chunk) {
    const int64_t part = chunk * run.stages + stage;
    const int64_t in_flight = run.in_flight.at(stage).at(chunk);
    if (part + 1 < run.stages * run.chunks && !chunks[chunk].empty()) { // activations out, gradients in
      messages += in_flight + 1;
      bytes += (in_flight + 1) * message_bytes(run.model.layers[chunks[chunk].back()].output);
    }
    if (part > 0 && !chunks[chunk].empty()) { // activations in (in flight they are the layer's input), gradients out
      messages += 2;
      bytes += 2 * message_bytes(run.model.layers[chunks[chunk].front()].input);
    }
  }
  if (messages > 0) {
    sum.add(said(run, messages, " messages"), bytes);
  }
}

Item buffers(const StageLayouts& layouts, int64_t stage) {
  const Run& run = layouts.run();
  const bucket::FlatLayout& layout = layouts.of(stage);
  Item item;
  Sum sum(run, item);
  if (run.shards(2)) {
    const bool adds_up = run.stages > 1 && run.accumulation > 1; // accumulates before any bucket is reduced
    sum.add(adds_up ? "all gradient buckets" : said(run, "the ", kGradientBuckets, " largest gradient buckets"),
            run.gradient_bytes() * (adds_up ? layout.numel() : largest_buckets(layout, kGradientBuckets)));
  }
  if (run.shards(3)) {
    const int64_t units = run.zero.prefetch_elements == 0 ? 1 : kGatheredUnits;
    const int64_t ahead = largest_units({&layout, &layouts.frozen(stage)}, units);
    const int64_t kept = layouts.gathers(stage).most_live; // includes units kept for a later micro-batch
    sum.add(kept > ahead ? "units gathered at a time" : said(run, "the ", units, " largest units"),
            run.parameter_bytes() * std::max(ahead, kept));
  }
  if (run.gradient_ranks() > 1 && run.travel() != run.gradients()) {
    const int64_t elements = run.shards(2) ? largest_buckets(layout, kGradientBuckets) : layout.numel();
    sum.add(said(run, "gradients in communication in ", type_name(run.travel())), run.travel_bytes() * elements);
  }
  if (run.stages > 1) {
    add_messages(run, stage, sum);
    for (const auto& chunk : layers_of(run, stage)) {
      for (const int64_t layer : chunk) {
        const Layer& described = run.model.layers[layer];
        if (!described.tie.empty() && described.parameters.front().trained) {
          sum.add("the sum of a shared gradient", run.parameter_bytes() * described.parameters.front().numel);
        }
      }
    }
  }
  item.formula = item.formula.empty() ? "none: flat buffers are sent directly" : item.formula;
  return item;
}

// Trained parameters as built and in their flat buffer; with sharded parameters unit by unit. If they are built on the
// host of a GPU, it has the flat buffer only. On the CPU gradients get their pages in the first backward.
int64_t start(const Run& run, const StageMemory& memory) {
  const int64_t always = memory.always_on_host();
  const int64_t parameters = memory.item(Category::parameters).bytes;
  if (run.shards(3)) {
    return always + parameters + memory.item(Category::communication_buffers).bytes;
  }
  return always + parameters + (run.builds_on_host() ? 0 : run.parameter_bytes() * memory.flat) +
         (run.shards(2) || !run.on_device ? 0 : memory.item(Category::gradients).bytes);
}

void check(const Run& run) {
  if (std::ssize(run.bounds) != run.stages * run.chunks + 1 || run.bounds.back() != std::ssize(run.model.layers) ||
      std::ssize(run.in_flight) != run.stages) {
    throw Error("estimate", concat(run.stages, " stages of ", run.chunks, " parts do not fit ", run.bounds.size(),
                                   " boundaries of ", run.model.layers.size(), " layers"));
  }
}

} // namespace

const char* category_name(Category category) {
  constexpr const char* names[] = {"parameters",      "gradients",   "optimizer_states",
                                   "masters",         "activations", "communication_buffers",
                                   "offload_buffers", "data",        "baseline"};
  return names[static_cast<size_t>(category)];
}

int64_t StageMemory::model_states() const {
  return item(Category::parameters).bytes + item(Category::gradients).bytes + item(Category::optimizer_states).bytes +
         item(Category::masters).bytes;
}

int64_t StageMemory::training() const {
  int64_t sum = 0;
  for (const Item& item : items) {
    sum += item.bytes;
  }
  return sum;
}

int64_t StageMemory::peak() const {
  return std::max(training(), start);
}
int64_t StageMemory::always_on_host() const {
  return item(Category::baseline).bytes + item(Category::data).bytes;
}
int64_t StageMemory::peak_on_device() const {
  return peak() - always_on_host();
}

int64_t message_bytes(int64_t tensor_bytes) {
  return pipeline::buffer_bytes(pipeline::kHeaderBytes + pipeline::aligned(tensor_bytes));
}

int64_t baseline_bytes() {
#ifdef TRIREME_LINK_CUDA
  return 420'000'000;
#else
  return 150'000'000;
#endif
}

std::vector<StageMemory> memory_of(const Run& run) {
  return memory_of(StageLayouts(run));
}

std::vector<StageMemory> memory_of(const StageLayouts& layouts) {
  const Run& run = layouts.run();
  check(run);
  std::vector<StageMemory> stages;
  for (int64_t stage = 0; stage < run.stages; ++stage) {
    const bucket::FlatLayout& layout = layouts.of(stage);
    const bucket::FlatLayout& frozen = layouts.frozen(stage);
    StageMemory& memory = stages.emplace_back();
    memory.stage = stage;
    for (const bucket::FlatLayout* const part : {&layout, &frozen}) {
      for (const bucket::TensorInfo& tensor : part->tensors()) {
        memory.parameters += tensor.numel();
      }
    }
    memory.frozen = frozen.numel() + frozen_whole(run, stage);
    memory.parameters += frozen_whole(run, stage);
    memory.flat = layout.numel();
    const Elsewhere elsewhere = elsewhere_of(run, {&layout}, {&frozen});
    memory.items = {parameters(layouts, stage, elsewhere),
                    gradients(run, layout, elsewhere),
                    states(run, layout, elsewhere),
                    masters(run, layout, elsewhere),
                    activations_of(run, stage),
                    buffers(layouts, stage),
                    offload_buffers(run, elsewhere),
                    {"", "the data set and prefetched batches", "", run.data_bytes},
                    {"", "measured: libtorch itself", "", baseline_bytes()}};
    for (size_t i = 0; i < memory.items.size(); ++i) {
      memory.items[i].name = category_name(kCategories[i]);
    }
    memory.start = start(run, memory);
  }
  return stages;
}

} // namespace trireme::estimate
