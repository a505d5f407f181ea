#include <trireme/parallel/data/reducer.h>

#include <trireme/base/error.h>
#include <trireme/recompute/recompute.h>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>

namespace trireme::parallel {
namespace {

/// Buckets that may travel while the next one fills, where somebody waits for them in backward.
constexpr int64_t kUnderWay = 2;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace

class Reducer::Impl : public std::enable_shared_from_this<Reducer::Impl> {
 public:
  Impl(std::vector<bucket::FlatParameters*> buffers, comm::Group group, const DataParallelOptions& options, Reduce reduce)
      : group_(std::move(group)), options_(options), reduce_(std::move(reduce)) {
    for (bucket::FlatParameters* buffer : buffers) {
      queues_.push_back(Queue{buffer, {}, {}, {}, 0});
    }
    reset_all();
    sharded_ = std::any_of(buffers.begin(), buffers.end(), [](const auto* buffer) { return buffer->gradients_are_sharded(); });
    learned_ = group_.size() == 1 || sharded_;
  }

  void install_hooks();
  void remove_hooks();
  void gradient_ready(size_t queue, int64_t parameter);
  void end_of_backward();
  void reduce_without_backward();
  void begin();
  void end();
  void hold(const std::vector<at::Tensor>& parameters);
  void wait(int64_t buffer, int64_t bucket);
  void finish();
  void adopt_order(const std::vector<std::vector<int64_t>>& order);

  bool synchronising = true;
  std::function<void()> on_end;
  std::function<void(int64_t, int64_t)> on_final;
  double exposed = 0;

  double pre_scale() const {
    return options_.prescale_gradients ? 1.0 / group_.size() : 1.0 / options_.gradient_predivide_factor;
  }
  double post_scale() const {
    if (options_.op == DataParallelOptions::Op::sum) {
      return options_.prescale_gradients ? group_.size() : options_.gradient_predivide_factor;
    }
    return options_.prescale_gradients ? 1.0 : options_.gradient_predivide_factor / group_.size();
  }
  bool learned() const {
    return learned_;
  }

 private:
  // One flat buffer and how far its buckets are in the current backward.
  struct Queue {
    bucket::FlatParameters* buffer;
    std::vector<int64_t> missing; // gradients that bucket b still waits for
    std::vector<bool> ready; // parameter i has its gradient
    std::vector<comm::Work> works; // of buckets [0, next)
    int64_t next; // first bucket not started
    int64_t handed_over = 0; // first bucket not given to on_final
    std::vector<bool> held = {}; // parameter i is final at end() only
    std::vector<int64_t> arrivals = {}; // parameters in the order of their gradients
  };

  void wait(Queue& queue, int64_t bucket);
  void reset(Queue& queue);
  void mark_ready(Queue& queue, int64_t parameter);
  void reset_all();
  void start(Queue& queue, bool even_if_missing);
  void start_rest();
  void hand_over(Queue& queue);
  void learn_order();

  comm::Group group_;
  DataParallelOptions options_;
  Reduce reduce_;
  std::vector<Queue> queues_;
  bool in_backward_ = false;
  bool learned_ = false;
  bool sharded_ = false; // buckets have memory only while they are under way
};

namespace {

class ReadyHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit ReadyHook(std::function<void()> ready) : ready_(std::move(ready)) {}
  void operator()(const torch::autograd::Variable&) override {
    ready_();
  }

