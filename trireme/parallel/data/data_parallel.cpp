#include <trireme/parallel/data/data_parallel.h>

#include <trireme/base/error.h>
#include <trireme/parallel/data/reducer.h>
#include <trireme/parallel/data/replicas.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

namespace trireme::parallel {
namespace {

// Rider elements of the first buffer: who took part in this reduction.
constexpr int64_t kActiveRanks = 0;

} // namespace

class DataParallel::Impl {
 public:
  Impl(torch::nn::Module& model, comm::Group group, const DataParallelOptions& options)
      : group_(std::move(group)), buffers_(flatten(trainable_parameters(model), group_, options)) {
    check_same_model(buffers_, group_);
    broadcast_parameters(buffers_, group_);
    broadcast_untrained(model, group_);
    std::vector<bucket::FlatParameters*> pointers;
    for (const auto& buffer : buffers_) {
      pointers.push_back(buffer.get());
    }
    reducer = std::make_unique<Reducer>(pointers, group_, options);
    mean_ = options.op == DataParallelOptions::Op::mean;
    riders()[kActiveRanks] = 1;
    reducer->on_backward_end([this] { settle(); });
  }

  // Waits for the sums and turns them into means over the ranks that took part.
  double settle() {
    reducer->finish();
    const double active = group_.size() == 1 ? 1 : riders()[kActiveRanks].item<double>() / pre_scale();
    if (group_.size() > 1 && active > 0) {
      const torch::NoGradGuard no_grad;
      const double scale = reducer->post_scale() * (mean_ ? group_.size() / active : 1);
      for (const auto& buffer : buffers_) {
        if (scale != 1) {
          buffer->flat_grad().mul_(scale);
        }
      }
    }
    riders()[kActiveRanks] = 1;
    ++steps_;
    return active;
  }

  void join() {
    if (group_.size() == 1) {
      return;
    }
    const int64_t trained = steps_;
    for (double active = 1; active > 0;) {
      const torch::NoGradGuard no_grad;
      for (const auto& buffer : buffers_) {
        buffer->clear_grads();
      }
      riders()[kActiveRanks] = 0;
      reducer->reduce_without_backward();
      active = settle();
    }
    // The lowest of the ranks that trained longest hands out its weights.
    at::Tensor best = torch::tensor({trained * group_.size() + group_.size() - 1 - group_.rank()}, torch::kInt64);
    group_.all_reduce(best, comm::ReduceOp::max, "join").wait();
    broadcast_parameters(buffers_, group_, static_cast<int>(group_.size() - 1 - best.item<int64_t>() % group_.size()));
  }

  void zero_grad() {
    for (const auto& buffer : buffers_) {
      buffer->clear_grads();
    }
  }

 private:
  at::Tensor riders() const {
    return buffers_.front()->riders();
  }
  double pre_scale() const {
    return reducer->pre_scale();
  }

  comm::Group group_;
  FlatBuffers buffers_;
  bool mean_ = true;
  int64_t steps_ = 0;

 public:
  std::unique_ptr<Reducer> reducer; // last: its destructor takes the hooks off the buffers
};

DataParallel::DataParallel(torch::nn::Module& model, comm::Group group, const DataParallelOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(group), options)) {}
DataParallel::~DataParallel() = default;
DataParallel::DataParallel(DataParallel&&) noexcept = default;
DataParallel& DataParallel::operator=(DataParallel&&) noexcept = default;

void DataParallel::zero_grad() {
  impl_->zero_grad();
}
void DataParallel::join() {
  impl_->join();
}
double DataParallel::exposed_seconds() const {
  return impl_->reducer->exposed_seconds();
}

DataParallel::NoSync::NoSync(DataParallel& parallel) : parallel_(parallel), before_(parallel.impl_->reducer->synchronising()) {
  parallel_.impl_->reducer->set_synchronising(false);
}
DataParallel::NoSync::~NoSync() {
  parallel_.impl_->reducer->set_synchronising(before_);
}

} // namespace trireme::parallel
