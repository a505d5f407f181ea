#include <trireme/plan/layer_cost.h>

#include <trireme/parallel/tensor/piece_sizes.h>
#include <trireme/plan/link_time.h>

#include <algorithm>
#include <cmath>

namespace trireme::plan {
namespace {

// Reads and writes of a tensor of the residual stream's size in forward; backward has twice as many.
constexpr double kPassesOutside = 9;   // both norms and additions
constexpr double kPassesOfDropout = 5; // two of them
// With context ranks: queries, keys and values separated after the bias (6), packed for sending (4), results merged
// (3). Backward: gradients merged (6) and summed for the bias (3), keys and values packed again (4), received gradients
// added (8), those of queries and results (3). An all-to-all has as many.
constexpr double kPassesOfContextForward = 13;
constexpr double kPassesOfContextBackward = 24;
// Shared tokens of tensor ranks are in the order of ranks, and are copied into the order of samples and back, unless a
// sample is large or the only one.
constexpr double kPassesOfOrder = 2.5;
// Passes over attention's matrix if it is written.
constexpr double kMatrixForward = 6.5;
constexpr double kMatrixBackward = 9.5;

// Share of a block's fixed cost (Cluster::layer_seconds and weight_seconds), by operations, of which a block has about
// 10.
double share_of_block(models::LayerShape::Kind kind) {
  switch (kind) {
    case models::LayerShape::Kind::block:
      return 1;
    case models::LayerShape::Kind::head:
      return 0.3;
    case models::LayerShape::Kind::tokens:
    case models::LayerShape::Kind::positions:
      return 0.2;
    case models::LayerShape::Kind::norm:
      return 0.1;
  }
  return 1;
}

class Costs {
 public:
  Costs(const Cluster& cluster, const Job& job, const Layout& layout)
      : cluster_(cluster),
        job_(job),
        layout_(layout),
        model_(job.model),
        tensor_(static_cast<double>(layout.tensor)),
        between_(layout.sequence_parallel ? tensor_ : 1),
        element_(static_cast<double>(job.base.parameter_bytes())),
        product_(job.base.precision.autocast ? 2 : element_),
        rows_(static_cast<double>(layout.micro_batch * model_.sequence_length) / static_cast<double>(layout.context)),
        h_(static_cast<double>(model_.hidden)),
        stream_(rows_ * h_),
        queries_(static_cast<double>(model_.query_width()) / tensor_),
        keys_(static_cast<double>(model_.key_width()) / tensor_),
        mlp_(static_cast<double>(model_.width_of_mlp()) / tensor_),
        vocabulary_(std::ceil(static_cast<double>(model_.vocab_size) / tensor_)) {}

  LayerCost of(models::LayerShape::Kind kind, const estimate::Layer& layer) const {
    LayerCost cost;
    switch (kind) {
      case models::LayerShape::Kind::tokens:
        cost.forward = passes(2 * stream_);
        cost.backward_weight = passes(2 * stream_ + 2 * vocabulary_ * h_);
        break;
      case models::LayerShape::Kind::positions:
        cost.forward = passes(2 * stream_ / between_);
        cost.backward_weight = passes(2 * stream_ / between_);
        break;
      case models::LayerShape::Kind::block:
        add_block(cost, layer);
        break;
      case models::LayerShape::Kind::norm:
        cost.forward = passes(2 * stream_ / between_);
        cost.backward_input = passes(4 * stream_ / between_);
        break;
      case models::LayerShape::Kind::head:
        add_product(cost, h_, vocabulary_);
        cost.forward += passes(rows_ * vocabulary_) + layer_loss();
        cost.backward_input += passes(2 * rows_ * vocabulary_);
        break;
    }
    const AxisGroup tensor{layout_.tensor, 1};
    const double gather = gather_seconds(cluster_, tensor, static_cast<double>(layer.tensor_bytes));
    const double pass =
        layout_.sequence_parallel ? gather + into_order(layer.tensor_bytes) : gather * cluster_.all_reduce_gathers / 2;
    const double beside = share_of_block(kind) * (cluster_.layer_seconds + cluster_.weight_seconds / tensor_);
    cost.forward += layer.tensor_passes_forward * pass + beside;
    cost.backward_input += layer.tensor_passes_backward * pass + beside;
    cost.gradients = gradients(layer);
    cost.weights_later = layer.tensor_passes_weights * pass;
    return cost;
  }

