#include <trireme/optim/optimizer.h>

#include <trireme/kernels/kernels.h>
#include <trireme/optim/adam.h>
#include <trireme/optim/parallel_blocks.h>
#include <trireme/optim/sgd.h>
#include <trireme/optim/shard_check.h>

namespace trireme::optim {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  if (options.kind == OptimizerOptions::Kind::sgd) {
    return std::make_unique<Sgd>(options.sgd);
  }
  return std::make_unique<Adam>(options.adam);
}

double squared_norm(const at::Tensor& grad) {
  check_flat(grad, "squared_norm: grad");
  const int64_t n = grad.numel();
  const float* data = grad.const_data_ptr<float>();
  const auto& kernels = kernels::active_kernels();
  std::vector<double> sums((n + kBlock - 1) / kBlock);
  parallel_ranges(n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBlock) {
      sums[i / kBlock] = kernels.squared_norm(data + i, std::min(kBlock, end - i));
    }
  });
  double sum = 0;
  for (double block : sums) {
    sum += block;
  }
  return sum;
}

} // namespace trireme::optim
