#include <trireme/shards/data_parallel/sync_batch_norm.h>

#include <trireme/base/error.h>
#include <trireme/base/notes.h>
#include <trireme/comm/call_advice.h>
#include <trireme/comm/held_group.h>
#include <trireme/comm/same_ranks.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

#include <atomic>

namespace trireme::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGroup = "batch statistics";

at::ScalarType type_of_statistics(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

int64_t values_a_channel(const at::Tensor& x) {
  return x.size(0) * c10::multiply_integers(x.sizes().slice(2));
}

// Views [C] as [1, C, 1, ...], which broadcasts with x.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = -1;
  return values.view(sizes);
}

/// Statistics of each channel over all ranks.
struct Statistics {
  at::Tensor mean;
  at::Tensor var;   // biased
  at::Tensor count; // values per channel, one number on x's device: the host does not wait for it
};

Statistics statistics(const at::Tensor& x, const comm::Group& ranks, const StatisticsNames& names) {
  const int64_t channels = x.size(1);
  const int64_t count = values_a_channel(x);
  const int64_t numbers = 2 * channels + 1;
  const at::ScalarType type = type_of_statistics(x);
  const at::Tensor mine = ranks.allocate(numbers, type, x.device());
  const at::Tensor all = ranks.allocate(numbers * ranks.size(), type, x.device());
  mine.fill_(count);
  if (count == 0) {
    mine.zero_();
  } else {
    const auto [mean, var] = at::batch_norm_update_stats(x.to(type), {}, {}, 0);
    mine.slice(0, 0, channels).copy_(mean);
    mine.slice(0, channels, 2 * channels).copy_(var);
  }
  ranks.all_gather(all, mine, names.forward).wait();

  const at::Tensor each = all.view({ranks.size(), numbers});
  const at::Tensor means = each.slice(1, 0, channels);
  const at::Tensor counts = each.slice(1, 2 * channels);
  const at::Tensor total = counts.sum();
  if (total.is_cpu() && total.item<double>() < 2) {
    throw InputError(
        "sync_batch_norm",
        concat("all ", ranks.size(), " ranks have ", total.item<int64_t>(),
               " values per channel in total, and a variance needs two; this rank's x has sizes ", x.sizes()),
        "Give the ranks more samples.");
  }
  const at::Tensor shares = counts / total.clamp_min(1);
  const at::Tensor mean = (means * shares).sum(0);
  const at::Tensor var = ((each.slice(1, channels, 2 * channels) + (means - mean).square()) * shares).sum(0);
  return {mean, var, total};
}

void move_running(const BatchNormTensors& layer, const Statistics& all, double momentum) {
  if (layer.running_mean.defined()) {
    layer.running_mean.mul_(1 - momentum).add_(all.mean, momentum);
  }
  if (layer.running_var.defined()) {
    layer.running_var.mul_(1 - momentum).add_(all.var * (all.count / (all.count - 1).clamp_min(1)), momentum);
  }
}

void check_sizes(const at::Tensor& x, const BatchNormTensors& layer) {
  if (x.dim() < 2 || !x.is_floating_point()) {
    throw InputError("sync_batch_norm",
                     concat("x is ", at::toString(x.scalar_type()), " of sizes ", x.sizes(),
                            ", expected a floating type and sizes [N, C, ...]"),
                     "Give samples without channels a dim of 1.");
  }
  for (const at::Tensor& tensor : {layer.weight, layer.bias, layer.running_mean, layer.running_var}) {
    if (tensor.defined() && tensor.numel() != x.size(1)) {
      throw InputError(
          "sync_batch_norm",
          concat("x has ", x.size(1), " channels (sizes ", x.sizes(), "), but the layer has ", tensor.numel()),
          "Make the layer with as many features as its input has channels.");
    }
  }
}

