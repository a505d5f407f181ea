#include <trireme/shards/data_parallel/reducer.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/device/stream.h>
#include <trireme/memory/recompute/recompute.h>
#include <trireme/shards/data_parallel/autograd_hooks.h>
#include <trireme/shards/data_parallel/bucket_order.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace trireme::parallel {
namespace {

/// Buckets in flight before backward waits for the oldest, where it waits at all.
constexpr size_t kUnderWay = 2;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A plain tensor on the flat buffer, not autograd's view of it.
at::Tensor place_of_gradient(bucket::FlatParameters& flat, int64_t parameter) {
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  const bucket::FlatLayout& layout = flat.layout();
  const int64_t b = layout.bucket_of(parameter);
  const bucket::Slot& slot = layout.slot_of(parameter);
  const int64_t begin = layout.buckets()[b].begin;
  return flat.bucket_grad(b).slice(0, slot.begin - begin, slot.end - begin).view(layout.tensors()[parameter].sizes);
}

at::Device device_of(const std::vector<bucket::FlatParameters*>& buffers) {
  return buffers.empty() ? at::Device(at::kCPU) : buffers.front()->device();
}

// A pointer to a parameter's AccumulateGrad.
using GradAccumulator =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::autograd::Variable&>()));

} // namespace

class Reducer::Impl : public std::enable_shared_from_this<Reducer::Impl> {
 public:
  Impl(const std::vector<bucket::FlatParameters*>& buffers, GradientExchange& sync)
      : sync_(sync), order_(bucket_order(buffers)), stream_(device::current_stream(device_of(buffers))) {
    for (bucket::FlatParameters* buffer : buffers) {
      const bool exchanged = sync.groups().of(*buffer).size() > 1 || buffer->gradients_are_sharded();
      buffers_.push_back(Buffer{buffer,
                                exchanged,
                                {},
                                {},
                                {},
                                std::vector<int>(buffer->count(), -1),
                                std::vector<size_t>(buffer->layout().buckets().size())});
      sharded_ = sharded_ || buffer->gradients_are_sharded();
    }
    for (size_t i = 0; i < order_.size(); ++i) {
      buffers_[order_[i].buffer].position[order_[i].bucket] = i;
    }
    reset();
  }

  void install_hooks();
  void remove_hooks();
  void set_accepting(bool on);
  void gradient_ready(size_t buffer, int64_t parameter);
  fused::GradientMemory open(size_t buffer, int64_t parameter);
  void after_accumulation(size_t buffer, int64_t parameter, bool has_gradient);
  void end_of_backward();
  void reduce_without_backward();
  void begin();
  void end();
  void abandon() noexcept;
  void hold(const std::vector<at::Tensor>& parameters);
  void watch(std::vector<at::Tensor> parameters) {
    watched_ = std::move(parameters);
    watch_again();
  }
  void watch_again();
  bool has_hook_on(const at::Tensor& parameter) const;
  void wait(int64_t buffer, int64_t bucket) { wait(buffers_[buffer].position[bucket]); }
  void finish();

  bool synchronising = true;
  std::function<void(int64_t, int64_t)> on_final;
  double exposed = 0;

 private:
  // A flat buffer, and which of its gradients are ready in the current backward.
  struct Buffer {
    bucket::FlatParameters* flat;
    bool exchanged;               // gradients are handed to the sync
    std::vector<int64_t> missing; // number of gradients that bucket b still waits for
    std::vector<bool> ready;      // parameter i has its gradient
    std::vector<bool> held;       // parameter i is final at end() only
    std::vector<int> written_by;  // graph task of autograd in which an operator wrote parameter i's gradient, or -1
    std::vector<size_t> position; // index of bucket b in order_
    std::vector<GradAccumulator> accumulators = {}; // nodes with hooks; parameters refer to them weakly
  };

  void begin_unless_begun();
  void wait(size_t position);
  void reset();
  void mark_ready(Buffer& buffer, int64_t parameter);
  void start(bool even_if_missing);
  void start_next();
  void hand_over();

  bool alone() const { return sync_.groups().alone(); }