 private:
  double passes(double elements) const { return elements * product_ / cluster_.pass_bandwidth; }
  double into_order(int64_t bytes) const {
    const bool whole_samples =
        layout_.micro_batch == 1 || bytes / layout_.micro_batch >= tensor::piece_sizes(/*on_host=*/true).sample_bytes;
    return whole_samples ? 0 : kPassesOfOrder * static_cast<double>(bytes) / cluster_.pass_bandwidth;
  }
  // Mean over the micro-batches of a step: a copy reads and writes, an addition reads twice.
  double gradients(const estimate::Layer& layer) const {
    const int64_t times = layout_.accumulation(job_);
    const int64_t kept = bytes_of(job_.base.gradients(times));
    double numel = 0;
    for (const estimate::Parameter& parameter : layer.parameters) {
      numel += static_cast<double>(parameter.numel);
    }
    return numel * (element_ + static_cast<double>(kept) * (2 - 1 / static_cast<double>(times))) /
           cluster_.memory_bandwidth;
  }
  double product(double inner, double outer) const {
    return 2 * rows_ * inner * outer / cluster_.products.at(std::cbrt(rows_ * inner * outer));
  }
  void add_product(LayerCost& cost, double inner, double outer) const {
    const double once = product(inner, outer);
    cost.forward += once;
    cost.backward_input += once;
    cost.backward_weight += once;
    cost.flops += 6 * rows_ * inner * outer;
  }
  // Two numbers for every token and tensor rank.
  double layer_loss() const { return gather_seconds(cluster_, {layout_.tensor, 1}, 8 * tensor_ * rows_); }

  void add_block(LayerCost& cost, const estimate::Layer& layer) const {
    const double up = model_.is_gated() ? 2 : 1; // matrices
    add_product(cost, h_, queries_ + 2 * keys_);
    add_product(cost, queries_, h_);
    add_product(cost, h_, up * mlp_);
    add_product(cost, mlp_, h_);
    const bool writes_matrix = model_.dropout > 0;
    // Attention to tokens of other ranks keeps no matrix: it is fp32, and backward computes it again.
    const bool again = writes_matrix && layout_.context > 1;
    const double share = again ? share_of_scores() : 1;
    const auto length = static_cast<double>(model_.sequence_length);
    // One product of queries and keys; half of it if the part above the diagonal is skipped.
    const double once = 2 * rows_ * length * queries_ * (writes_matrix ? 1 : 0.5);
    const SpeedCurve& speed = cluster_.attention.points.empty() ? cluster_.products : cluster_.attention;
    const double attention =
        once * share / speed.at(std::cbrt(length * length * static_cast<double>(model_.width_of_head())));
    const double matrix = writes_matrix ? rows_ * static_cast<double>(model_.heads) * length / tensor_ * share *
                                              (again ? bytes_of(precision::Type::fp32) / product_ : 1)
                                        : 0;
    // Queries, keys, values and results of attention; rotation; GELU's input and output, or gate, up and their product.
    const double inside =
        rows_ * (2 * (queries_ + keys_) + (model_.is_gated() ? 2 * (queries_ + keys_) : 0) + (up + 1) * mlp_);
    const double stream = inside + (kPassesOutside + (writes_matrix ? kPassesOfDropout : 0)) * stream_ / between_;
    cost.forward += 2 * attention + passes(stream + kMatrixForward * matrix);
    cost.backward_input += (writes_matrix && !again ? 4 : 5) * attention +
                           passes(2 * stream + (kMatrixBackward + (again ? kMatrixForward : 0)) * matrix);
    cost.flops += 6 * once; // the same in all layouts
    if (layout_.context > 1) {
      cost.forward += over_context(layer.context_bytes_forward, layer.context_bytes_forward, 2 * attention) +
                      passes(kPassesOfContextForward * stream_ / tensor_);
      cost.backward_input += over_context(layer.context_bytes_backward, layer.context_bytes_forward, 5 * attention) +
                             passes(kPassesOfContextBackward * stream_ / tensor_);
    }
  }

