#include <trireme/parallel/data/data_parallel.h>

#include <trireme/base/error.h>
#include <trireme/bucket/shared_memory.h>
#include <trireme/parallel/data/convert_sync_batch_norm.h>
#include <trireme/parallel/data/gradient_sync.h>
#include <trireme/parallel/data/module_buffers.h>
#include <trireme/parallel/data/reducer.h>
#include <trireme/parallel/data/replicas.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <array>
#include <optional>

namespace trireme::parallel {
namespace {

bucket::NamedTensors checked_parameters(const torch::nn::Module& model) {
  bucket::refuse_shared_memory(bucket::tensors_of(model));
  return trainable_parameters(model);
}

// Every option says what travels or what is done with it. A field that is added breaks the first line.
void check_same_options(const comm::Group& ranks, const DataParallelOptions& options) {
  const auto& [op, algorithm, bucket, first_bucket, prescale, predivide, at_start, module_buffers, norms] = options;
  constexpr std::array kNames = {"op",
                                 "algorithm",
                                 "bucket_bytes",
                                 "first_bucket_bytes",
                                 "prescale_gradients",
                                 "gradient_predivide_factor",
                                 "broadcast_at_start",
                                 "broadcast_buffers",
                                 "sync_batch_norm"};
  const std::array<double, kNames.size()> mine = {static_cast<double>(op),
                                                  static_cast<double>(algorithm),
                                                  static_cast<double>(bucket),
                                                  static_cast<double>(first_bucket),
                                                  prescale ? 1.0 : 0.0,
                                                  predivide,
                                                  at_start ? 1.0 : 0.0,
                                                  module_buffers ? 1.0 : 0.0,
                                                  norms ? 1.0 : 0.0};
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor all = torch::empty({ranks.size(), count}, torch::kFloat64);
  ranks
      .all_gather(all, torch::tensor(at::ArrayRef<double>(mine.data(), mine.size()), torch::kFloat64),
                  "options of DataParallel")
      .wait();
  for (int rank = 1; rank < ranks.size(); ++rank) {
    for (int64_t i = 0; i < count; ++i) {
      const auto here = all[0][i].item<double>();
      const auto there = all[rank][i].item<double>();
      if (there != here) {
        throw InputError(
            "DataParallel",
            concat("rank ", ranks.members()[static_cast<size_t>(rank)], " and rank ", ranks.members().front(),
                   " differ in ", kNames[static_cast<size_t>(i)], ": ", there, " and ", here),
            "Give DataParallel the same options on every rank.");
      }
    }
  }
}

} // namespace

class DataParallel::Impl : public AllReduceSync {
 public:
  Impl(torch::nn::Module& model, comm::Group ranks, const DataParallelOptions& options)
      : AllReduceSync(std::move(ranks), options), buffers_(flatten(checked_parameters(model), group(), options)) {
    check_same_options(group(), options);
    check_same_model(buffers_, group());
    if (options.broadcast_at_start) {
      broadcast_parameters(buffers_, group());
      broadcast_untrained(model, group());
    }
    if (options.broadcast_buffers) {
      module_buffers_.emplace(model.buffers(), group());
    }
    if (options.sync_batch_norm) {
      synced_.emplace(model, group());
    }
    std::vector<bucket::FlatParameters*> pointers;
    for (const auto& buffer : buffers_) {
      pointers.push_back(buffer.get());
    }
    reducer = std::make_unique<Reducer>(pointers, *this);
    mean_ = options.op == DataParallelOptions::Op::mean;
  }

  void backward_ended() override {
    finish_reduction();
    ++steps_;
  }

  void join() {
    if (group().size() == 1) {
      return;
    }
    if (synced_ && synced_->size() > 0) {
      throw InputError("DataParallel", "join() with sync_batch_norm: the others would wait for this rank's part of their statistics",
                       "Give all ranks the same number of batches, as trireme::TorchSampler does, and leave join() out.");
    }
    joined_ = true;
    for (double active = 1; active != 0;) {
      const torch::NoGradGuard no_grad;
      for (const auto& buffer : buffers_) {
        buffer->clear_grads();
      }
      reducer->reduce_without_backward();
      active = finish_reduction();
    }
    broadcast_parameters(buffers_, group(), best_rank(steps_));
  }

  void zero_grad() {
    for (const auto& buffer : buffers_) {
      buffer->clear_grads();
    }
  }

 private:
  // Waits for the sums and turns them into means over the ranks that still have data. Returns how many have.
  double finish_reduction() {
    const bool active = !joined_;
    at::Tensor ranks = torch::tensor({active ? 1.0 : 0.0, active && group().rank() == 0 ? 1.0 : 0.0}, torch::kFloat64);
    comm::Work counted = group().all_reduce(ranks, comm::ReduceOp::sum, "ranks that have data");
    reducer->finish();
    counted.wait();
    const double count = ranks[0].item<double>();
    const double factor = scale() * (mean_ && count > 0 ? group().size() / count : 1);
    const torch::NoGradGuard no_grad;
    for (const auto& buffer : buffers_) {
      if (factor != 1) {
        buffer->flat_grad().mul_(factor);
      }
    }
    // Runs before the next forward, of which DataParallel gets no notice.
    if (module_buffers_ && !module_buffers_->empty() && count != 0) {
      module_buffers_->broadcast(ranks[1].item<double>() > 0 ? 0 : best_rank(active ? 1 : 0));
    }
    return count;
  }
  // The lowest of the ranks with the highest score. Collective.
  int best_rank(int64_t score) const {
    at::Tensor best = torch::tensor({score * group().size() + group().size() - 1 - group().rank()}, torch::kInt64);
    group().all_reduce(best, comm::ReduceOp::max, "join").wait();
    return static_cast<int>(group().size() - 1 - best.item<int64_t>() % group().size());
  }

  FlatBuffers buffers_;
  std::optional<ModuleBuffers> module_buffers_;
  std::optional<SyncedBatchNorms> synced_;
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
