#include <trireme/parallel/data/data_parallel.h>

#include <trireme/bucket/shared_memory.h>
#include <trireme/parallel/data/module_buffers.h>
#include <trireme/parallel/data/reducer.h>
#include <trireme/parallel/data/replicas.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <optional>

namespace trireme::parallel {
namespace {

// Rider elements of the first buffer: how many ranks took part in this reduction, and whether rank 0 did.
constexpr int64_t kActiveRanks = 0;
constexpr int64_t kRankZero = 1;

bucket::NamedTensors checked_parameters(const torch::nn::Module& model) {
  bucket::refuse_shared_memory(bucket::tensors_of(model));
  return trainable_parameters(model);
}

} // namespace

class DataParallel::Impl {
 public:
  Impl(torch::nn::Module& model, comm::Group group, const DataParallelOptions& options)
      : group_(std::move(group)), buffers_(flatten(checked_parameters(model), group_, options)) {
    check_same_model(buffers_, group_);
    if (options.broadcast_at_start) {
      broadcast_parameters(buffers_, group_);
      broadcast_untrained(model, group_);
    }
    if (options.broadcast_buffers) {
      module_buffers_.emplace(model, group_);
    }
    std::vector<bucket::FlatParameters*> pointers;
    for (const auto& buffer : buffers_) {
      pointers.push_back(buffer.get());
    }
    reducer = std::make_unique<Reducer>(pointers, group_, options);
    mean_ = options.op == DataParallelOptions::Op::mean;
    set_active(true);
    reducer->on_backward_end([this] { settle(); });
  }

  // Waits for the sums and turns them into means over the ranks that took part. Returns how many did.
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
    // Before the next forward, which nobody tells us of.
    if (module_buffers_ && !module_buffers_->empty() && active != 0) {
      module_buffers_->broadcast(riders()[kRankZero].item<double>() > 0 ? 0 : best_rank(joined_ ? 0 : 1));
    }
    set_active(true);
    ++steps_;
    return active;
  }

  void join() {
    if (group_.size() == 1) {
      return;
    }
    const int64_t trained = steps_;
    joined_ = true;
    for (double active = 1; active != 0;) {
      const torch::NoGradGuard no_grad;
      for (const auto& buffer : buffers_) {
        buffer->clear_grads();
      }
      set_active(false);
      reducer->reduce_without_backward();
      active = settle();
    }
    broadcast_parameters(buffers_, group_, best_rank(trained));
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
  void set_active(bool on) {
    riders()[kActiveRanks] = on ? 1 : 0;
    riders()[kRankZero] = on && group_.rank() == 0 ? 1 : 0;
  }
  // The lowest of the ranks with the highest score. Collective.
  int best_rank(int64_t score) const {
    at::Tensor best = torch::tensor({score * group_.size() + group_.size() - 1 - group_.rank()}, torch::kInt64);
    group_.all_reduce(best, comm::ReduceOp::max, "join").wait();
    return static_cast<int>(group_.size() - 1 - best.item<int64_t>() % group_.size());
  }
  double pre_scale() const {
    return reducer->pre_scale();
  }

  comm::Group group_;
  FlatBuffers buffers_;
  std::optional<ModuleBuffers> module_buffers_;
  bool mean_ = true;
  bool joined_ = false; // has run out of data
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
