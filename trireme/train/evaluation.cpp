#include <trireme/train/evaluation.h>

#include <trireme/device/host_scalars.h>
#include <trireme/device/upload.h>
#include <trireme/engine/evaluation_mode.h>

#include <torch/utils.h>

#include <algorithm>
#include <limits>

namespace trireme::train {

namespace {

struct Counted {
  at::Tensor right; // on the device, until all batches are done
  int64_t samples = 0;
};

// `right_in(batch)`: rows of a batch that are right; undefined where it has no samples, or this rank no outputs.
template <typename RightIn>
Counted count_right(data::DataLoader& loader, int64_t batches, const RightIn& right_in) {
  Counted counted;
  for (int64_t done = 0; done < batches; ++done) {
    auto batch = loader.next();
    if (!batch) {
      break;
    }
    if (const at::Tensor right = right_in(*batch); right.defined()) {
      device::add_scalar(counted.right, right);
      counted.samples += batch->samples;
    }
  }
  return counted;
}

// A list of layers: its stages run every batch together, and the last one has the outputs.
Counted count_in_layers(engine::Engine& engine, const Task& task, data::DataLoader& loader, int64_t batches) {
  device::Uploader uploader(engine.device());
  return count_right(loader, batches, [&](data::Batch& batch) {
    const auto logits = engine.eval_batch_with_logits(batch).logits;
    if (batch.samples == 0 || logits.empty()) {
      return at::Tensor();
    }
    std::vector<at::Tensor> targets = uploader.upload(batch.targets);
    for (at::Tensor& target : targets) {
      target = target.narrow(0, 0, batch.samples);
    }
    return task.count_right_of(logits, targets);
  });
}

Counted count_in_one_piece(engine::Engine& engine, const Task& task, data::DataLoader& loader, int64_t batches) {
  const engine::EvaluationMode mode(engine.module());
  device::Uploader uploader(engine.device());
  return count_right(loader, batches, [&](data::Batch& batch) {
    batch.inputs = uploader.upload(std::move(batch.inputs));
    batch.targets = uploader.upload(std::move(batch.targets));
    // Without samples too, from a row that fills the batch: other ranks may need this rank's shards.
    const bool has_samples = batch.samples > 0;
    batch.samples = std::max<int64_t>(batch.samples, 1);
    const at::Tensor right = task.count_right(batch);
    return has_samples ? right : at::Tensor();
  });
}

} // namespace

Evaluated evaluate(engine::Engine& engine, const Task& task, data::DataLoader& loader, int64_t batches,
                   const comm::Group& everyone) {
  Evaluated evaluated;
  const auto mean = engine.mean_of_replicas(); // once for the loss and the accuracy
  evaluated.loss = engine.evaluate(loader, batches) / task.loss_divisor;
  if (!task.count_right && !task.count_right_of) {
    return evaluated;
  }
  const torch::NoGradGuard no_grad;
  loader.start_epoch(0);
  const int64_t most = batches == 0 ? std::numeric_limits<int64_t>::max() : batches;
  const Counted counted = task.count_right_of ? count_in_layers(engine, task, loader, most)
                                              : count_in_one_piece(engine, task, loader, most);
  at::Tensor sums = torch::tensor({device::read_scalars({counted.right}).front(), static_cast<double>(counted.samples)},
                                  torch::kFloat64);
  everyone.all_reduce(sums, comm::ReduceOp::sum, "accuracy").wait();
  evaluated.accuracy = sums[0].item<double>() / sums[1].item<double>();
  return evaluated;
}

} // namespace trireme::train
