#include <trireme/estimate/activations.h>

#include <trireme/base/text.h>
#include <trireme/estimate/layouts.h>
#include <trireme/estimate/said.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <regex>

namespace trireme::estimate {
namespace {

using PartWay = activations::Way;

constexpr int64_t kBuffers = 2; // times the largest part: one is written or read while another is in use

// Bytes kept for one micro-batch in one chunk.
struct Kept {
  int64_t always = 0; // from forward to backward
  int64_t in_backward = 0; // beside that, in the backward that needs most
  int64_t of_parts = 0; // of `always`, what a memory_budget limits
  int64_t put_off = 0; // beside `always`, where only the gradients of weights are missing
};

// What becomes of the activations of each layer.
struct Treatment {
  std::vector<bool> is_part; // the model calls it as a part: activations/activations.h
  std::vector<PartWay> ways;
  std::vector<int64_t> shared; // bytes of its input, if tensor ranks keep shares of that
};

// Layers that are treated together.
int64_t group_size(const Run& run) {
  return std::max<int64_t>(1, run.recompute_interval);
}

// Of groups that are recomputed. The first of a part of the model has what another stage sent, or tokens: whole on every rank.
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

// What a rank keeps of a recomputed layer.
int64_t kept_input(const Run& run, const Treatment& treatment, int64_t layer) {
  return treatment.shared[layer] > 0 ? activations::share_of(treatment.shared[layer], run.tensor_ranks) : run.model.layers[layer].input;
}

Treatment treatment_of(const Run& run) {
  const activations::Options& options = run.activations;
  const std::optional<std::regex> pattern = options.layers.empty() ? std::nullopt : std::optional<std::regex>(options.layers);
  const PartWay own = run.recompute_interval > 0 ? PartWay::recompute : PartWay::keep;
  Treatment out;
  int64_t parts = 0; // in the order of forward
  for (int64_t i = 0; i < std::ssize(run.model.layers); ++i) {
    const Layer& layer = run.model.layers[i];
    const bool matches = !pattern || std::regex_search(layer.type, *pattern);
    // The first layer's inputs need no gradient, so only a group that is recomputed begins with it.
    const bool is_part = matches && (run.layer_list ? i > 0 || run.recompute_interval > 0 : layer.is_unit && layer.type.find("Block") != std::string::npos);
    PartWay way = own;
    if (is_part && !options.automatic) {
      const int64_t place = run.layer_list ? i : parts;
      way = options.choices.empty() ? options.policy.value_or(own) : place < std::ssize(options.choices) ? options.choices[static_cast<size_t>(place)] : own;
    }
    parts += is_part ? 1 : 0;
    out.is_part.push_back(is_part);
    out.ways.push_back(way);
  }
  add_shared(run, out);
  return out;
}

// A shared weight gets its first gradient from the head and holds it until the embedding's comes.
int64_t held_gradient(const Run& run, const std::vector<int64_t>& layers) {
  std::map<std::string, int> uses;
  int64_t held = 0;
  for (const int64_t layer : layers) {
    const Layer& described = run.model.layers[layer];
    if (!described.tie.empty() && ++uses[described.tie] == 2) {
      for (const Parameter& parameter : described.parameters) {
        held += bytes_of(run.compute) * parameter.numel;
      }
    }
  }
  return held;
}

// What goes to the host is on the host already.
PartWay on_cpu(PartWay way) {
  return way == PartWay::host ? PartWay::keep : way == PartWay::recompute_host ? PartWay::recompute : way;
}

Kept kept_of(const Run& run, const Treatment& treatment, const std::vector<int64_t>& layers, bool has_loss) {
  const int64_t held = held_gradient(run, layers);
  const int64_t step = group_size(run);
  Kept kept;
  int64_t largest = 0; // of what moves, and of what is chosen
  bool moves = false;
  for (int64_t first = 0; first < std::ssize(layers); first += step) {
    int64_t group = 0;
    int64_t working = 0;
    for (int64_t i = first; i < std::min<int64_t>(first + step, std::ssize(layers)); ++i) {
      const Layer& layer = run.model.layers[layers[i]];
      group += layer.kept;
      working = std::max(working, layer.working + (i + 1 < std::ssize(layers) ? held : 0));
      kept.put_off += layer.put_off;
    }
    const PartWay way = on_cpu(treatment.ways[layers[first]]);
    if (treatment.is_part[layers[first]]) {
      largest = std::max(largest, group);
      kept.of_parts += way == PartWay::keep ? group : 0;
    }
    moves = moves || activations::moves(way);
    if (way == PartWay::keep) {
      kept.always += group;
      kept.in_backward = std::max(kept.in_backward, working);
    } else {
      kept.always += way == PartWay::recompute ? kept_input(run, treatment, layers[first]) : 0;
      kept.in_backward = std::max(kept.in_backward, group + working);
    }
  }
  kept.in_backward += moves ? kBuffers * largest : 0;
  if (has_loss) {
    const Layer& head = run.model.layers[layers.back()];
    // The logits' gradient is there until the head has used it; every other backward has the logits' memory for itself.
    const int64_t at_head = run.model.loss_working + head.working + (run.recompute_interval > 0 ? head.kept : 0);
    kept.always += run.model.loss_kept;
    kept.in_backward = std::max(at_head, kept.in_backward - run.model.loss_kept);
  }
  return kept;
}

// When a stage keeps most.
Run::Waiting most_waiting(const Run& run, int64_t stage, int64_t chunk) {
  return run.computes_weights_later(stage) && !run.waiting.empty() ? run.waiting.at(stage) : Run::Waiting{run.in_flight.at(stage).at(chunk), 0};
}

// Of a micro-batch in one chunk.
int64_t in_files_of(const Run& run, const Treatment& treatment, const std::vector<int64_t>& layers) {
  const int64_t step = group_size(run);
  int64_t bytes = 0;
  for (int64_t first = 0; first < std::ssize(layers); first += step) {
    if (!treatment.is_part[layers[first]]) {
      continue;
    }
    const PartWay way = run.activations.automatic ? PartWay::recompute_nvme : treatment.ways[layers[first]];
    int64_t kept = 0;
    for (int64_t i = first; i < std::min<int64_t>(first + step, std::ssize(layers)); ++i) {
      kept += run.model.layers[layers[i]].kept;
    }
    bytes += !activations::to_nvme(way) ? 0 : activations::recomputes(way) ? kept_input(run, treatment, layers[first]) : kept;
  }
  return bytes;
}

} // namespace

ActivationFiles activation_files(const Run& run, int64_t stage) {
  ActivationFiles files;
  if (!run.activations.uses_nvme()) {
    return files;
  }
  const Treatment treatment = treatment_of(run);
  const auto chunks = layers_of(run, stage);
  for (int64_t chunk = 0; chunk < run.chunks; ++chunk) {
    const int64_t bytes = in_files_of(run, treatment, chunks[chunk]);
    files.bytes += run.in_flight.at(stage).at(chunk) * bytes;
    files.moved += run.accumulation * bytes;
  }
  return files;
}

std::vector<activations::Way> Run::ways() const {
  return treatment_of(*this).ways;
}

Item activations_of(const Run& run, int64_t stage) {
  const bool chosen = run.activations.automatic;
  Item item{chosen ? "chosen" : run.activations.uses_nvme() ? "moved" : run.recompute_interval > 0 || (run.activations.policy && activations::recomputes(*run.activations.policy)) ? "recomputed" : "kept", "", "", 0};
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
    const Kept kept = kept_of(run, treatment, chunks[chunk], has_loss);
    const Run::Waiting waiting = most_waiting(run, stage, chunk);
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
  item.formula = run.stages == 1 ? "K + W: kept for backward, and the backward that needs most" : put_off > 0 ? "M K + D G + W: M micro-batches in flight, of D the gradients of weights are put off" : "M K + W: M micro-batches in flight";
  item.numbers = said(run, join(terms, " + "), " + ", working);
  if (chosen && of_parts > run.activations.memory_budget) {
    const int64_t less = of_parts - run.activations.memory_budget;
    item.bytes -= less;
    item.formula += ", of parts no more than memory_budget";
    item.numbers += said(run, " - ", less);
  }
  return item;
}

std::vector<int64_t> shared_inputs(const Run& run) {
  return treatment_of(run).shared;
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
    const PartWay way = run.activations.automatic ? PartWay::nvme : on_cpu(treatment.ways[i]);
    least = std::min(least, way == PartWay::keep ? run.model.layers[i].kept : way == PartWay::recompute ? kept_input(run, treatment, i) : 0);
  }
  return least;
}

} // namespace trireme::estimate
