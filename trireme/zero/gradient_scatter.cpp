#include <trireme/zero/gradient_scatter.h>

#include <trireme/base/error.h>
#include <trireme/bucket/shard_plan.h>

#include <memory>
#include <utility>

namespace trireme::zero {
namespace {

class Both : public comm::Pending {
 public:
  Both(comm::Work first, comm::Work second) : first_(std::move(first)), second_(std::move(second)) {}
  void wait() override {
    first_.wait();
    second_.wait();
  }
  bool done() override {
    return first_.done() && second_.done();
  }

 private:
  comm::Work first_;
  comm::Work second_;
};

} // namespace

comm::Work scatter_gradients(const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket) {
  const bucket::Bucket& whole = buffer.layout().buckets()[bucket];
  const bucket::Range mine = bucket::shard_of(whole, group.rank(), group.size());
  const at::Tensor gradients = buffer.bucket_grad(bucket);
  comm::Work scattered = group.reduce_scatter(gradients.slice(0, mine.begin - whole.begin, mine.end - whole.begin), gradients, comm::ReduceOp::sum,
                                              concat("gradients, bucket ", bucket));
  if (bucket != 0) {
    return scattered;
  }
  return comm::Work(std::make_shared<Both>(std::move(scattered), group.all_reduce(buffer.riders(), comm::ReduceOp::sum, "loss")));
}

} // namespace trireme::zero
