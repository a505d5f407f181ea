#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/notes.h>
#include <trireme/data/target_counts.h>
#include <trireme/device/host_scalars.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/engine/evaluation_mode.h>

#include <torch/utils.h>

#include <algorithm>

namespace trireme::engine {
namespace {

// Returns the real samples of a micro-batch. One with padding only stays as it is: it does not count, but stages wait
// for it. A tensor may have several rows per sample: the targets of a language model are one dimension.
data::Batch without_padding(data::Batch micro_batch) {
  int64_t all = 0; // samples with padding: rows of the first defined tensor
  for (auto* tensors : {&micro_batch.inputs, &micro_batch.targets}) {
    for (at::Tensor& tensor : *tensors) {
      const int64_t rows = tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : 0;
      all = all == 0 ? rows : all;
      if (all > 0 && micro_batch.samples > all) {
        throw InputError(
            "engine",
            concat("Batch::samples is ", micro_batch.samples, ", but the batch's first tensor has ", all, " rows"),
            "Give the first tensor of a batch one row per sample; others may have several.");
      }
      if (micro_batch.samples > 0 && micro_batch.samples < all && rows % all == 0) {
        tensor = tensor.narrow(0, 0, rows / all * micro_batch.samples);
      }
    }
  }
  return micro_batch;
}

// The same with the weight of its loss: the samples, or the targets that count if not all do.
data::Batch weighed(data::Batch micro_batch) {
  micro_batch = without_padding(std::move(micro_batch));
  const bool counts = micro_batch.masks_targets && micro_batch.samples > 0 && !micro_batch.targets.empty();
  micro_batch.loss_weight = static_cast<double>(counts ? data::count_targets(micro_batch) : micro_batch.samples);
  return micro_batch;
}

} // namespace

at::Tensor Engine::eval_batch(const data::Batch& batch) {
  return eval_batch_with_logits(batch).loss;
}

LossAndLogits Engine::eval_batch_with_logits(const data::Batch& batch) {
  impl_->check_whole("eval_batch()");
  impl_->parts.buffers.unchanged->check();
  impl_->optimizer_step.finish_delayed();
  impl_->broadcast_module_buffers();
  const auto mean = impl_->replica_mean();
  pipeline::Tensors logits;
  Impl::LossSum sum;
  if (impl_->parts.runs_schedule()) {
    impl_->evaluate_pipeline(1, [&batch] { return batch; }, sum, &logits);
  } else {
    impl_->evaluate(batch, sum, &logits);
  }
  return {torch::tensor(impl_->mean_over_ranks(sum), torch::kFloat64), std::move(logits)};
}

double Engine::evaluate(data::DataLoader& loader, int64_t max_batches) {
  impl_->check_whole("evaluate()");
  impl_->parts.buffers.unchanged->check();
  impl_->optimizer_step.finish_delayed();
  impl_->broadcast_module_buffers();
  const auto mean = impl_->replica_mean();
  loader.start_epoch(0);
  Impl::LossSum sum;
  if (impl_->parts.runs_schedule()) {
    const int64_t all = impl_->batches_to_evaluate(loader);
    const int64_t count = max_batches == 0 ? all : std::min(all, max_batches);
    data::Batch last;
    const auto next = [&] {
      impl_->next_or_padding(loader, last);
      return last;
    };
    const int64_t at_once = std::max<int64_t>(impl_->parts.settings.batch.accumulation,
                                              4 * impl_->parts.ranks.pipe.size()); // fills the pipeline
    for (int64_t done = 0; done < count; done += at_once) {
      impl_->evaluate_pipeline(std::min(at_once, count - done), next, sum);
    }
    return impl_->mean_over_ranks(sum);
  }
  if (impl_->parts.parameters_are_sharded()) {
    return impl_->mean_over_ranks(impl_->evaluate_together(loader, max_batches));
  }
  for (int64_t i = 0; max_batches == 0 || i < max_batches; ++i) {
    const auto batch = loader.next();
    if (!batch) {
      break;
    }
    impl_->evaluate(*batch, sum);
  }
  return impl_->mean_over_ranks(sum);
}

// With sharded parameters each rank runs as many forwards as the rank with most data, because others need its shards.
int64_t Engine::Impl::batches_to_evaluate(data::DataLoader& loader) const {
  at::Tensor most = torch::tensor({loader.batches_per_epoch()}, torch::kInt64);
  if (parts.settings.sharding.parameters) {
    parts.ranks.group.all_reduce(most, comm::ReduceOp::max, "evaluation length").wait();
  }
  return most.item<int64_t>();
}

// After the last batch, repeats it with no sample that counts.
void Engine::Impl::next_or_padding(data::DataLoader& loader, data::Batch& batch) {
  if (auto next = loader.next()) {
    batch = std::move(*next);
  } else if (!batch.inputs.empty() || !batch.targets.empty()) {
    batch.samples = 0;
  } else {
    throw InputError("engine",
                     "this rank has nothing to evaluate, but with ZeRO stage 3 every rank takes part in every forward",
                     "Give each rank at least one micro-batch.");
  }
}

Engine::Impl::LossSum Engine::Impl::evaluate_together(data::DataLoader& loader, int64_t max_batches) {
  const int64_t most = batches_to_evaluate(loader);
  const int64_t count = max_batches == 0 ? most : std::min(max_batches, most);
  LossSum sum;
  data::Batch batch;
  for (int64_t i = 0; i < count; ++i) {
    next_or_padding(loader, batch);
    evaluate(batch, sum);
  }
  return sum;
}

void Engine::Impl::LossSum::add(const at::Tensor& mean, const data::Batch& micro_batch) {
  device::add_scalar(loss, mean.to(at::kDouble) * micro_batch.loss_weight);
  weight += micro_batch.loss_weight;
  samples += static_cast<double>(micro_batch.samples);
}

void Engine::Impl::evaluate(const data::Batch& micro_batch, LossSum& sum, pipeline::Tensors* logits) {
  const torch::NoGradGuard no_grad;
  const bool alone = !parts.parameters_are_sharded(); // otherwise other ranks need this rank's shards
  if (micro_batch.samples == 0 && alone) {
    return;
  }
  const Note note("evaluation after step", state.global_steps);
  const EvaluationMode mode(*parts.model.module, parts.model.layers.get());
  parts.buffers.coordinator->begin(zero::Pass::evaluation);
  if (micro_batch.samples == 0) {
    parts.loss_of(micro_batch);
    return;
  }
  const data::Batch real = weighed(micro_batch);
  LossAndLogits result = parts.loss_of(real);
  if (logits != nullptr) {
    *logits = std::move(result.logits);
  }
  sum.add(result.loss, real);
}

void Engine::Impl::evaluate_pipeline(int64_t micro_batches, const std::function<data::Batch()>& next, LossSum& sum,
                                     pipeline::Tensors* logits) {
  const Note note("evaluation after step", state.global_steps);
  const EvaluationMode mode(*parts.model.module, parts.model.layers.get());
  parts.model.executor->evaluate(
      static_cast<int>(micro_batches), [&] { return parts.prepared(weighed(next())); },
      [&](const pipeline::Tensors& outputs, const data::Batch& micro_batch) {
        if (micro_batch.samples > 0) {
          sum.add(parts.model.layers->loss(outputs, micro_batch.targets), micro_batch);
        }
        if (logits != nullptr && micro_batch.samples > 0) {
          *logits = parts.model.layers->logits(outputs);
        }
      });
}

double Engine::Impl::mean_over_ranks(const LossSum& sum) const {
  at::Tensor all = torch::tensor({device::read_scalars({sum.loss}).front(), sum.weight, sum.samples}, torch::kFloat64);
  parts.ranks.everyone.all_reduce(all, comm::ReduceOp::sum, "evaluation loss").wait();
  const double weight = all[1].item<double>();
  if (all[2].item<double>() == 0) {
    throw InputError("engine", "there is nothing to evaluate: no rank got a sample",
                     "Give each rank's loader samples. In your own batches, set Batch::samples.");
  }
  if (weight == 0) {
    log::warning("no target of the evaluated samples counts in the loss, which is 0");
    return 0;
  }
  return all[0].item<double>() / weight;
}

} // namespace trireme::engine