  GradientExchange& sync_;
  std::vector<Buffer> buffers_;
  std::vector<BucketPlace> order_;  // in which buckets start
  std::vector<at::Tensor> watched_; // their gradients begin a backward; the caller sends them
  std::vector<comm::Work> works_;   // of the buckets that have started: the first of order_
  size_t handed_over_ = 0;          // number of buckets passed to on_final
  bool accepting_ = true;
  bool can_drop_ = false;
  c10::Stream stream_; // on which autograd accumulates
  bool in_backward_ = false;
  bool failed_ = false;  // a backward failed, and the group has ended
  bool sharded_ = false; // buckets have memory only until they are reduced
};

void refuse_sparse_gradient(const std::string& parameter) {
  throw InputError("data parallel", concat("parameter ", parameter, " has a sparse gradient"),
                   "Build the embedding without sparse(true), or train in a loop of your own with "
                   "trireme::horovod::DistributedOptimizer, which exchanges sparse gradients.");
}

void Reducer::Impl::install_hooks() {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    for (int64_t i = 0; i < buffers_[b].flat->count(); ++i) {
      auto ready = [weak = weak_from_this(), b, i] {
        if (const auto self = weak.lock()) {
          self->gradient_ready(b, i);
        }
      };
      auto open = [weak = weak_from_this(), b, i] {
        const auto self = weak.lock();
        return self ? self->open(b, i) : fused::GradientMemory();
      };
      // The memory of sharded gradients comes and goes, with the parameters' at stage 3: autograd keeps them in order.
      if (buffers_[b].flat->gradients_are_sharded()) {
        torch::autograd::impl::set_post_acc_grad_hooks(buffers_[b].flat->parameter(i),
                                                       std::make_unique<ReadyHook>(this, std::move(ready)));
        buffers_[b].accumulators.push_back(torch::autograd::impl::grad_accumulator(buffers_[b].flat->parameter(i)));
        continue;
      }
      torch::autograd::impl::set_post_acc_grad_hooks(
          buffers_[b].flat->parameter(i), std::make_unique<HomeHook>(this, std::move(ready), std::move(open)));
      buffers_[b].accumulators.push_back(torch::autograd::impl::grad_accumulator(buffers_[b].flat->parameter(i)));
      buffers_[b].accumulators.back()->add_post_hook(
          std::make_unique<AfterHook>([weak = weak_from_this(), b, i](bool has_gradient) {
            if (const auto self = weak.lock()) {
              self->after_accumulation(b, i, has_gradient);
            }
          }));
    }
  }
}

void Reducer::Impl::set_accepting(bool on) {
  accepting_ = on;
  if (on || std::exchange(can_drop_, true)) {
    return;
  }
  for (const Buffer& buffer : buffers_) {
    for (const GradAccumulator& accumulator : buffer.accumulators) {
      accumulator->add_pre_hook(std::make_unique<DropHook>([weak = weak_from_this()] {
        const auto self = weak.lock();
        return self && !self->accepting_;
      }));
    }
  }
}

bool Reducer::Impl::has_hook_on(const at::Tensor& parameter) const {
  const auto* hook = dynamic_cast<const ReadyHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  return hook != nullptr && hook->is_of(this);
}

// Keeps the hooks that a later reducer has put on the same parameters.
void Reducer::Impl::remove_hooks() {
  const auto remove = [&](const at::Tensor& parameter) {
    if (has_hook_on(parameter)) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    }
  };
  for (Buffer& buffer : buffers_) {
    for (int64_t i = 0; i < buffer.flat->count(); ++i) {
      remove(buffer.flat->parameter(i));
    }
  }
  std::for_each(watched_.begin(), watched_.end(), remove);
}

// Skips parameters with a hook of another living reducer, which may remove it later.
void Reducer::Impl::watch_again() {
  for (const at::Tensor& parameter : watched_) {
    if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr ||
        torch::autograd::impl::post_acc_grad_hooks(parameter) == nullptr) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                     std::make_unique<ReadyHook>(this, [weak = weak_from_this()] {
                                                       if (const auto self = weak.lock(); self && self->synchronising) {
                                                         self->begin_unless_begun();
                                                       }
                                                     }));
    }
  }
}

void Reducer::Impl::reset() {
  for (Buffer& buffer : buffers_) {
    buffer.missing.clear();
    for (const bucket::Bucket& bucket : buffer.flat->layout().buckets()) {
      buffer.missing.push_back(bucket.last_slot - bucket.first_slot);
    }
    buffer.ready.assign(buffer.flat->count(), false);
  }
  works_.clear();
  handed_over_ = 0;
}

