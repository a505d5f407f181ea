#include <trireme/plan/estimate/activations.h>

#include <trireme/base/text.h>
#include <trireme/memory/activations/choice.h>
#include <trireme/memory/activations/way_of_part.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/said.h>

#include <algorithm>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <utility>

namespace trireme::estimate {
namespace {

using PartWay = activations::Way;

// On the CPU: the share of a moved part that its forward still uses while it is copied to a buffer. Measured 0.7 to
// 0.85, most with dropout.
constexpr double kInUse = 0.85;
// On a GPU: parts in pinned memory as staging for files; one is copied, the others are written.
constexpr int64_t kStagedParts = 1 + activations::kStaged;

// Bytes kept for one micro-batch in one chunk.
struct Kept {
  int64_t always = 0;      // from forward to backward
  int64_t in_backward = 0; // in addition, in the backward that needs most
  int64_t of_parts = 0;    // the part of `always` that memory_budget limits
  int64_t put_off = 0;     // in addition, while only the gradients of weights are missing
};

// The policy of each layer's activations.
struct Treatment {
  std::vector<bool> is_part; // called as a part: memory/activations/activations.h
  std::vector<PartWay> ways;
  std::vector<int64_t> shared; // bytes of its input, if tensor ranks share it
  int64_t first_trained = 0;   // layers before it have no backward
};

// Number of layers that share a policy as one group.
int64_t group_size(const Run& run) {
  return std::max<int64_t>(1, run.recompute_interval);
}

// Sets the shared inputs of recomputed groups. The first group of a part has tokens or another stage's output, which
// every rank has whole.
void add_shared(const Run& run, Treatment& out) {
  out.shared.resize(out.ways.size());
  if (!run.activations.shares_inputs || run.tensor_ranks == 1 || run.sequence_parallel) {
    return;
  }
  for (size_t p = 0; p + 1 < run.bounds.size(); ++p) {
    for (int64_t i = run.bounds[p] + group_size(run); i < run.bounds[p + 1]; i += group_size(run)) {
      const int64_t bytes = run.model.layers[i].input;
      out.shared[i] = activations::recomputes(out.ways[i]) && bytes >= run.activations.least_bytes ? bytes : 0;
    }
  }
}

// Whether `layers` matches the type. Cached, because a plan's search asks for thousands of layouts, and compiling an
// expression takes longer than the rest of a layout's memory.
bool is_named(const std::string& layers, const std::string& type) {
  thread_local std::map<std::pair<std::string, std::string>, bool> answers;
  const auto [answer, is_new] = answers.try_emplace({layers, type});
  if (is_new) {
    answer->second = std::regex_search(type, std::regex(layers));
  }
  return answer->second;
}

Treatment treatment_of(const Run& run) {
  const activations::Options& options = run.activations;
  const PartWay own = run.recompute_interval > 0 ? PartWay::recompute : PartWay::keep;
  Treatment out;
  out.first_trained = run.model.first_trained();
  int64_t parts = 0; // in the order of forward
  for (int64_t i = 0; i < std::ssize(run.model.layers); ++i) {
    const Layer& layer = run.model.layers[i];
    const bool matches = options.layers.empty() || is_named(options.layers, layer.type);
    // Inputs of the first trained layer need no gradient, so only a recomputed group begins with it.
    const bool has_gradients = i > out.first_trained || (run.layer_list && run.recompute_interval > 0);
    const bool is_part = matches && has_gradients &&
                         (run.layer_list || (layer.is_unit && layer.type.find("Block") != std::string::npos));
    PartWay way = own;
    const auto place = static_cast<size_t>(run.layer_list ? i : parts);
    if (is_part && !options.automatic && (options.choices.empty() || place < options.choices.size())) {
      way = activations::way_of_part(options, place, run.recompute_interval > 0, run.on_device);
    }
    parts += is_part ? 1 : 0;
    out.is_part.push_back(is_part);
    out.ways.push_back(way);
  }
  add_shared(run, out);
  return out;
}

// A shared weight gets its first gradient from the head, and holds it until the embedding's is added.
int64_t held_gradient(const Run& run, const std::vector<int64_t>& layers) {
  std::map<std::string, int> uses;
  int64_t held = 0;
  for (const int64_t layer : layers) {
    const Layer& described = run.model.layers[layer];
    if (!described.tie.empty() && ++uses[described.tie] == 2) {
      for (const Parameter& parameter : described.parameters) {
        held += run.parameter_bytes() * parameter.numel;
      }
    }
  }
  return held;
}

// `in_flight`: micro-batches of this chunk at a time.
Kept kept_of(const Run& run, const Treatment& treatment, const std::vector<int64_t>& layers, bool has_loss,
             int64_t in_flight) {
  const int64_t held = held_gradient(run, layers);
  const int64_t step = group_size(run);
  Kept kept;
  int64_t buffers = 0;                                // for moves
  int64_t moved_before = 0;                           // of the previous part
  int64_t most = std::numeric_limits<int64_t>::min(); // of a backward, with what earlier parts keep
  for (int64_t first = 0; first < std::ssize(layers); first += step) {
    int64_t group = 0;
    int64_t working = 0;
    const int64_t end = std::min<int64_t>(first + step, std::ssize(layers));
    if (layers[end - 1] < treatment.first_trained) { // only forward: what a layer keeps is freed as it goes
      for (int64_t i = first; i < end; ++i) {
        most = std::max(most, kept.always + run.model.layers[layers[i]].kept);
      }
      moved_before = 0;
      continue;
    }
    for (int64_t i = first; i < end; ++i) {
      const Layer& layer = run.model.layers[layers[i]];
      group += layer.kept;
      working = std::max(working, layer.working + (i + 1 < std::ssize(layers) ? held : 0));
      kept.put_off += layer.put_off;
    }
    const bool is_part = treatment.is_part[layers[first]];
    const PartWay way = is_part && run.activations.automatic
                            ? PartWay::keep
                            : treatment.ways[layers[first]]; // the largest that may be chosen
    int64_t moved = 0;
    if (way == PartWay::keep) {
      kept.of_parts += is_part ? group : 0;
      kept.always += group;
      most = std::max(most, kept.always + working);
    } else {
      const int64_t input = kept_input(run, treatment.shared, layers[first]);
      const bool in_buffer = !run.on_device && activations::moves(way) &&
                             !activations::recomputes(way); // used where it has been moved back to
      const bool is_share =
          way == PartWay::recompute && treatment.shared[layers[first]] > 0; // in addition to the gathered input
      const int64_t own =
          in_buffer ? std::max(working, static_cast<int64_t>(kInUse * static_cast<double>(group))) : group + working;
      most = std::max(most, kept.always + own + (is_share ? input : 0));
      kept.always += way == PartWay::recompute ? input : 0;
      moved = !activations::moves(way) ? 0 : activations::recomputes(way) ? input : group;
    }
    // On the CPU: the part in use and the prefetched previous one; or, with several micro-batches, one that is moved
    // out.
    buffers = std::max(buffers, run.on_device   ? moved
                                : in_flight > 1 ? activations::moving_copies(false) * moved
                                                : moved + moved_before);
    moved_before = moved;
  }
  kept.in_backward = std::max<int64_t>(0, most - kept.always) + buffers;
  if (has_loss) {
    const Layer& head = run.model.layers[layers.back()];
    // The gradient of the logits lives until the head has used it; every other backward can use that memory.
    const int64_t again = run.recompute_interval == 0 ? 0
                          : treatment.shared[layers.back()] > 0
                              ? head.kept
                              : head.kept - head.input; // its input, or a share of it, is counted
    const int64_t at_head = run.model.loss_working + head.working + again;
    kept.always += run.model.loss_kept;
    kept.in_backward = std::max(at_head, most - kept.always) + buffers;
  }
  return kept;
}

// When a stage keeps most.
pipeline::HeldMicroBatches most_waiting(const Run& run, int64_t stage, int64_t chunk) {
  return run.computes_weights_later(stage) && !run.most_held.empty()
             ? run.most_held.at(stage)
             : pipeline::HeldMicroBatches{run.in_flight.at(stage).at(chunk), 0};
}

// Activations that a micro-batch moves in one chunk.
struct Leaving {
  int64_t to_host = 0;
  int64_t surely_to_host = 0;
  int64_t to_files = 0;
  int64_t largest_to_files = 0;
};

// With "auto": inputs. The first two steps move them, on a GPU to its host, and they may later go to files. At most all
// go to the host, because moves hide behind computation.
Leaving leaving_of(const Run& run, const Treatment& treatment, const std::vector<int64_t>& layers) {
  const activations::Options& options = run.activations;
  const int64_t step = group_size(run);
  Leaving out;
  for (int64_t first = 0; first < std::ssize(layers); first += step) {
    if (!treatment.is_part[layers[first]] ||
        layers[std::min<int64_t>(first + step, std::ssize(layers)) - 1] < treatment.first_trained) {
      continue;
    }
    int64_t kept = 0;
    for (int64_t i = first; i < std::min<int64_t>(first + step, std::ssize(layers)); ++i) {
      kept += run.model.layers[layers[i]].kept;
    }
    const PartWay way = treatment.ways[layers[first]];
    const int64_t input = kept_input(run, treatment.shared, layers[first]);
    const int64_t bytes = options.automatic || activations::recomputes(way) ? input : kept;
    if (options.automatic ? run.on_device : activations::to_host(way)) {
      out.to_host += options.automatic ? kept : bytes;
      out.surely_to_host += bytes;
    }
    if (options.automatic ? options.uses_nvme() : activations::to_nvme(way)) {
      out.to_files += bytes;
      out.largest_to_files = std::max(out.largest_to_files, bytes);
    }
  }
  return out;
}

} // namespace

ActivationMoves activation_moves(const Run& run, int64_t stage) {
  ActivationMoves moves;
  if (!run.activations.on()) {
    return moves;
  }
  const Treatment treatment = treatment_of(run);
  const auto chunks = layers_of(run, stage);
  int64_t largest_to_files = 0;
  for (int64_t chunk = 0; chunk < run.chunks; ++chunk) {
    const Leaving leaving = leaving_of(run, treatment, chunks[chunk]);
    const int64_t in_flight = run.in_flight.at(stage).at(chunk);
    moves.on_host += in_flight * leaving.to_host;
    moves.surely_on_host += in_flight * leaving.surely_to_host;
    moves.in_files += in_flight * leaving.to_files;
    moves.moved_to_host += run.accumulation * leaving.to_host;
    moves.moved_to_files += run.accumulation * leaving.to_files;
    largest_to_files = std::max(largest_to_files, leaving.largest_to_files);
  }
  moves.staged = run.on_device ? std::min(moves.in_files, kStagedParts * largest_to_files) : 0;
  return moves;
}

std::vector<activations::Way> Run::ways() const {
  return treatment_of(*this).ways;
}

bool Run::moves_activations() const {
  if (!activations.on()) {
    return false;
  }
  const std::vector<activations::Way> all = ways();
  return activations.automatic ? on_device || activations.uses_nvme()
                               : std::any_of(all.begin(), all.end(), activations::moves);
}

Item activations_of(const Run& run, int64_t stage) {
  const bool chosen = run.activations.automatic;
  Item item{chosen                        ? "chosen"
            : run.activations.uses_nvme() ? "moved"
            : run.recompute_interval > 0 || (run.activations.policy && activations::recomputes(*run.activations.policy))
                ? "recomputed"
                : "kept",
            "", "", 0};
  int64_t kept_bytes = 0;
  int64_t of_parts = 0;
  int64_t working = 0;
  int64_t put_off = 0;
  std::vector<std::string> terms;
  const Treatment treatment = treatment_of(run);
  const auto chunks = layers_of(run, stage);
  for (int64_t chunk = 0; chunk < run.chunks; ++chunk) {
    if (chunks[chunk].empty()) {
      continue;
    }
    const bool has_loss = stage == run.stages - 1 && chunk == run.chunks - 1;
    const pipeline::HeldMicroBatches waiting = most_waiting(run, stage, chunk);
    const Kept kept = kept_of(run, treatment, chunks[chunk], has_loss, waiting.in_flight);
    kept_bytes += waiting.in_flight * kept.always + waiting.put_off * kept.put_off;
    put_off += waiting.put_off;
    of_parts += waiting.in_flight * kept.of_parts;
    working = std::max(working, kept.in_backward);
    terms.push_back(said(run, waiting.in_flight, " x ", kept.always));
    if (waiting.put_off > 0) {
      terms.push_back(said(run, waiting.put_off, " x ", kept.put_off));
    }
  }
  item.bytes = kept_bytes + working;
  item.formula = run.stages == 1 ? "K + W: kept for backward, and the backward that needs most"
                 : put_off > 0
                     ? "M K + D G + W: M micro-batches in flight, D of them with deferred gradients of weights"
                     : "M K + W: M micro-batches in flight";
  item.numbers = said(run, join(terms, " + "), " + ", working);
  if (chosen && of_parts > run.activations.memory_budget) {
    const int64_t less = of_parts - run.activations.memory_budget;
    item.bytes -= less;
    item.formula += ", of parts no more than memory_budget";
    item.numbers += said(run, " - ", less);
  }
  return item;
}

std::vector<bool> parts(const Run& run) {
  return treatment_of(run).is_part;
}

int64_t places_of_parts(const Run& run) {
  const std::vector<bool> is_part = parts(run);
  if (!run.layer_list) {
    return std::count(is_part.begin(), is_part.end(), true);
  }
  return std::find(is_part.rbegin(), is_part.rend(), true).base() - is_part.begin();
}

std::string why_other_parts(const Run& run) {
  const std::string& layers = run.activations.layers;
  const std::vector<bool> is_part = layers.empty() || !run.activations.on() ? std::vector<bool>() : parts(run);
  if (!is_part.empty() && std::ranges::count(is_part, true) == 0) {
    Run all = run;
    all.activations.layers.clear();
    const std::vector<bool> may_be = parts(all);
    std::set<std::string> classes;
    for (size_t i = 0; i < may_be.size(); ++i) {
      if (may_be[i]) {
        classes.insert(run.model.layers[i].type);
      }
    }
    return concat(
        "activation_checkpointing.layers \"", layers, "\" matches no class of a part of the model: ",
        classes.empty() ? "it has no parts" : concat("there are ", join({classes.begin(), classes.end()}, ", ")));
  }
  const auto ways = std::ssize(run.activations.choices);
  const int64_t places = ways > 0 ? places_of_parts(run) : 0;
  if (ways == 0 || (run.layer_list ? ways >= places && ways <= std::ssize(run.model.layers) : ways == places)) {
    return "";
  }
  return concat("activation_checkpointing.choices has ", ways, ways == 1 ? " policy" : " policies",
                ", but the model has ", places, run.layer_list ? " layers" : " parts");
}

std::vector<int64_t> shared_inputs(const Run& run) {
  return treatment_of(run).shared;
}

int64_t kept_input(const Run& run, const std::vector<int64_t>& shared, int64_t layer) {
  return shared[layer] > 0 ? activations::share_of(shared[layer], run.tensor_ranks) : run.model.layers[layer].input;
}

int64_t gathered_inputs(const Run& run, int64_t stage) {
  int64_t bytes = 0;
  const std::vector<int64_t> shared = shared_inputs(run);
  for (const std::vector<int64_t>& layers : layers_of(run, stage)) {
    for (const int64_t layer : layers) {
      bytes += (run.tensor_ranks - 1) * activations::share_of(shared[layer], run.tensor_ranks);
    }
  }
  return bytes;
}

int64_t least_kept(const Run& run, int64_t first, int64_t last) {
  const Treatment treatment = treatment_of(run);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t i = first; i < last; ++i) {
    const PartWay way = run.activations.automatic ? PartWay::nvme : treatment.ways[i];
    least = std::min(least, way == PartWay::keep        ? run.model.layers[i].kept
                            : way == PartWay::recompute ? kept_input(run, treatment.shared, i)
                                                        : 0);
  }
  return least;
}

} // namespace trireme::estimate
