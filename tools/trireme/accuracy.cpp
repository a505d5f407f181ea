#include "accuracy.h"

#include <trireme/device/host_scalars.h>
#include <trireme/device/upload.h>

#include <torch/utils.h>

namespace trireme::tools {

double accuracy(const Task& task, data::DataLoader& loader, int64_t max_batches, at::Device device, const comm::Group& ranks) {
  device::Uploader uploader(device);
  at::Tensor right; // on the device, until all batches are through
  int64_t samples = 0;
  loader.start_epoch(0);
  for (int64_t batches = 0; max_batches == 0 || batches < max_batches; ++batches) {
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
  at::Tensor sums = torch::tensor({device::read_scalars({right}).front(), static_cast<double>(samples)}, torch::kFloat64);
  ranks.all_reduce(sums, comm::ReduceOp::sum, "accuracy").wait();
  return sums[0].item<double>() / sums[1].item<double>();
}

} // namespace trireme::tools