void Reducer::Impl::gradient_ready(size_t b, int64_t parameter) {
  Buffer& buffer = buffers_[b];
  buffer.written_by[parameter] = -1; // whether autograd runs this hook without a gradient depends on libtorch
  if (!accepting_) {
    return;
  }
  if (buffer.flat->parameter(parameter).grad().is_sparse()) {
    refuse_sparse_gradient(buffer.flat->name(parameter));
  }
  buffer.flat->attach_grad(parameter);
  if (in_backward_ && buffer.position[buffer.flat->layout().bucket_of(parameter)] < works_.size()) {
    throw Error("data parallel",
                concat("parameter ", buffer.flat->name(parameter),
                       " got a second gradient in one backward after its bucket was sent"),
                "Run the first of them under no_sync(), and reduce in the last backward.");
  }
  if (!synchronising || (!buffer.held.empty() && buffer.held[parameter])) {
    return;
  }
  begin_unless_begun();
  if (!buffer.ready[parameter]) {
    mark_ready(buffer, parameter);
    start(false);
  }
}

// The stream condition: autograd orders a gradient that it receives behind the stream of the operator, not this one.
fused::GradientMemory Reducer::Impl::open(size_t b, int64_t parameter) {
  Buffer& buffer = buffers_[b];
  const size_t position = buffer.position[buffer.flat->layout().bucket_of(parameter)];
  if (!accepting_ || buffer.flat->gradient_type() != buffer.flat->scalar_type() ||
      (in_backward_ && position < works_.size()) || device::current_stream(buffer.flat->device()) != stream_ ||
      torch::autograd::impl::try_get_grad_accumulator(buffer.flat->parameter(parameter)) !=
          buffer.accumulators[parameter]) {
    return {};
  }
  at::Tensor& grad = buffer.flat->parameter(parameter).mutable_grad();
  const at::Tensor place = place_of_gradient(*buffer.flat, parameter);
  const bool is_first = !grad.defined();
  const int task = torch::autograd::get_current_graph_task_id();
  if (is_first) {
    grad = place;
    buffer.written_by[parameter] = task;
  } else if (buffer.written_by[parameter] != task || grad.const_data_ptr() != place.const_data_ptr()) {
    return {}; // a later micro-batch: autograd adds its sum, and in the order of autograd
  }
  return {place, is_first};
}

void Reducer::Impl::after_accumulation(size_t b, int64_t parameter, bool has_gradient) {
  const int writer = std::exchange(buffers_[b].written_by[parameter], -1);
  if (writer != -1 && !has_gradient && writer == torch::autograd::get_current_graph_task_id()) {
    gradient_ready(b, parameter);
  }
}

void Reducer::Impl::begin_unless_begun() {
  if (in_backward_) {
    return;
  }
  begin();
  const auto at_end = std::make_shared<AtEnd>(
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) {
          self->end_of_backward();
        }
      },
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) {
          self->abandon();
        }
      });
  recompute::queue_at_end([at_end] { at_end->run(); });
}

void Reducer::Impl::mark_ready(Buffer& buffer, int64_t parameter) {
  buffer.ready[parameter] = true;
  --buffer.missing[buffer.flat->layout().bucket_of(parameter)];
}

void Reducer::Impl::hold(const std::vector<at::Tensor>& parameters) {
  for (Buffer& buffer : buffers_) {
    buffer.held.assign(buffer.flat->count(), false);
    for (int64_t i = 0; i < buffer.flat->count(); ++i) {
      for (const at::Tensor& parameter : parameters) {
        buffer.held[i] = buffer.held[i] || buffer.flat->parameter(i).is_same(parameter);
      }
    }
  }
}

void Reducer::Impl::begin() {
  if (failed_) {
    throw Error("data parallel", "a backward ran after one that failed, which ended the group of its ranks",
                "Start the ranks again and load the last checkpoint.");
  }
  in_backward_ = true;
  stream_ = device::current_stream(stream_.device());
  reset();
}

void Reducer::Impl::end() {
  for (Buffer& buffer : buffers_) {
    for (size_t i = 0; i < buffer.held.size(); ++i) {
      const auto parameter = static_cast<int64_t>(i);
      if (buffer.held[i] && buffer.flat->has_grad(parameter)) {
        buffer.flat->attach_grad(parameter);
        mark_ready(buffer, parameter);
      }
    }
  }
  end_of_backward();
}

