#include <trireme/plan/estimate/traffic.h>

#include <trireme/monitor/straggler.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/compressed_traffic.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/said.h>

namespace trireme::estimate {
namespace {

constexpr int64_t kLossBytes = 3 * 8;    // loss, stop, number of replicas
constexpr int64_t kNormBytes = 3 * 8;    // norm, ranks that lack a gradient, lowered loss scales
constexpr int64_t kStageSums = 5 * 8;    // loss, norm, stop, largest loss scale, whether gradients have one scale
constexpr int64_t kTokensBytes = 8;      // tokens of a micro-batch, for the mean loss
constexpr int64_t kExactBytes = 4;       // per averaged parameter, from masters if there are any
constexpr int64_t kRoundLrBytes = 2 * 8; // a sum, and the number of its steps
constexpr int64_t kStepTimes = monitor::kStepsOfExchange * sizeof(monitor::StepShare);

// Bytes that one of `ranks` sends when each other rank gets one slice of the whole, directly or passed on.
int64_t share(int64_t bytes, int64_t ranks) {
  return bytes * (ranks - 1) / ranks;
}

// Traffic of gradients and parameters among the `all` ranks with the same parameters, `n` of which hold one sharded
// copy. `of` names them, after a comma; empty: all.
void add_gradients(const Run& run, const GatherPlan& plan, const bucket::FlatLayout& layout, int64_t all, int64_t n,
                   const std::string& of, std::vector<Item>& items) {
  const int64_t t = run.travel_bytes();
  const int64_t e = run.parameter_bytes();
  const auto shards = [&](int stage) { return run.shards(stage); };
  const bool reduces_whole = !shards(1);
  // A pipeline has several micro-batches in flight and accumulates their gradients before reducing them.
  const int64_t reductions = shards(2) && run.stages == 1 ? run.accumulation : 1;
  const std::string times = reductions > 1 ? said(run, reductions, " x ") : "";
  int64_t reduced = 0;
  int64_t between = 0;
  int64_t gathered = 0;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    const int64_t bytes = t * bucket.numel();
    reduced += reduces_whole ? 2 * share(bytes, n) : share(bytes, n);
    between += all > n ? 2 * share(bytes / n, all / n) : 0;
    gathered += shards(1) && bucket.unit == bucket::TensorInfo::kNoUnit ? share(e * bucket.numel(), n) : 0;
  }
  const std::string whole = said(run, t, " x ", layout.numel(), " x ", n - 1, " / ", n);
  items.push_back({(reduces_whole ? "gradients, all-reduce" : "gradients, reduce-scatter") + of,
                   said(run, times.empty() ? "" : "A ", reduces_whole ? "2 " : "", t, " F (N - 1) / N"),
                   said(run, times, reduces_whole ? "2 x " : "", whole), reductions * reduced});
  if (all > n) {
    items.push_back({"gradients of the copies, all-reduce" + of, said(run, "2 ", t, " F / N (R - 1) / R, R copies"),
                     said(run, "2 x ", t, " x ", layout.numel(), " / ", n, " x ", all / n - 1, " / ", all / n),
                     between});
  }
  if (shards(3)) {
    const int64_t elements = plan.elements(layout);
    items.push_back(
        {"units, all-gather" + of,
         said(run, e, " U' (N - 1) / N, U': units for every forward and backward, less those still gathered"),
         said(run, e, " x ", elements, " x ", n - 1, " / ", n), share(e * elements, n)});
  }
  if (shards(1)) {
    items.push_back({"parameters, all-gather" + of, said(run, e, shards(3) ? " (F - U) (N - 1) / N" : " F (N - 1) / N"),
                     said(run, e, " x ", whole_elements(layout), " x ", n - 1, " / ", n), gathered});
  }
}

// Exact values and states at an averaging step, divided by the steps of a round.
void add_meeting(const StageLayouts& stages, int64_t stage, std::vector<Item>& items) {
  using Averaging = parallel::AveragingOptions;
  const Run& run = stages.run();
  const int64_t n = run.gradient_ranks();
  const int64_t every = run.averaging.every;
  std::vector<const bucket::FlatLayout*> layouts;
  if (run.tensor_ranks > 1) {
    layouts = {&stages.of(stage, /*whole=*/false), &stages.of(stage, /*whole=*/true)};
  } else {
    layouts = {&stages.of(stage)};
  }
  int64_t sent = 0;
  int64_t elements = 0;
  for (const bucket::FlatLayout* const layout : layouts) {
    elements += layout->numel();
    for (const bucket::Bucket& bucket : layout->buckets()) {
      sent += 2 * share(kExactBytes * bucket.numel(), n);
    }
  }
  const std::string whole = said(run, kExactBytes, " x ", elements, " x ", n - 1, " / ", n, " / ", every);
  const char* const how = run.has_outer_optimizer() && !run.averaging.elastic
                              ? "parameters, reduce-scatter and all-gather"
                              : "parameters, all-reduce";
  items.push_back({how, said(run, "2 ", kExactBytes, " F (N - 1) / N / H, H: steps of a round"),
                   said(run, "2 x ", whole), sent / every});
  if (run.averaging.states == Averaging::States::average && run.states() > 0) {
    items.push_back({"optimizer states, all-reduce", said(run, "2 s ", kExactBytes, " F (N - 1) / N / H, s: states"),
                     said(run, "2 x ", run.states(), " x ", whole), run.states() * sent / every});
  }
  if (run.averaging.outer == Averaging::Outer::slowmo) {
    items.push_back({"learning rate of the round", "2 x 16 (N - 1) / N / H",
                     said(run, "2 x 16 x ", n - 1, " / ", n, " / ", every), 2 * share(kRoundLrBytes, n) / every});
  }
  if (run.averaging.elastic) { // each replica reports its own loss
    const int64_t kWhoBytes = 16;
    items.push_back({"members of the round", "16 (N - 1) / H", said(run, kWhoBytes, " x ", n - 1, " / ", every),
                     kWhoBytes * (n - 1) / every});
    return;
  }
  items.push_back({"loss", "2 x 24 (N - 1) / N / H", said(run, "2 x 24 x ", n - 1, " / ", n, " / ", every),
                   2 * share(kLossBytes, n) / every});
}

// Compressed messages instead of gradients, and with ZeRO stage 1 the parameters after the step.
void add_compressed(const Run& run, const bucket::FlatLayout& layout, int64_t n, const std::string& of,
                    std::vector<Item>& items) {
  using Kind = compress::GradientCompressionOptions::Kind;
  const compress::GradientCompressionOptions by = run.compressed();
  const char* const formula =
      by.kind == Kind::sign        ? "2 (F / 8 + 4 F / 2048) (N - 1) / N, and more for short parameters"
      : by.kind == Kind::eight_bit ? "2 (F + 4 F / 256) (N - 1) / N"
      : by.kind == Kind::top_k     ? "2 x 6 k F (N - 1) / N, k: the share that is sent"
                                   : "2 x 4 r (rows + columns) (N - 1) / N for each matrix, r: the rank";
  const int64_t bytes = compressed_bytes(layout, by, n);
  items.push_back({"compressed means" + of, formula, said(run, bytes), bytes});
  if (run.optimizer.needs_norms() && run.optimizer.compresses_momenta()) {
    const int64_t count = std::ssize(layout.tensors());
    items.push_back({"norms of updates" + of, "2 (16 + 8) (N - 1) / N for each parameter",
                     said(run, "2 x 24 x ", count, " x ", n - 1, " / ", n),
                     2 * share(16 * count, n) + 2 * share(8 * count, n)});
  }
  if (run.shards(1)) {
    const int64_t e = run.parameter_bytes();
    int64_t gathered = 0;
    for (const bucket::Bucket& bucket : layout.buckets()) {
      gathered += share(e * bucket.numel(), n);
    }
    items.push_back({"parameters, all-gather" + of, said(run, e, " F (N - 1) / N"),
                     said(run, e, " x ", layout.numel(), " x ", n - 1, " / ", n), gathered});
  }
}

// Gradients, small sums and parameters among the replicas of a stage.
void add_data(const StageLayouts& stages, int64_t stage, Step step, std::vector<Item>& items) {
  const Run& run = stages.run();
  if (run.averages()) {
    return add_meeting(stages, stage, items);
  }
  const int64_t all = run.gradient_ranks();
  const int64_t n = run.shards(1) ? run.shard_ranks() : all; // ranks that hold one copy
  const bucket::FlatLayout& layout = stages.of(stage);
  const GatherPlan plan = run.shards(3) ? stages.gathers(stage) : GatherPlan();
  const auto add = [&](const bucket::FlatLayout& of, int64_t ranks, int64_t hold_a_copy, const char* which) {
    if (step == Step::compressed) {
      add_compressed(run, of, ranks, which, items);
    } else {
      add_gradients(run, plan, of, ranks, hold_a_copy, which, items);
    }
  };
  if (all > 1) {
    add(run.tensor_ranks > 1 ? stages.of(stage, /*whole=*/false) : layout, all, n, "");
  }
  if (run.tensor_ranks > 1 && run.whole_ranks() > 1) {
    add(stages.of(stage, /*whole=*/true), run.whole_ranks(), run.whole_ranks(),
        ", of what the tensor axis holds whole");
  }
  if (all == 1) {
    return;
  }
  if (const bucket::FlatLayout& frozen = stages.frozen(stage); frozen.numel() > 0) {
    const int64_t e = run.parameter_bytes();
    const int64_t elements = plan.elements(frozen);
    items.push_back({"units, all-gather, of what is frozen",
                     said(run, e, " Z' (N - 1) / N, Z': frozen parameters of units for every forward and backward"),
                     said(run, e, " x ", elements, " x ", n - 1, " / ", n), share(e * elements, n)});
  }
  items.push_back(
      {"loss", "2 x 24 (N - 1) / N", said(run, "2 x 24 x ", all - 1, " / ", all), 2 * share(kLossBytes, all)});
  if (run.optimizer.needs_norms() && run.shards(1) &&
      !(step == Step::compressed && run.optimizer.compresses_momenta())) {
    const int64_t bytes = 2 * 8 * std::ssize(layout.tensors());
    items.push_back({"norms of parameters", "2 x 16 (N - 1) / N for each parameter",
                     said(run, "2 x ", bytes, " x ", n - 1, " / ", n), 2 * share(bytes, n)});
  }
  if (!run.steps_in_backward) {
    items.push_back({"gradient norm", "2 x 24 (N - 1) / N", said(run, "2 x 24 x ", all - 1, " / ", all),
                     2 * share(kNormBytes, all)});
  }
}

// Bytes of an axis for the layers of this stage and one micro-batch; recomputation runs forward twice. Layers before
// the first trained one have no backward.
template <typename Forward, typename Backward>
int64_t of_layers(const Run& run, int64_t stage, const Forward& forward, const Backward& backward) {
  const std::vector<activations::Way> ways = run.ways();
  const int64_t first_trained = run.model.first_trained();
  int64_t sum = 0;
  for (const auto& chunk : layers_of(run, stage)) {
    for (const int64_t index : chunk) {
      const Layer& layer = run.model.layers[index];
      const bool has_backward = index >= first_trained;
      sum += (has_backward && activations::recomputes(ways[index]) ? 2 : 1) * forward(layer) +
             (has_backward ? backward(layer) : 0);
    }
  }
  return sum;
}

// Sums of partial results, or halves of them, along the tensor axis.
void add_tensor(const Run& run, int64_t stage, std::vector<Item>& items) {
  const int64_t n = run.tensor_ranks;
  if (n == 1) {
    return;
  }
  const auto pass = [&](const Layer& layer) { return share(layer.tensor_bytes, n); };
  const bool split = run.computes_weights_later(stage);
  const int64_t bytes = of_layers(
      run, stage, [&](const Layer& layer) { return layer.tensor_passes_forward * pass(layer); },
      [&](const Layer& layer) {
        return (layer.tensor_passes_backward + (split ? layer.tensor_passes_weights : 0)) * pass(layer);
      });
  const char* what = run.sequence_parallel ? "tensor axis, all-gather and reduce-scatter" : "tensor axis, all-reduce";
  items.push_back({what, "A p e B L H (N - 1) / N, N: tensor ranks, p: passes of all layers, two an all-reduce",
                   said(run, run.accumulation, " x ", bytes), run.accumulation * bytes});
  if (const int64_t gathered = gathered_inputs(run, stage); gathered > 0) {
    items.push_back({"tensor axis, shares of inputs, all-gather",
                     "A k e B L H (N - 1) / N, k: layers that are recomputed",
                     said(run, run.accumulation, " x ", gathered), run.accumulation * gathered});
  }
  if (stage == run.stages - 1 && run.model.loss_tensor_bytes > 0) {
    const int64_t loss = share(run.model.loss_tensor_bytes, n);
    items.push_back({"tensor axis, loss, all-gather",
                     "A 8 B L (N - 1): the sum's logarithm and the target's logit of every token",
                     said(run, run.accumulation, " x ", loss), run.accumulation * loss});
  }
}

// Keys, values and their gradients along the context axis.
void add_context(const Run& run, int64_t stage, std::vector<Item>& items) {
  if (run.context_ranks == 1) {
    return;
  }
  const int64_t bytes = of_layers(
      run, stage, [](const Layer& layer) { return layer.context_bytes_forward; },
      [](const Layer& layer) { return layer.context_bytes_backward; });
  items.push_back({"context axis, keys and values",
                   "A k X, X: bytes of a rank's keys; ring: k = 6 (C - 1) with fp32, Ulysses: k = 8 (C - 1) / C",
                   said(run, run.accumulation, " x ", bytes), run.accumulation * bytes});
  if (stage == run.stages - 1) {
    const int64_t tokens = 2 * share(kTokensBytes, run.context_ranks);
    items.push_back({"context axis, tokens that count, all-reduce", "A 2 x 8 (C - 1) / C",
                     said(run, run.accumulation, " x ", tokens), run.accumulation * tokens});
  }
}

// Activations and their gradients between stages. Activations before which nothing is trained have none: a message
// without a tensor says so.
void add_pipeline(const Run& run, int64_t stage, std::vector<Item>& items) {
  const auto chunks = layers_of(run, stage);
  const int64_t parts = run.stages * run.chunks;
  const int64_t first_trained = run.model.first_trained();
  int64_t forwards = 0;
  int64_t backwards = 0;
  for (int64_t part = stage; part < parts; part += run.stages) {
    const int64_t begin = run.bounds[part];
    if (part + 1 < parts) {
      forwards += run.accumulation * message_bytes(run.model.layers[run.bounds[part + 1] - 1].output);
    }
    if (part > 0) {
      backwards += run.accumulation * message_bytes(begin > first_trained ? run.model.layers[begin - 1].output : 0);
    }
  }
  const std::string formula = "A (64 + bytes of the tensor), for every boundary";
  if (forwards > 0) {
    items.push_back(
        {"activations, send", formula, said(run, run.accumulation, " x ", forwards / run.accumulation), forwards});
  }
  if (backwards > 0) {
    items.push_back({"gradients of activations, send", formula,
                     said(run, run.accumulation, " x ", backwards / run.accumulation), backwards});
  }
}

// The ranks of a replica (stages and tensor ranks) sum their shares of loss and norm.
void add_model(const Run& run, std::vector<Item>& items) {
  const int64_t n = run.stages * run.tensor_ranks;
  items.push_back({"loss and norm of a replica", "2 x 40 (S - 1) / S, S: stages x tensor ranks",
                   said(run, "2 x 40 x ", n - 1, " / ", n), 2 * share(kStageSums, n)});
}

// Stages that share a parameter sum its gradients.
int64_t tied_bytes(const Run& run, int64_t stage) {
  int64_t bytes = 0;
  for (const auto& chunk : layers_of(run, stage)) {
    for (const int64_t layer : chunk) {
      const Layer& here = run.model.layers[layer];
      int64_t owners = 0;
      for (int64_t other = 0; other < run.stages && !here.tie.empty(); ++other) {
        bool has = false;
        for (const auto& theirs : layers_of(run, other)) {
          for (const int64_t candidate : theirs) {
            has = has || run.model.layers[candidate].tie == here.tie;
          }
        }
        owners += has ? 1 : 0;
      }
      if (owners > 1 && here.parameters.front().trained) {
        bytes += 2 * share(run.parameter_bytes() * here.parameters.front().numel, owners);
      }
    }
  }
  return bytes;
}

} // namespace