  // Share of a matrix of scores with context ranks, which compute some queries at a time: in the rank's own block the
  // keys up to the last query, of other ranks' blocks half.
  double share_of_scores() const {
    const bool ring = job_.context_kind == context::Kind::ring;
    const int64_t tokens = model_.sequence_length / (ring ? layout_.context : 1);
    const int64_t heads = layout_.micro_batch * model_.heads / layout_.tensor / (ring ? 1 : layout_.context);
    const auto c = static_cast<double>(layout_.context);
    const double own = static_cast<double>(tokens + context::queries_at_once(heads * tokens, tokens)) /
                       static_cast<double>(2 * tokens);
    return ring ? (own + (c - 1) / 2) / c : own;
  }

  // A ring sends keys and values while attention uses those already received; Ulysses waits.
  double over_context(int64_t bytes, int64_t forward_bytes, double attention) const {
    const AxisGroup group{layout_.context, layout_.tensor};
    const auto c = static_cast<double>(layout_.context);
    if (job_.context_kind == context::Kind::ulysses) {
      return exchange_seconds(cluster_, group, static_cast<double>(bytes) * c / (c - 1));
    }
    const double steps =
        (c - 1) * static_cast<double>(bytes) / static_cast<double>(forward_bytes); // relative to the forward
    const double step = ring_message_seconds(cluster_, group, static_cast<double>(forward_bytes) / (c - 1));
    return std::max(0.0, steps * step - cluster_.overlap * attention);
  }

  const Cluster& cluster_;
  const Job& job_;
  const Layout& layout_;
  const models::TransformerShape& model_;
  double tensor_;
  double between_; // ranks that share what lies between the split matrices
  double element_;
  double product_; // bytes of an element of inputs and outputs of matrix products
  double rows_;    // tokens of a micro-batch on this rank
  double h_;
  double stream_;  // elements of the residual stream
  double queries_; // features of this rank's queries, keys and MLP
  double keys_;
  double mlp_;
  double vocabulary_;
};

// Whether each layer is recomputed in backward: by the layout, or by the job's policies if it has any. None if "auto"
// has not chosen yet.
std::vector<bool> recomputed(const Job& job, const Layout& layout, int64_t layers) {
  std::vector<bool> out(static_cast<size_t>(layers), layout.recompute > 0 && !job.base.activations.automatic);
  const activations::Options& activations = job.base.activations;
  if (activations.policy || !activations.choices.empty()) {
    const std::vector<activations::Way> ways = run_of_layers(job, layout).ways();
    std::transform(ways.begin(), ways.end(), out.begin(), activations::recomputes);
  }
  return out;
}

// Leaves out the backward that frozen parameters need none of.
void leave_out_frozen(const estimate::Model& model, std::vector<LayerCost>& costs) {
  const int64_t first_trained = model.first_trained();
  for (size_t i = 0; i < std::min(model.layers.size(), costs.size()); ++i) {
    double all = 0, trained = 0;
    for (const estimate::Parameter& parameter : model.layers[i].parameters) {
      all += static_cast<double>(parameter.numel);
      trained += parameter.trained ? static_cast<double>(parameter.numel) : 0;
    }
    if (trained == all) {
      continue;
    }
    LayerCost& cost = costs[i];
    const double share = trained / all;
    const bool has_backward = static_cast<int64_t>(i) >= first_trained;
    cost.backward_weight *= share;
    cost.weights_later *= share;
    cost.gradients *= share;
    cost.backward_input = has_backward ? cost.backward_input : 0;
    cost.flops *= (has_backward ? 2 + share : 1) / 3;
  }
}

} // namespace

std::vector<LayerCost> layer_costs(const Cluster& cluster, const Job& job, const Layout& layout) {
  models::TransformerShape one = job.model;
  one.layers = 1;
  const estimate::Model model = model_of(job, layout, 1);
  const std::vector<models::LayerShape> parts = models::layer_shapes(one);
  const Costs costs(cluster, job, layout);
  const std::vector<bool> again = recomputed(job, layout, std::ssize(parts) - 1 + job.model.layers);
  std::vector<LayerCost> out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LayerCost cost = costs.of(parts[i].kind, model.layers[i]);
    const int64_t times = parts[i].kind == models::LayerShape::Kind::block ? job.model.layers : 1;
    for (int64_t k = 0; k < times; ++k) {
      out.push_back(cost);
      out.back().backward_input += again[out.size() - 1] ? cost.forward : 0;
    }
  }
  if (!job.trained.empty()) {
    leave_out_frozen(model_of(job, layout), out);
  }
  return out;
}

} // namespace trireme::plan
