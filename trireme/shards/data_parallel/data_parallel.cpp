#include <trireme/shards/data_parallel/data_parallel.h>

#include <trireme/base/error.h>
#include <trireme/comm/differences.h>
#include <trireme/shards/bucket/shared_memory.h>
#include <trireme/shards/data_parallel/convert_sync_batch_norm.h>
#include <trireme/shards/data_parallel/gradient_sync.h>
#include <trireme/shards/data_parallel/late_parameters.h>
#include <trireme/shards/data_parallel/module_buffers.h>
#include <trireme/shards/data_parallel/reducer.h>
#include <trireme/shards/data_parallel/replicas.h>
#include <trireme/shards/data_parallel/sync_batch_norm.h>

#include <torch/nn/module.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

namespace trireme::parallel {
namespace {

/// Walking over 300 parameters of a model takes a millisecond.
constexpr int64_t kBackwardsBetweenLooks = 32;

// More often at the start, when programs build their models.
bool is_time_to_look(int64_t backwards) {
  return backwards % kBackwardsBetweenLooks == 0 ||
         (backwards < kBackwardsBetweenLooks && std::has_single_bit(static_cast<uint64_t>(backwards)));
}

// The tensors that DataParallel exchanges, from a module or by name.
struct Tensors {
  bucket::NamedTensors parameters; // frozen ones too
  bucket::NamedTensors buffers;
  torch::nn::Module* model = nullptr;

  explicit Tensors(torch::nn::Module& module) : model(&module) {
    for (const auto& item : module.named_parameters()) {
      parameters.emplace_back(item.key(), item.value());
    }
    for (const auto& item : module.named_buffers()) {
      buffers.emplace_back(item.key(), item.value());
    }
    refuse_shared_memory();
  }
  Tensors(bucket::NamedTensors named, bucket::NamedTensors named_buffers)
      : parameters(std::move(named)), buffers(std::move(named_buffers)) {
    for (const auto& [name, tensor] : all()) {
      if (!tensor.defined() || !tensor.is_leaf()) {
        throw InputError("DataParallel",
                         concat('"', name, "\" is ",
                                tensor.defined() ? "the result of a computation, which gets no gradient" : "undefined"),
                         "Name the tensors that an optimizer steps: made with requires_grad, and not changed by an "
                         "operation since.");
      }
    }
    refuse_shared_memory();
  }

  bucket::NamedTensors all() const {
    bucket::NamedTensors tensors = parameters;
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
    return tensors;
  }
  bucket::NamedTensors frozen() const {
    bucket::NamedTensors tensors;
    std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(tensors),
                 [](const auto& named) { return !named.second.requires_grad(); });
    return tensors;
  }
  std::vector<at::Tensor> buffer_tensors() const {
    std::vector<at::Tensor> tensors;
    std::transform(buffers.begin(), buffers.end(), std::back_inserter(tensors),
                   [](const auto& named) { return named.second; });
    return tensors;
  }

 private:
  void refuse_shared_memory() const { bucket::refuse_shared_memory(all()); }
};

// Packs the flags of all ranks into few numbers: each double holds several exact sums that cannot overflow.
class Flags {
 public:
  Flags(int ranks, size_t count) : bits_(std::bit_width(static_cast<unsigned>(ranks))), flags_(count) {}

  std::vector<bool>::reference operator[](size_t i) { return flags_[i]; }
  const std::vector<bool>& values() const { return flags_; }
  size_t numbers() const { return (flags_.size() + per_number() - 1) / per_number(); }
  void write(double* numbers) const {
    for (size_t i = 0; i < flags_.size(); ++i) {
      numbers[i / per_number()] += flags_[i] ? std::ldexp(1.0, shift(i)) : 0;
    }
  }
  /// Sets each flag that was set on any rank, from the sums over the ranks.
  void read(const double* sums) {
    for (size_t i = 0; i < flags_.size(); ++i) {
      flags_[i] = (static_cast<int64_t>(sums[i / per_number()]) >> shift(i) & ((int64_t{1} << bits_) - 1)) != 0;
    }
  }

 private:
  size_t per_number() const { return static_cast<size_t>(std::numeric_limits<double>::digits / bits_); }
  int shift(size_t i) const { return bits_ * static_cast<int>(i % per_number()); }