// Ends the group: the other ranks wait for buckets that this rank will not send.
void Reducer::Impl::abandon() noexcept {
  failed_ = failed_ || (in_backward_ && !alone());
  if (std::exchange(in_backward_, false) && failed_) {
    try {
      sync_.group().report_failure("its backward failed");
    } catch (const std::exception& error) {
      log::error("could not report a failed backward to the other ranks: ", error.what());
    }
  }
}

// Starts the next buckets in order while they are complete.
void Reducer::Impl::start(bool even_if_missing) {
  while (works_.size() < order_.size()) {
    const auto [b, bucket] = order_[works_.size()];
    if (!even_if_missing && buffers_[b].missing[bucket] > 0) {
      return;
    }
    start_next();
    hand_over();
  }
}

void Reducer::Impl::start_next() {
  const auto [b, bucket] = order_[works_.size()];
  bucket::FlatParameters& flat = *buffers_[b].flat;
  const bucket::Bucket& slots = flat.layout().buckets()[bucket];
  for (int64_t s = slots.first_slot; buffers_[b].missing[bucket] > 0 && s < slots.last_slot; ++s) {
    const int64_t parameter = flat.layout().slots()[s].tensor;
    if (!flat.has_grad(parameter)) {
      flat.attach_zero_grad(parameter);
    }
  }
  if (!buffers_[b].exchanged) {
    if (sync_.group().size() > 1) {
      sync_.gradients_alone(flat, bucket);
    }
    works_.emplace_back();
    return;
  }
  if (sharded_ && works_.size() >= kUnderWay) {
    wait(works_.size() - kUnderWay);
  }
  works_.push_back(sync_.gradients_ready(flat, bucket));
}

// Passes on all buckets except the last few, which may still be in flight.
void Reducer::Impl::hand_over() {
  const size_t under_way = alone() ? 0 : kUnderWay;
  for (; on_final && handed_over_ + under_way < works_.size(); ++handed_over_) {
    wait(handed_over_);
    on_final(static_cast<int64_t>(order_[handed_over_].buffer), order_[handed_over_].bucket);
  }
}

void Reducer::Impl::reduce_without_backward() {
  reset();
  start(true);
}

void Reducer::Impl::end_of_backward() {
  in_backward_ = false;
  start(true);
  if (sharded_) {
    finish(); // frees the memory for the next backward
  }
  sync_.backward_ended();
}

void Reducer::Impl::wait(size_t position) {
  const auto begin = Clock::now();
  if (position < works_.size()) {
    works_[position].wait();
  }
  exposed += seconds_since(begin);
}

void Reducer::Impl::finish() {
  for (size_t position = 0; position < works_.size(); ++position) {
    wait(position);
  }
}

Reducer::Reducer(const std::vector<bucket::FlatParameters*>& buffers, GradientExchange& sync)
    : impl_(std::make_shared<Impl>(buffers, sync)) {
  sync.attach(buffers);
  impl_->install_hooks();
}

Reducer::~Reducer() {
  impl_->remove_hooks();
}

void Reducer::set_accepting(bool on) {
  impl_->set_accepting(on);
}
void Reducer::set_synchronising(bool on) {
  impl_->synchronising = on;
}
bool Reducer::synchronising() const {
  return impl_->synchronising;
}
void Reducer::begin() {
  impl_->begin();
}
void Reducer::end() {
  impl_->end();
}
void Reducer::abandon() noexcept {
  impl_->abandon();
}
void Reducer::hold(const std::vector<at::Tensor>& parameters) {
  impl_->hold(parameters);
}
void Reducer::on_bucket_final(std::function<void(int64_t buffer, int64_t bucket)> callback) {
  impl_->on_final = std::move(callback);
}
void Reducer::watch(std::vector<at::Tensor> parameters) {
  impl_->watch(std::move(parameters));
}
void Reducer::watch_again() {
  impl_->watch_again();
}
bool Reducer::watches(const at::Tensor& parameter) const {
  return impl_->has_hook_on(parameter);
}
void Reducer::wait(int64_t buffer, int64_t bucket) {
  impl_->wait(buffer, bucket);
}
void Reducer::finish() {
  impl_->finish();
}
void Reducer::reduce_without_backward() {
  impl_->reduce_without_backward();
}
double Reducer::exposed_seconds() const {
  return impl_->exposed;
}

} // namespace trireme::parallel
