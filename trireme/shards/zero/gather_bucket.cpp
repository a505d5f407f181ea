#include <trireme/shards/zero/gather_bucket.h>

#include <trireme/device/stream.h>

#include <torch/utils.h>

#include <memory>
#include <utility>

namespace trireme::zero {
namespace {

comm::Work gather_from_host(const comm::Group& group, bucket::FlatParameters& parameters, int64_t bucket) {
  const torch::NoGradGuard no_grad;
  const at::Device device = parameters.device();
  const at::Tensor whole = parameters.bucket_data(bucket); // may have been another bucket's on the current stream
  const c10::Stream own = parameters.shard_stream();
  const device::OnStream on(own, device::current_stream(device));
  const at::Tensor there = torch::empty({parameters.plan().mine(bucket).numel()}, whole.options());
  parameters.copy_to_device(bucket, there);
  comm::Work gathered = group.all_gather(whole, there, "parameters");
  const auto copied = std::make_shared<device::Event>(device.type());
  copied->record(own);
  return comm::then(std::move(gathered), [device, copied] { copied->block(device::current_stream(device)); });
}

} // namespace

comm::Work gather_bucket(const comm::Group& group, bucket::FlatParameters& parameters, int64_t bucket) {
  const auto publish = [&parameters, bucket] { parameters.publish(bucket); };
  if (parameters.keeps_on_host(bucket)) {
    return comm::then(gather_from_host(group, parameters, bucket), publish);
  }
  const at::Tensor part = parameters.owned_data(bucket, parameters.plan().mine(bucket));
  if (group.size() == 1 && !parameters.is_gathered(bucket)) {
    parameters.show_owned_data(bucket, part);
    return {};
  }
  comm::Work gathered = group.all_gather(parameters.bucket_data(bucket), part, "parameters");
  return parameters.is_replicated(bucket) ? std::move(gathered) : comm::then(std::move(gathered), publish);
}

} // namespace trireme::zero