  int bits_; // per flag, enough to count all ranks
  std::vector<bool> flags_;
};

// Every option decides about messages or gradients. Adding a field breaks the first line.
void check_same_options(const comm::Group& ranks, const DataParallelOptions& options, int64_t frozen) {
  const auto& [op, algorithm, bucket, first_bucket, prescale, predivide, at_start, module_buffers, norms] = options;
  const nlohmann::ordered_json mine = {{"op", op},
                                       {"algorithm", algorithm},
                                       {"bucket_bytes", bucket},
                                       {"first_bucket_bytes", first_bucket},
                                       {"prescale_gradients", prescale},
                                       {"gradient_predivide_factor", predivide},
                                       {"broadcast_at_start", at_start},
                                       {"broadcast_buffers", module_buffers},
                                       {"sync_batch_norm", norms},
                                       {"the number of frozen parameters", frozen}};
  for (const comm::LeafDifference& found : comm::differences(ranks, mine, "options of DataParallel")) {
    throw InputError(
        "DataParallel",
        concat(found.ranks(), " differ in ", found.path.substr(1), ": ", found.other(), " and ", found.first()),
        "Give DataParallel the same options and the same model on every rank.");
  }
}

} // namespace

class DataParallel::Impl : public AllReduceSync {
 public:
  Impl(const Tensors& tensors, comm::Group ranks, const DataParallelOptions& options)
      : AllReduceSync(std::move(ranks), options),
        buffers_(flatten(trainable_parameters(tensors.parameters), group(), options)),
        late_(tensors.frozen(), trainable_parameters(tensors.parameters),
              tensors.model == nullptr ? std::weak_ptr<torch::nn::Module>() : tensors.model->weak_from_this()) {
    check_same_options(group(), options, late_.size());
    check_same_model(buffers_, group());
    if (options.broadcast_at_start) {
      broadcast_parameters(buffers_, group());
      broadcast_tensors(tensors.frozen(), group());
      broadcast_tensors(tensors.buffers, group());
      compares_values_ = group().size() > 1;
    }
    if (options.broadcast_buffers) {
      module_buffers_.emplace(tensors.buffer_tensors(), group());
    }
    if (tensors.model != nullptr) {
      name_norms(*tensors.model);
    }
    if (options.sync_batch_norm) {
      if (tensors.model == nullptr) {
        throw InputError("DataParallel", "sync_batch_norm needs BatchNorm layers; DataParallel was given named tensors",
                         "Give DataParallel the torch::nn::Module.");
      }
      synced_.emplace(*tensors.model, group());
    }
    reducer = std::make_unique<Reducer>(pointers_to(buffers_), *this);
    reducer->watch(late_.tensors());
    mean_ = options.op == DataParallelOptions::Op::mean;
  }

  void backward_ended() override {
    if (is_time_to_look(steps_)) {
      late_.refuse_new();
    }
    finish_reduction();
    reducer->watch_again();
    ++steps_;
  }

