#include <trireme/estimate/activations.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/estimate/layouts.h>

#include <algorithm>
#include <map>

namespace trireme::estimate {
namespace {

// Bytes kept for one micro-batch in one chunk.
struct Kept {
  int64_t always = 0; // from forward to backward
  int64_t in_backward = 0; // beside that, in the backward that needs most
};

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

Kept kept_of(const Run& run, const std::vector<int64_t>& layers, bool has_loss) {
  const int64_t held = held_gradient(run, layers);
  const auto step = run.recompute_interval > 0 ? run.recompute_interval : std::max<int64_t>(1, std::ssize(layers));
  Kept kept;
  for (int64_t first = 0; first < std::ssize(layers); first += step) {
    int64_t group = 0;
    int64_t working = 0;
    for (int64_t i = first; i < std::min<int64_t>(first + step, std::ssize(layers)); ++i) {
      const Layer& layer = run.model.layers[layers[i]];
      group += layer.kept;
      working = std::max(working, layer.working + (i + 1 < std::ssize(layers) ? held : 0));
    }
    if (run.recompute_interval > 0) {
      kept.always += run.model.layers[layers[first]].input;
      kept.in_backward = std::max(kept.in_backward, group + working);
    } else {
      kept.always += group;
      kept.in_backward = std::max(kept.in_backward, working);
    }
  }
  if (has_loss) {
    const Layer& head = run.model.layers[layers.back()];
    // The logits' gradient is there until the head has used it; every other backward has the logits' memory for itself.
    const int64_t at_head = run.model.loss_working + head.working + (run.recompute_interval > 0 ? head.kept : 0);
    kept.always += run.model.loss_kept;
    kept.in_backward = std::max(at_head, kept.in_backward - run.model.loss_kept);
  }
  return kept;
}

} // namespace

Item activations_of(const Run& run, int64_t stage) {
  Item item{run.recompute_interval > 0 ? "recomputed" : "kept", "", "", 0};
  int64_t kept_bytes = 0;
  int64_t working = 0;
  std::vector<std::string> terms;
  const auto chunks = layers_of(run, stage);
  for (int64_t chunk = 0; chunk < run.chunks; ++chunk) {
    if (chunks[chunk].empty()) {
      continue;
    }
    const bool has_loss = stage == run.stages - 1 && chunk == run.chunks - 1;
    const Kept kept = kept_of(run, chunks[chunk], has_loss);
    const int64_t in_flight = run.in_flight.at(stage).at(chunk);
    kept_bytes += in_flight * kept.always;
    working = std::max(working, kept.in_backward);
    terms.push_back(concat(in_flight, " x ", kept.always));
  }
  item.bytes = kept_bytes + working;
  item.formula = run.stages == 1 ? "K + W: kept for backward, and the backward that needs most" : "M K + W: M micro-batches in flight";
  item.numbers = concat(join(terms, " + "), " + ", working);
  return item;
}

} // namespace trireme::estimate
