#include <trireme/train/evaluation.h>

#include <trireme/device/host_scalars.h>
#include <trireme/device/upload.h>
#include <trireme/engine/evaluation_mode.h>

#include <torch/utils.h>

#include <limits>

namespace trireme::train {

Evaluated evaluate(engine::Engine& engine, const Task& task, data::DataLoader& loader, int64_t batches,
                   const comm::Group& everyone) {
  Evaluated evaluated;
  const auto mean = engine.mean_of_replicas(); // once for the loss and the accuracy
  evaluated.loss = engine.evaluate(loader, batches) / task.loss_divisor;
  if (!task.count_right) {
    return evaluated;
  }
  const torch::NoGradGuard no_grad;
  const engine::EvaluationMode mode(engine.module());
  device::Uploader uploader(engine.device());
  at::Tensor right; // on the device, until all batches are done
  int64_t samples = 0;
  loader.start_epoch(0);
  const int64_t most = batches == 0 ? std::numeric_limits<int64_t>::max() : batches;
  for (int64_t done = 0; done < most; ++done) {
    auto batch = loader.next();
    if (!batch) {
      break;
    }
    if (batch->samples > 0) {
      batch->inputs = uploader.upload(std::move(batch->inputs));
      batch->targets = uploader.upload(std::move(batch->targets));
      device::add_scalar(right, task.count_right(*batch));
      samples += batch->samples;
    }
  }
  at::Tensor sums =
      torch::tensor({device::read_scalars({right}).front(), static_cast<double>(samples)}, torch::kFloat64);
  everyone.all_reduce(sums, comm::ReduceOp::sum, "accuracy").wait();
  evaluated.accuracy = sums[0].item<double>() / sums[1].item<double>();
  return evaluated;
}

} // namespace trireme::train