  void join() {
    if (group().size() == 1) {
      return;
    }
    if (synced_ && synced_->size() > 0) {
      throw InputError(
          "DataParallel", "join() with sync_batch_norm: the other ranks would wait for this rank's batch statistics",
          "Give all ranks the same number of batches, as trireme::TorchSampler does, and remove the call of join().");
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
    const int best = best_rank(steps_);
    bucket::NamedTensors trained; // torch::load() may have replaced their memory
    for (const at::Tensor& parameter : trained_parameters()) {
      trained.emplace_back("parameters", parameter);
    }
    broadcast_tensors(trained, group(), best);
    late_.broadcast(group(), best);
  }

  at::Tensor mean(const at::Tensor& value) const {
    if (!value.defined() || !value.is_floating_point()) {
      throw InputError("DataParallel",
                       concat("mean() of ", value.defined() ? concat("a tensor of type ", value.scalar_type())
                                                            : "an undefined tensor"),
                       "Give it a loss: a tensor of a floating type.");
    }
    const torch::NoGradGuard no_grad;
    at::Tensor sum = value.detach().clone(at::MemoryFormat::Contiguous);
    group().all_reduce(sum, comm::ReduceOp::sum, "mean of a value").wait();
    return sum.div_(group().size());
  }

  void zero_grad() {
    for (const auto& buffer : buffers_) {
      buffer->clear_grads();
    }
    late_.clear_grads();
  }

 private:
  // Waits for the sums and divides by the number of ranks that still have data, which it returns.
  double finish_reduction() {
    const bool active = !joined_;
    const auto trained = trained_parameters();
    const auto late = static_cast<size_t>(late_.size());
    Flags flags(group().size(),
                late + trained.size()); // frozen tensors that have a gradient, then parameters that are not frozen
    for (size_t i = 0; active && i < late; ++i) {
      flags[i] = late_.has_gradient(i, *reducer);
    }
    for (size_t i = 0; i < trained.size(); ++i) {
      flags[late + i] = active && trained[i].requires_grad();
    }
    at::Tensor message = torch::zeros({2 + static_cast<int64_t>(flags.numbers())}, torch::kFloat64);
    auto* const numbers = message.data_ptr<double>();
    numbers[0] = active ? 1 : 0;
    numbers[1] = active && group().rank() == 0 ? 1 : 0;
    flags.write(numbers + 2);
    comm::Work counted = group().all_reduce(message, comm::ReduceOp::sum, "ranks that have data");
    reducer->finish();
    counted.wait();
    flags.read(numbers + 2);
    if (std::exchange(compares_values_, false)) {
      check_same_values(buffers_, group());
    }
    const double count = numbers[0];
    const double factor = scale() * (mean_ && count > 0 ? group().size() / count : 1);
    const torch::NoGradGuard no_grad;
    for (const auto& buffer : buffers_) {
      if (factor != 1) {
        buffer->flat_grad().mul_(factor);
      }
    }
    if (group().size() > 1) {
      const std::vector<bool>& wanted = flags.values();
      late_.reduce([&wanted](size_t i) { return wanted[i]; }, group(), active, pre_scale(), factor);
    }
    for (size_t i = 0; i < trained.size(); ++i) {
      if (!flags[late + i] && !trained[i].grad().count_nonzero().is_nonzero()) {
        trained[i].mutable_grad().reset(); // frozen by all ranks: optimizers skip it
      }
    }
    // Runs now, because DataParallel does not see the next forward begin.
    if (module_buffers_ && !module_buffers_->empty() && count != 0) {
      module_buffers_->broadcast(numbers[1] > 0 ? 0 : best_rank(active ? 1 : 0));
    }
    return count;
  }
  std::vector<at::Tensor> trained_parameters() const {
    std::vector<at::Tensor> parameters;
    for (const auto& buffer : buffers_) {
      for (int64_t i = 0; i < buffer->count(); ++i) {
        parameters.push_back(buffer->parameter(i));
      }
    }
    return parameters;
  }
  // Returns the lowest of the ranks with the highest score. Collective.
  int best_rank(int64_t score) const {
    at::Tensor best = torch::tensor({score * group().size() + group().size() - 1 - group().rank()}, torch::kInt64);
    group().all_reduce(best, comm::ReduceOp::max, "join").wait();
    return static_cast<int>(group().size() - 1 - best.item<int64_t>() % group().size());
  }

  FlatBuffers buffers_;
  LateParameters late_;
  std::optional<ModuleBuffers> module_buffers_;
  std::optional<SyncedBatchNorms> synced_;
  bool mean_ = true;
  bool joined_ = false; // out of data
  bool compares_values_ =
      false; // in the first reduction: finds changes since the constructor broadcast rank 0's values
  int64_t steps_ = 0;

 public:
  std::unique_ptr<Reducer> reducer; // last: its destructor removes the hooks from the buffers
};

DataParallel::DataParallel(torch::nn::Module& model, comm::Group group, const DataParallelOptions& options)
    : impl_(std::make_unique<Impl>(Tensors(model), std::move(group), options)) {}
DataParallel::DataParallel(std::vector<std::pair<std::string, at::Tensor>> parameters, comm::Group group,
                           const DataParallelOptions& options, std::vector<std::pair<std::string, at::Tensor>> buffers)
    : impl_(std::make_unique<Impl>(Tensors(std::move(parameters), std::move(buffers)), std::move(group), options)) {}
DataParallel::~DataParallel() = default;
DataParallel::DataParallel(DataParallel&&) noexcept = default;
DataParallel& DataParallel::operator=(DataParallel&&) noexcept = default;

void DataParallel::zero_grad() {
  impl_->zero_grad();
}
at::Tensor DataParallel::mean(const at::Tensor& value) const {
  return impl_->mean(value);
}
void DataParallel::join() {
  impl_->join();
}

DataParallel::NoSync::NoSync(DataParallel& parallel)
    : parallel_(parallel), before_(parallel.impl_->reducer->synchronising()) {
  parallel_.impl_->reducer->set_synchronising(false);
}
DataParallel::NoSync::~NoSync() {
  parallel_.impl_->reducer->set_synchronising(before_);
}

} // namespace trireme::parallel