int64_t StageTraffic::bytes() const {
  int64_t sum = 0;
  for (const Item& item : items) {
    sum += item.bytes;
  }
  return sum;
}

std::vector<StageTraffic> traffic_of(const Run& run, Step step) {
  return traffic_of(StageLayouts(run), step);
}

std::vector<StageTraffic> traffic_of(const StageLayouts& layouts, Step step) {
  const Run& run = layouts.run();
  std::vector<StageTraffic> stages;
  for (int64_t stage = 0; stage < run.stages; ++stage) {
    StageTraffic& traffic = stages.emplace_back();
    traffic.stage = stage;
    const auto along = [&](const char* axis, const auto& add) {
      const size_t before = traffic.items.size();
      add();
      for (size_t i = before; i < traffic.items.size(); ++i) {
        traffic.items[i].axis = axis;
      }
    };
    if (run.ranks_of_stage() > 1) {
      along("data", [&] { add_data(layouts, stage, step, traffic.items); });
      traffic.step_time_bytes = share(run.data_ranks * kStepTimes, run.data_ranks);
    }
    along("context", [&] { add_context(run, stage, traffic.items); });
    along("tensor", [&] { add_tensor(run, stage, traffic.items); });
    if (run.stages > 1) {
      along("pipe", [&] { add_pipeline(run, stage, traffic.items); });
      traffic.tied_bytes = tied_bytes(run, stage);
    }
    if (run.stages * run.tensor_ranks > 1) {
      along(run.tensor_ranks > 1 ? "pipe+tensor" : "pipe", [&] { add_model(run, traffic.items); });
    }
  }
  return stages;
}

} // namespace trireme::estimate
