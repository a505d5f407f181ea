#include <trireme/shards/data_parallel/gradient_sync.h>

#include <trireme/base/error.h>
#include <trireme/comm/algorithms/all_reduce.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

namespace trireme::parallel {
namespace {

using Algorithm = DataParallelOptions::Algorithm;

comm::Work all_reduce(Algorithm algorithm, const comm::Group& group, const at::Tensor& tensor,
                      const std::string& what) {
  const auto by_messages = [&](comm::Algorithm chosen) {
    comm::all_reduce(chosen, group, tensor);
    return comm::Work();
  };
  switch (algorithm) {
    case Algorithm::ring:
      return by_messages(comm::Algorithm::ring);
    case Algorithm::tree:
      return by_messages(comm::Algorithm::tree);
    case Algorithm::halving_doubling:
      return by_messages(comm::Algorithm::halving_doubling);
    case Algorithm::naive:
      return by_messages(comm::Algorithm::naive);
    case Algorithm::backend:
      break;
  }
  return group.all_reduce(tensor, comm::ReduceOp::sum, what);
}

} // namespace

nlohmann::json SyncState::state() const {
  return nullptr;
}

void SyncState::load_state(const nlohmann::json&, int64_t) {}

void SyncState::for_each_state(const nlohmann::json&, const Visit&) {}

const comm::Group& GradientSync::step_group() const {
  return local_steps() != nullptr && local_steps()->is_local() ? one_ : group();
}

bool GradientSync::sums_all_after(int64_t steps) {
  return workers() == nullptr && !steps_locally_after(steps);
}

bool GradientSync::steps_locally_after(int64_t steps) const {
  return local_steps() != nullptr && group().size() > 1 && local_steps()->is_local_after(steps);
}

comm::Work reduce_bucket(const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket, ReduceTo to,
                         at::ScalarType travel, Algorithm algorithm) {
  const torch::NoGradGuard no_grad;
  const at::Tensor gradients = buffer.bucket_grad(bucket);
  const auto received = [&](const at::Tensor& tensor) {
    const int64_t begin = buffer.layout().buckets()[bucket].begin;
    const bucket::Range mine = buffer.plan().mine(bucket);
    return to == ReduceTo::all ? tensor : tensor.slice(0, mine.begin - begin, mine.end - begin);
  };
  const at::Tensor sent = travel == gradients.scalar_type()
                              ? gradients
                              : group.allocate(gradients.numel(), travel, gradients.device()).copy_(gradients);
  const std::string what = concat("gradients, bucket ", bucket);
  comm::Work work = to == ReduceTo::all ? all_reduce(algorithm, group, sent, what)
                                        : group.reduce_scatter(received(sent), sent, comm::ReduceOp::sum, what);
  if (sent.is_same(gradients)) {
    return work;
  }
  return comm::then(std::move(work), [target = received(gradients), source = received(sent)] {
    const torch::NoGradGuard no_autograd;
    at::Tensor(target).copy_(source);
  });
}

AllReduceSync::AllReduceSync(ReduceGroups groups, const DataParallelOptions& options,
                             std::optional<at::ScalarType> travel)
    : GradientSync(std::move(groups)), options_(options), travel_(travel) {}

double AllReduceSync::pre_scale() const {
  if (group().size() == 1) { // as in scale(): sums over other ranks are not divided
    return 1;
  }
  return options_.prescale_gradients ? 1.0 / group().size() : 1.0 / options_.gradient_predivide_factor;
}

double AllReduceSync::scale() const {
  if (group().size() == 1) {
    return 1;
  }
  if (options_.op == DataParallelOptions::Op::sum) {
    return options_.prescale_gradients ? group().size() : options_.gradient_predivide_factor;
  }
  return options_.prescale_gradients ? 1.0 : options_.gradient_predivide_factor / group().size();
}

void AllReduceSync::apply_pre_scale(bucket::FlatParameters& buffer, int64_t bucket) const {
  if (const double scale = pre_scale(); scale != 1) {
    const torch::NoGradGuard no_grad;
    buffer.bucket_grad(bucket).mul_(scale);
  }
}

// Keeps scale() valid for all buckets.
void AllReduceSync::gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) {
  apply_pre_scale(buffer, bucket);
}

comm::Work AllReduceSync::reduce(bucket::FlatParameters& buffer, int64_t bucket, ReduceTo to) {
  apply_pre_scale(buffer, bucket);
  const at::ScalarType type = groups().of(buffer).size() > 1
                                  ? travel(buffer)
                                  : buffer.gradient_type(); // nothing is sent, so nothing is rounded
  return reduce_bucket(to == ReduceTo::shards ? groups().shards_of(buffer) : groups().of(buffer), buffer, bucket, to,
                       type, options_.algorithm);
}

comm::Work AllReduceSync::gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) {
  return reduce(buffer, bucket, ReduceTo::all);
}

} // namespace trireme::parallel