 private:
  std::function<void()> ready_;
};

} // namespace

void Reducer::Impl::install_hooks() {
  for (size_t q = 0; q < queues_.size(); ++q) {
    for (int64_t i = 0; i < queues_[q].buffer->count(); ++i) {
      auto ready = [weak = weak_from_this(), q, i] {
        if (const auto self = weak.lock()) {
          self->gradient_ready(q, i);
        }
      };
      torch::autograd::impl::set_post_acc_grad_hooks(queues_[q].buffer->parameter(i), std::make_unique<ReadyHook>(std::move(ready)));
    }
  }
}

void Reducer::Impl::remove_hooks() {
  for (Queue& queue : queues_) {
    for (int64_t i = 0; i < queue.buffer->count(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(queue.buffer->parameter(i), nullptr);
    }
  }
}

void Reducer::Impl::reset(Queue& queue) {
  const auto& layout = queue.buffer->layout();
  queue.missing.clear();
  for (const bucket::Bucket& bucket : layout.buckets()) {
    queue.missing.push_back(bucket.last_slot - bucket.first_slot);
  }
  queue.ready.assign(queue.buffer->count(), false);
  queue.works.clear();
  queue.next = 0;
  queue.handed_over = 0;
}

void Reducer::Impl::reset_all() {
  for (Queue& queue : queues_) {
    reset(queue);
  }
}

void Reducer::Impl::gradient_ready(size_t q, int64_t parameter) {
  Queue& queue = queues_[q];
  if (queue.buffer->parameter(parameter).grad().is_sparse()) {
    throw InputError("data parallel", concat("parameter ", queue.buffer->name(parameter), " has a sparse gradient"),
                     "Build the embedding without sparse(true).");
  }
  queue.buffer->attach_grad(parameter);
  if (!synchronising || (!queue.held.empty() && queue.held[parameter])) {
    return;
  }
  if (!in_backward_) {
    in_backward_ = true;
    reset_all();
    recompute::queue_at_end([weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->end_of_backward();
      }
    });
  }
  const int64_t bucket = queue.buffer->layout().bucket_of(parameter);
  if (queue.ready[parameter]) {
    if (bucket < queue.next) {
      throw Error("data parallel",
                  concat("parameter ", queue.buffer->name(parameter), " got a second gradient in one backward after its bucket was sent"),
                  "Run that part under no_sync() and reduce in the last backward.");
    }
    return;
  }
  mark_ready(queue, parameter);
  start(queue, false);
}

void Reducer::Impl::mark_ready(Queue& queue, int64_t parameter) {
  queue.ready[parameter] = true;
  if (!learned_) {
    queue.arrivals.push_back(parameter);
  }
  --queue.missing[queue.buffer->layout().bucket_of(parameter)];
}

void Reducer::Impl::hold(const std::vector<at::Tensor>& parameters) {
  for (Queue& queue : queues_) {
    queue.held.assign(queue.buffer->count(), false);
    for (int64_t i = 0; i < queue.buffer->count(); ++i) {
      for (const at::Tensor& parameter : parameters) {
        queue.held[i] = queue.held[i] || queue.buffer->parameter(i).is_same(parameter);
      }
    }
  }
}

void Reducer::Impl::begin() {
  in_backward_ = true;
  reset_all();
}

void Reducer::Impl::end() {
  for (Queue& queue : queues_) {
    for (size_t i = 0; i < queue.held.size(); ++i) {
      const auto parameter = static_cast<int64_t>(i);
      if (queue.held[i] && queue.buffer->has_grad(parameter)) {
        queue.buffer->attach_grad(parameter);
        mark_ready(queue, parameter);
      }
    }
  }
  end_of_backward();
}

// Starts the next buckets in order, as far as they are complete.
void Reducer::Impl::start(Queue& queue, bool even_if_missing) {
  const auto& layout = queue.buffer->layout();
  const auto buckets = static_cast<int64_t>(layout.buckets().size());
  for (; queue.next < buckets && (even_if_missing || queue.missing[queue.next] == 0); ++queue.next) {
    const bucket::Bucket& bucket = layout.buckets()[queue.next];
    for (int64_t s = bucket.first_slot; even_if_missing && s < bucket.last_slot; ++s) {
      const int64_t parameter = layout.slots()[s].tensor;
      if (!queue.buffer->has_grad(parameter)) {
        queue.buffer->attach_zero_grad(parameter);
      }
    }
    if (group_.size() == 1) {
      queue.works.emplace_back();
      hand_over(queue);
      continue;
    }
    if (const double scale = pre_scale(); scale != 1) {
      const torch::NoGradGuard no_grad;
      queue.buffer->bucket_grad(queue.next).mul_(scale);
      if (queue.next == 0) {
        queue.buffer->riders().mul_(scale);
      }
    }
    // Until the order is learned whole gradients are needed: finish() moves them to other buckets.
    if (sharded_ && queue.next >= kUnderWay) {
      wait(queue, queue.next - kUnderWay);
    }
    queue.works.push_back((learned_ ? reduce_ : Reduce(&Reducer::all_reduce))(group_, *queue.buffer, queue.next));
    hand_over(queue);
  }
}

// All but those that may still be on their way.
void Reducer::Impl::hand_over(Queue& queue) {
  const auto started = static_cast<int64_t>(queue.works.size());
  for (; on_final && learned_ && queue.handed_over < started - (group_.size() == 1 ? 0 : kUnderWay); ++queue.handed_over) {
    wait(queue, queue.handed_over);
    on_final(&queue - queues_.data(), queue.handed_over);
  }
}

void Reducer::Impl::start_rest() {
  for (Queue& queue : queues_) {
    start(queue, true);
  }
}

void Reducer::Impl::reduce_without_backward() {
  reset_all();
  start_rest();
}

void Reducer::Impl::end_of_backward() {
  in_backward_ = false;
  start_rest();
  if (sharded_) {
    finish(); // the next backward needs the memory
  }
  if (on_end) {
    on_end();
  }
}

void Reducer::Impl::wait(Queue& queue, int64_t bucket) {
  const auto begin = Clock::now();
  if (bucket < static_cast<int64_t>(queue.works.size())) {
    queue.works[bucket].wait();
    if (sharded_) {
      queue.buffer->settle(bucket);
    }
  }
  exposed += seconds_since(begin);
}

void Reducer::Impl::wait(int64_t buffer, int64_t bucket) {
  wait(queues_[buffer], bucket);
}

void Reducer::Impl::finish() {
  for (size_t q = 0; q < queues_.size(); ++q) {
    for (size_t b = 0; b < queues_[q].works.size(); ++b) {
      wait(static_cast<int64_t>(q), static_cast<int64_t>(b));
    }
  }
  if (!learned_) {
    learn_order();
  }
}

// Parameters that got no gradient keep their relative place behind those that did.
void Reducer::Impl::learn_order() {
  std::vector<std::vector<int64_t>> orders;
  for (Queue& queue : queues_) {
    std::vector<int64_t> order = queue.arrivals;
    for (const int64_t parameter : queue.buffer->layout().order()) {
      if (std::find(queue.arrivals.begin(), queue.arrivals.end(), parameter) == queue.arrivals.end()) {
        order.push_back(parameter);
      }
    }
    at::Tensor shared = torch::tensor(order, torch::kInt64);
    group_.broadcast(shared, 0, "ready order").wait();
    orders.emplace_back(shared.data_ptr<int64_t>(), shared.data_ptr<int64_t>() + shared.numel());
  }
  adopt_order(orders);
}

void Reducer::Impl::adopt_order(const std::vector<std::vector<int64_t>>& orders) {
  for (size_t q = 0; q < queues_.size(); ++q) {
    if (queues_[q].buffer->layout().order() != orders.at(q) && !queues_[q].buffer->parameters_are_sharded()) {
      queues_[q].buffer->reorder(orders[q]);
    }
    reset(queues_[q]);
    queues_[q].arrivals.clear();
  }
  learned_ = true;
}

comm::Work Reducer::all_reduce(const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket) {
  return all_reduce_as(buffer.gradient_type(), group, buffer, bucket);
}

comm::Work Reducer::all_reduce_as(at::ScalarType travel, const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket) {
  const std::string what = concat("gradients, bucket ", bucket);
  const bool as_they_are = travel == buffer.gradient_type();
  if (as_they_are && buffer.riders_travel_along()) {
    return group.all_reduce(buffer.bucket_grad_and_riders(bucket), comm::ReduceOp::sum, what);
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor gradients = buffer.bucket_grad(bucket);
  const at::Tensor sent = travel == gradients.scalar_type() ? gradients : group.allocate(gradients.numel(), travel).copy_(gradients);
  comm::Work reduced = group.all_reduce(sent, comm::ReduceOp::sum, what);
  if (!as_they_are) {
    reduced = comm::then(std::move(reduced), [gradients, sent] {
      const torch::NoGradGuard no_autograd;
      at::Tensor(gradients).copy_(sent);
    });
  }
  if (bucket != 0) {
    return reduced;
  }
  return comm::then(std::move(reduced), [riders = group.all_reduce(buffer.riders(), comm::ReduceOp::sum, "loss")]() mutable { riders.wait(); });
}

Reducer::Reducer(std::vector<bucket::FlatParameters*> buffers, comm::Group group, const DataParallelOptions& options, Reduce reduce)
    : impl_(std::make_shared<Impl>(std::move(buffers), std::move(group), options, std::move(reduce))) {
  impl_->install_hooks();
}

Reducer::~Reducer() {
  impl_->remove_hooks();
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
void Reducer::hold(const std::vector<at::Tensor>& parameters) {
  impl_->hold(parameters);
}
void Reducer::on_bucket_final(std::function<void(int64_t buffer, int64_t bucket)> callback) {
  impl_->on_final = std::move(callback);
}
void Reducer::on_backward_end(std::function<void()> callback) {
  impl_->on_end = std::move(callback);
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
double Reducer::pre_scale() const {
  return impl_->pre_scale();
}
double Reducer::post_scale() const {
  return impl_->post_scale();
}
double Reducer::exposed_seconds() const {
  return impl_->exposed;
}
bool Reducer::order_is_learned() const {
  return impl_->learned();
}
void Reducer::adopt_order(const std::vector<std::vector<int64_t>>& order) {
  impl_->adopt_order(order);
}

} // namespace trireme::parallel
