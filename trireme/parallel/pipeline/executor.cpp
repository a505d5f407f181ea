#include <trireme/parallel/pipeline/executor.h>

#include <trireme/base/error.h>
#include <trireme/monitor/chrome_trace.h>
#include <trireme/parallel/pipeline/schedule_check.h>

#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <exception>

namespace trireme::pipeline {
Executor::Executor(PipelineModule& model, comm::Group pipe, int replica, int replicas, at::Device device)
    : model_(model), pipe_(std::move(pipe)), replica_(replica), replicas_(replicas), flights_(model.options().chunks) {
  for (const at::Tensor& parameter : model_.parameters()) {
    if (parameter.requires_grad()) {
      kept_accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
      accumulators_.insert(kept_accumulators_.back().get());
    }
  }
  for (const auto& layer : model_.layer_modules()) {
    for (const at::Tensor& parameter : layer->parameters()) {
      if (parameter.requires_grad()) {
        layer_of_.emplace(torch::autograd::impl::grad_accumulator(parameter).get(), layer);
      }
    }
  }
  if (!device.is_cpu()) {
    on_device_.emplace(OnDevice{device::PhaseTimer(device), device::PhaseTimer(device)});
  }
  open_channels(device);
}

Executor::~Executor() = default;

// Virtual stage v exchanges messages with v + 1; the channel's tag encodes the pair and the direction.
void Executor::open_channels(at::Device device) {
  const int stages = pipe_.size();
  pipe_.open(device, model_.options().chunks > 1 ? comm::Neighbours::ring : comm::Neighbours::chain);
  const int previous = (pipe_.rank() + stages - 1) % stages;
  const int next = (pipe_.rank() + 1) % stages;
  std::map<int, std::shared_ptr<DeviceInbox>> inboxes; // by sending rank; none for the host
  const auto receive = [&](int from, int tag, const std::string& what) {
    if (!device.is_cpu() && inboxes.count(from) == 0) {
      inboxes[from] = std::make_shared<DeviceInbox>(pipe_, from, device);
    }
    return std::make_unique<RecvChannel>(pipe_, from, tag, what, inboxes[from]);
  };
  const auto name = [](const char* what, int from, int to) {
    return concat(what, " from stage ", from, " to stage ", to);
  };
  for (int chunk = 0; chunk < model_.options().chunks; ++chunk) {
    Channels channels;
    const int v = virtual_stage(chunk);
    if (!is_first(chunk) && stages > 1) {
      channels.activations_in = receive(previous, 2 * (v - 1), name("activations", previous, pipe_.rank()));
      channels.grads_out = std::make_unique<SendChannel>(pipe_, previous, 2 * (v - 1) + 1,
                                                         name("gradients", pipe_.rank(), previous), device);
    }
    if (!is_last(chunk) && stages > 1) {
      channels.activations_out =
          std::make_unique<SendChannel>(pipe_, next, 2 * v, name("activations", pipe_.rank(), next), device);
      channels.grads_in = receive(next, 2 * v + 1, name("gradients", next, pipe_.rank()));
    }
    channels_.push_back(std::move(channels));
  }
}

const Program& Executor::program(int micro_batches, bool training) {
  const auto known = programs_.find({micro_batches, training});
  if (known != programs_.end()) {
    return known->second;
  }
  const PipelineOptions& options = model_.options();
  const ScheduleShape shape{pipe_.size(), micro_batches, options.chunks};
  std::vector<Program> all;
  if (!training) {
    all = make_programs(ScheduleKind::forward_only, shape);
  } else if (options.custom_schedule) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      all.push_back(options.custom_schedule(shape, stage));
    }
  } else {
    all = make_programs(options.schedule, shape);
  }
  check_schedule(all, shape, training);
  return programs_.emplace(std::pair(micro_batches, training), all[pipe_.rank()]).first->second;
}

void Executor::train(int micro_batches, int64_t first_micro_batch, const LossScale& loss_scale, const NextBatch& next,
                     const Callbacks& callbacks) {
  const Program& todo = program(micro_batches, true);
  training_ = true;
  first_micro_batch_ = first_micro_batch;
  loss_scale_ = &loss_scale;
  loss_sum_ = at::Tensor();
  seconds_ = {};
  if (on_device_) {
    on_device_->forward.drop(); // of a failed batch
    on_device_->backward.drop();
  }
  next_ = &next;
  callbacks_ = &callbacks;
  backwards_left_.clear();
  for (const Instruction& instruction : todo) {
    backwards_left_[instruction.chunk] +=
        instruction.op == Op::backward || instruction.op == Op::backward_input ? 1 : 0;
  }
  if (monitor::tracer().on()) {
    monitor::tracer().add(monitor::Lane::compute, concat("stage ", pipe_.rank(), " of ", pipe_.size()),
                          monitor::Tracer::now_ns(), monitor::Tracer::now_ns());
  }
  run(todo);
  if (on_device_) {
    on_device_->forward.next_step();
    on_device_->backward.next_step();
  }
}