struct Normalise : torch::autograd::Function<Normalise> {
  // A Function takes absent tensors (std::nullopt) but no undefined ones.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& /*weight*/,
                            const std::optional<at::Tensor>& bias, const BatchNormTensors& layer, double momentum,
                            double eps, const comm::Group& ranks, const StatisticsNames& names) {
    const Statistics all = statistics(x, ranks, names);
    move_running(layer, all, momentum);
    context->save_for_backward({x, layer.weight, all.mean, all.var, all.count});
    context->saved_data["eps"] = eps;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["ranks"] = comm::HeldGroup::hold(ranks);
    context->saved_data["name"] = names.backward;
    if (x.numel() == 0) {
      return at::empty_like(x);
    }
    const auto widened = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(all.mean.scalar_type()) : tensor;
    };
    return std::get<0>(at::native_batch_norm(x, widened(layer.weight), widened(layer.bias), all.mean, all.var,
                                             /*training=*/false, 0, eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (at::GradMode::is_enabled()) {
      throw Error("sync_batch_norm", "it cannot be differentiated twice (backward with create_graph)",
                  "Use BatchNorm, whose statistics are local to each rank.");
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &var = saved[3], &count = saved[4];
    const double eps = context->saved_data["eps"].toDouble();
    const at::ScalarType type = mean.scalar_type();
    const at::Tensor values = x.to(type);
    const at::Tensor grad = grads[0].to(type);

    // Sums of grad * (x - mean) / sqrt(var + eps) and of grad: this rank's gradients of weight and bias.
    const at::Tensor inverse = (var + eps).rsqrt();
    at::Tensor scaled = at::zeros_like(mean), plain = at::zeros_like(mean);
    if (x.numel() > 0) { // CUDA reads the last two tensors, the CPU the two before them
      std::tie(std::ignore, scaled, plain) = at::native_batch_norm_backward(
          grad, values, at::ones_like(mean), mean, var, mean, inverse, /*train=*/false, eps, {false, true, true});
    }
    variable_list result(8);
    if (context->needs_input_grad(0)) { // false in a pipeline's separate backward for the parameters
      const comm::Group ranks = comm::HeldGroup::of(context->saved_data["ranks"]);
      const int64_t channels = mean.numel();
      at::Tensor sums = ranks.allocate(2 * channels, type, x.device());
      at::cat_out(sums, {scaled, plain});
      ranks.all_reduce(sums, comm::ReduceOp::sum, context->saved_data["name"].toStringRef()).wait();
      const at::Tensor means = sums / count.clamp_min(1);
      const at::Tensor factor = weight.defined() ? inverse * weight : inverse;
      at::Tensor dx = values - by_channel(mean, x);
      dx.mul_(by_channel(-factor * inverse * means.slice(0, 0, channels), x));
      dx.sub_(by_channel(factor * means.slice(0, channels), x));
      dx.addcmul_(grad, by_channel(factor.to(type), x));
      result[0] = dx.to(x.scalar_type());
    }
    // Edges of absent tensors are not counted.
    const bool has_weight = weight.defined();
    const bool has_bias = context->saved_data["has_bias"].toBool();
    if (has_weight && context->needs_input_grad(1)) {
      result[1] = scaled; // autograd casts it to the weight's type
    }
    if (has_bias && context->needs_input_grad(has_weight ? 2 : 1)) {
      result[2] = plain;
    }
    return result;
  }
};

} // namespace

at::Tensor sync_batch_norm(const at::Tensor& x, const BatchNormTensors& layer, double momentum, double eps,
                           const comm::Group& ranks, const StatisticsNames& names) {
  check_sizes(x, layer);
  const auto given = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
  return Normalise::apply(x, given(layer.weight), given(layer.bias), layer, momentum, eps, ranks, names);
}

StatisticsNames::StatisticsNames(const std::string& layer)
    : forward(keep_name(concat("batch statistics of ", layer))),
      backward(keep_name(concat("gradients of batch statistics of ", layer))) {}

comm::Group statistics_group(const comm::Group& ranks) {
  comm::set_advice(kGroup,
                   "All ranks must call the layer in training mode: call model->eval() before an evaluation on one "
                   "rank, and model->train() after it.");
  return comm::same_ranks(ranks, kGroup);
}

void name_norms(torch::nn::Module& model) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (auto* const norm = item.value()->as<SyncBatchNormImpl>()) {
      norm->set_name("layer " + item.key());
    }
  }
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const comm::Group& ranks)
    : NormImplBase(options), ranks_(statistics_group(ranks)) {
  static std::atomic<int> made{0}; // construction is collective, so all ranks count alike
  set_name(concat("SyncBatchNorm ", ++made, " (", options.num_features(), " features)"));
}

void SyncBatchNormImpl::set_name(const std::string& name) {
  names_ = StatisticsNames(name);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& x) {
  _check_input_dim(x);
  double momentum = options.momentum().value_or(0);
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked.add_(1);
    if (!options.momentum()) { // the mean over all steps
      momentum = 1.0 / num_batches_tracked.item<double>();
    }
  }
  if (!is_training()) {
    return at::batch_norm(x, weight, bias, running_mean, running_var, /*training=*/!running_mean.defined(), momentum,
                          options.eps(), true);
  }
  return sync_batch_norm(x, {weight, bias, running_mean, running_var}, momentum, options.eps(), ranks_, names_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "trireme::parallel::SyncBatchNorm(" << options.num_features() << ", ranks=" << ranks_.size() << ")";
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& x) {
  check_sizes(x, {weight, bias, running_mean, running_var});
}

} // namespace trireme::parallel
