#include <trireme/zero/gradient_scatter.h>

#include <trireme/base/error.h>
#include <trireme/bucket/shard_plan.h>

#include <torch/utils.h>

#include <utility>

namespace trireme::zero {

comm::Work scatter_gradients(const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket, at::ScalarType travel) {
  const torch::NoGradGuard no_grad;
  const bucket::Bucket& whole = buffer.layout().buckets()[bucket];
  const bucket::Range mine = bucket::shard_of(whole, group.rank(), group.size());
  const auto part = [&](const at::Tensor& tensor) { return tensor.slice(0, mine.begin - whole.begin, mine.end - whole.begin); };
  const at::Tensor gradients = buffer.bucket_grad(bucket);
  const at::Tensor sent = travel == gradients.scalar_type() ? gradients : group.allocate(gradients.numel(), travel, gradients.device()).copy_(gradients);
  comm::Work scattered = group.reduce_scatter(part(sent), sent, comm::ReduceOp::sum, concat("gradients, bucket ", bucket));
  if (travel != gradients.scalar_type()) {
    scattered = comm::then(std::move(scattered), [target = part(gradients), source = part(sent)] {
      const torch::NoGradGuard no_autograd;
      at::Tensor(target).copy_(source);
    });
  }
  if (bucket != 0 || !buffer.riders().defined()) {
    return scattered;
  }
  return comm::then(std::move(scattered), [riders = group.all_reduce(buffer.riders(), comm::ReduceOp::sum, "loss")]() mutable { riders.wait(); });
}

} // namespace trireme::zero