Executor::Seconds Executor::seconds() {
  Seconds seconds = seconds_;
  if (on_device_) {
    seconds.forward = on_device_->forward.seconds();
    seconds.backward = on_device_->backward.seconds();
  }
  return seconds;
}

void Executor::evaluate(int micro_batches, const NextBatch& next, const Visit& visit) {
  const torch::NoGradGuard no_grad;
  training_ = false;
  next_ = &next;
  visit_ = &visit;
  run(program(micro_batches, false));
}

namespace {

// Drops pending messages while an exception is thrown, which ends the group: neither this stage nor its neighbours wait
// for messages that are never sent.
template <typename Channels>
class DropOnFailure {
 public:
  explicit DropOnFailure(std::vector<Channels>& channels)
      : channels_(channels), exceptions_(std::uncaught_exceptions()) {}
  ~DropOnFailure() {
    if (std::uncaught_exceptions() > exceptions_) {
      for (Channels& channels : channels_) {
        channels = Channels();
      }
    }
  }
  DropOnFailure(const DropOnFailure&) = delete;
  DropOnFailure& operator=(const DropOnFailure&) = delete;

 private:
  std::vector<Channels>& channels_;
  int exceptions_;
};

} // namespace

void Executor::run(const Program& todo) {
  if (!failure_.empty()) {
    throw Error(
        "pipeline",
        concat("stage ", pipe_.rank(), " of ", pipe_.size(), " ran after a failure that ended its group: ", failure_),
        "Start the ranks again and load the last checkpoint.");
  }
  const DropOnFailure<Channels> guard(channels_);
  try {
    interpret(todo);
  } catch (const std::exception& error) {
    // A single stage can continue.
    failure_ = pipe_.size() > 1 ? error.what() : "";
    if (pipe_.size() > 1 && dynamic_cast<const PeerError*>(&error) == nullptr) {
      pipe_.report_failure(error.what());
    }
    throw;
  } catch (...) {
    failure_ = pipe_.size() > 1 ? "an exception" : "";
    throw;
  }
}

// Evaluation has its own numbers, because it recomputes nothing.
void Executor::announce(const Program& todo) const {
  if (!model_.hooks().schedule) {
    return;
  }
  std::vector<int> computations;
  for (const Instruction& instruction : todo) {
    if (computes(instruction.op)) {
      computations.push_back((instruction.chunk * kNumOps + static_cast<int>(instruction.op)) * 2 +
                             (training_ ? 1 : 0));
    }
  }
  model_.hooks().schedule(std::move(computations));
}

void Executor::begin_computation(const Instruction& instruction) const {
  if (computes(instruction.op) && model_.hooks().computation) {
    model_.hooks().computation();
  }
}

void Executor::interpret(const Program& todo) {
  announce(todo);
  batches_.clear();
  for (auto& flights : flights_) {
    flights.clear();
  }
  std::map<const RecvChannel*, int> coming;
  const auto channel_of = [&](const Instruction& instruction) -> RecvChannel* {
    const Channels& channels = channels_[instruction.chunk];
    return instruction.op == Op::recv_activation ? channels.activations_in.get()
           : instruction.op == Op::recv_grad     ? channels.grads_in.get()
                                                 : nullptr;
  };
  for (const Instruction& instruction : todo) {
    if (RecvChannel* channel = channel_of(instruction); channel != nullptr && ++coming[channel] == 1) {
      channel->expect();
    }
  }
  for (const Instruction& instruction : todo) {
    begin_computation(instruction);
    switch (instruction.op) {
      case Op::load_micro_batch:
        load(instruction.micro_batch);
        break;
      case Op::recv_activation:
        recv_activation(instruction);
        break;
      case Op::forward:
        forward(instruction);
        break;
      case Op::recv_grad:
        recv_grad(instruction);
        break;
      case Op::backward:
      case Op::backward_input:
        backward(instruction);
        break;
      case Op::backward_weight:
        backward_weight(instruction);
        break;
      case Op::send_activation: // sent when it was made
      case Op::send_grad:
        break;
      case Op::reduce_tied_grads:
        callbacks_->reduce_tied_grads();
        break;
      case Op::reduce_grads:
        callbacks_->reduce_grads();
        break;
      case Op::optimizer_step:
        break; // done by the caller
    }
    if (RecvChannel* channel = channel_of(instruction); channel != nullptr && --coming[channel] > 0) {
      channel->expect();
    }
  }
  for (Channels& channels : channels_) {
    if (channels.activations_out) {
      channels.activations_out->finish();
    }
    if (channels.grads_out) {
      channels.grads_out->finish();
    }
  }
}

} // namespace trireme::pipeline
