// The instructions of a schedule, as a stage runs them.
#include <trireme/parallel/pipeline/executor.h>

#include <trireme/base/error.h>
#include <trireme/base/fault.h>
#include <trireme/base/notes.h>
#include <trireme/device/host_scalars.h>
#include <trireme/monitor/chrome_trace.h>
#include <trireme/parallel/pipeline/arrival.h>
#include <trireme/parallel/pipeline/compute_span.h>
#include <trireme/parallel/pipeline/split_backward.h>

#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <limits>

namespace trireme::pipeline {
namespace {

using monitor::Lane;
using monitor::tracer;

// Applies TRIREME_FAULT to the first of these tensors that can hold NaN.
void spoil(Tensors& tensors, fault::Effect effect) {
  for (size_t i = 0; i < tensors.size() && effect == fault::Effect::nan; ++i) {
    if (tensors[i].defined() && tensors[i].is_floating_point()) {
      tensors[i] = tensors[i] * std::numeric_limits<double>::quiet_NaN();
      return;
    }
  }
}

Tensors detached(const Tensors& tensors) {
  Tensors plain;
  for (const at::Tensor& tensor : tensors) {
    plain.push_back(tensor.defined() ? tensor.detach() : tensor);
  }
  return plain;
}

} // namespace

// Loads batches in order, whatever the order of the schedule.
void Executor::load(int micro_batch) {
  const monitor::Span span("load", Lane::data);
  const Note note("load of micro-batch", micro_batch);
  for (int next = batches_.empty() ? 0 : batches_.rbegin()->first + 1; next <= micro_batch; ++next) {
    batches_[next] = (*next_)();
  }
}

Message Executor::receive(RecvChannel& channel, int micro_batch) {
  const int64_t begin = monitor::Tracer::now_ns();
  Message message = channel.recv(micro_batch);
  seconds_.waiting += static_cast<double>(monitor::Tracer::now_ns() - begin) * 1e-9;
  return message;
}

void Executor::recv_activation(const Instruction& instruction) {
  const Note note("recv activation of micro-batch", instruction.micro_batch);
  Channels& channels = channels_[instruction.chunk];
  Message message = receive(*channels.activations_in, instruction.micro_batch);
  channels.grads_out->release(message.received);
  InFlight& arrived = flight(instruction);
  arrived.inputs = std::move(message.tensors);
  arrived.fingerprint = message.fingerprint;
  arrived.identified_by_contents = message.identified_by_contents;
  for (size_t i = 0; i < arrived.inputs.size(); ++i) {
    if (training_ && message.requires_grad[i]) {
      arrived.inputs[i].requires_grad_();
    }
  }
}

void Executor::recv_grad(const Instruction& instruction) {
  const Note note("recv gradient of micro-batch", instruction.micro_batch);
  Channels& channels = channels_[instruction.chunk];
  Message message = receive(*channels.grads_in, instruction.micro_batch);
  channels.activations_out->release(message.received);
  InFlight& waiting = flight(instruction);
  if (message.tensors.size() != waiting.outputs.size()) {
    throw Error("pipeline", concat("stage ", pipe_.rank(), " sent ", waiting.outputs.size(), " tensors of micro-batch ",
                                   instruction.micro_batch, " to the next stage and got ", message.tensors.size(),
                                   " gradients back"));
  }
  for (size_t i = 0; i < waiting.outputs.size(); ++i) {
    const at::Tensor& grad = message.tensors[i];
    if (grad.defined() && grad.sizes() != at::IntArrayRef(waiting.outputs[i].sizes)) {
      throw Error("pipeline", concat("micro-batch ", instruction.micro_batch, ": stage ", pipe_.rank(), " sent tensor ",
                                     i, " of shape ", at::IntArrayRef(waiting.outputs[i].sizes),
                                     " and the next stage returned a gradient of shape ", grad.sizes()));
    }
  }
  waiting.grads = std::move(message.tensors);
}

void Executor::forward(const Instruction& instruction) {
  InFlight& flight = this->flight(instruction);
  if (is_first(instruction.chunk)) {
    const data::Batch& batch = batches_.at(instruction.micro_batch);
    flight.inputs = batch.inputs;
    flight.fingerprint = batch.fingerprint;
    flight.identified_by_contents = batch.identified_by_contents;
  }
  const ComputeSpan span('F', instruction, seconds_.forward, training_ && on_device_ ? &on_device_->forward : nullptr);
  const int64_t count = (first_micro_batch_ + instruction.micro_batch) * replicas_ + replica_;
  const Note note("forward of micro-batch", instruction.micro_batch);
  const fault::Effect effect = training_ ? fault::at(fault::Phase::forward) : fault::Effect::none;
  if (is_last(instruction.chunk)) {
    check_fingerprint(instruction, flight);
  }
  Tensors outputs = training_ && is_last(instruction.chunk)
                        ? Tensors{model_.forward_to_loss(instruction.chunk, arrive(flight.inputs), count,
                                                         batches_.at(instruction.micro_batch).targets)}
                        : model_.forward_chunk(instruction.chunk, arrive(flight.inputs), count);
  spoil(outputs, effect);
  finish_forward(instruction, flight, outputs);
  int in_flight = 0;
  for (const auto& flights : flights_) {
    in_flight += static_cast<int>(std::count_if(flights.begin(), flights.end(), [](const auto& item) {
      return !item.second.roots.empty() || item.second.split;
    }));
  }
  peak_in_flight_ = std::max(peak_in_flight_, in_flight);
}

// Keeps only the outputs' nodes of the graph; nothing else is needed later.
void Executor::keep_graph(InFlight& flight, const Tensors& outputs) {
  flight.outputs = Layout::of(outputs).entries;
  for (const at::Tensor& output : outputs) {
    flight.wants_grad.push_back(training_ && output.defined() && output.requires_grad());
    if (flight.wants_grad.back()) {
      flight.roots.push_back(torch::autograd::impl::gradient_edge(output));
    }
  }
}

// `outputs`: of the last stage in training, the loss.
void Executor::finish_forward(const Instruction& instruction, InFlight& flight, const Tensors& outputs) {
  if (is_last(instruction.chunk)) {
    const data::Batch& batch = batches_.at(instruction.micro_batch);
    if (!training_) {
      (*visit_)(outputs, batch);
    } else {
      const at::Tensor loss = batch.loss_weight == 1 ? outputs[0] : outputs[0] * batch.loss_weight;
      device::add_scalar(loss_sum_, loss);
      keep_graph(flight, {loss});
      flight.grads = {
          torch::full_like(loss.detach(), (*loss_scale_)(loss.scalar_type()), at::TensorOptions(torch::kFloat32))
              .to(loss.scalar_type())};
    }
  } else {
    if (training_) {
      keep_graph(flight, outputs);
    } else {
      flight.wants_grad.assign(outputs.size(), false);
    }
    channels_[instruction.chunk].activations_out->send(
        {instruction.micro_batch, detached(outputs), flight.wants_grad, flight.fingerprint,
         channels_[instruction.chunk].grads_in->received(), flight.identified_by_contents});
  }
  if (is_last(instruction.chunk) || !loads_targets()) {
    batches_[instruction.micro_batch] = {}; // the entry stays: it counts loaded batches
  }
  if (!training_) {
    flights_[instruction.chunk].erase(instruction.micro_batch);
  }
}

void Executor::check_fingerprint(const Instruction& instruction, const InFlight& flight) const {
  const data::Batch& mine = batches_.at(instruction.micro_batch);
  if (data::are_of_other_samples(flight.fingerprint, flight.identified_by_contents, mine.fingerprint,
                                 mine.identified_by_contents)) {
    throw Error("pipeline",
                concat("micro-batch ", instruction.micro_batch, ": the first stage (rank ", pipe_.members().front(),
                       ") loaded other samples than the last stage (rank ",
                       pipe_.members()[static_cast<size_t>(pipe_.rank())], ") loaded"),
                "Every rank of a pipeline must read the same samples in the same order: one seed, no random choices "
                "inside the dataset. Batches without a fingerprint are compared by "
                "what their tensors hold; set Batch::fingerprint where that may differ.");
  }
}

void Executor::backward(const Instruction& instruction) {
  InFlight& flight = this->flight(instruction);
  const Note note("backward of micro-batch", instruction.micro_batch);
  const fault::Effect effect = fault::at(fault::Phase::backward);
  --backwards_left_[instruction.chunk];
  callbacks_->before_backward(instruction.chunk, completes_gradients(instruction));
  {
    const bool split = instruction.op == Op::backward_input;
    const ComputeSpan span(split ? 'I' : 'B', instruction, seconds_.backward,
                           on_device_ ? &on_device_->backward : nullptr);
    torch::autograd::edge_list roots;
    Tensors grads;
    auto root = flight.roots.begin();
    for (size_t i = 0; i < flight.wants_grad.size(); ++i) {
      if (!flight.wants_grad[i]) {
        continue;
      }
      if (flight.grads[i].defined()) {
        roots.push_back(std::move(*root));
        grads.push_back(std::move(flight.grads[i]));
      }
      ++root;
    }
    spoil(grads, effect);
    flight.roots.clear();
    flight.grads.clear();
    if (!roots.empty() && split) {
      flight.split = std::make_shared<SplitBackward>(std::move(roots), std::move(grads), flight.inputs, accumulators_);
      flight.split->run_inputs();
      if (!flight.split->puts_off()) {
        flight.split.reset();
      }
    } else if (!roots.empty()) {
      torch::autograd::Engine::get_default_engine().execute(roots, grads, /*keep_graph=*/false, /*create_graph=*/false,
                                                            /*accumulate_grad=*/true);
    }
  }
  send_grads(instruction, flight);
  if (!flight.split) {
    flights_[instruction.chunk].erase(instruction.micro_batch);
  }
}

// True if no other micro-batch will add to the gradients of the chunk.
bool Executor::completes_gradients(const Instruction& instruction) const {
  const auto& flights = flights_.at(instruction.chunk);
  return backwards_left_.at(instruction.chunk) == 0 &&
         std::none_of(flights.begin(), flights.end(), [&](const auto& flight) {
           return flight.first != instruction.micro_batch && flight.second.split != nullptr;
         });
}

void Executor::send_grads(const Instruction& instruction, InFlight& flight) {
  if (is_first(instruction.chunk)) {
    return;
  }
  Message message;
  message.micro_batch = instruction.micro_batch;
  for (at::Tensor& input : flight.inputs) {
    message.tensors.push_back(input.defined() && input.requires_grad() ? input.grad() : at::Tensor());
    if (message.tensors.back().defined()) {
      input.mutable_grad().reset(); // with later weight gradients, the inputs live on
    }
  }
  message.received = channels_[instruction.chunk].activations_in->received();
  channels_[instruction.chunk].grads_out->send(message);
}

void Executor::backward_weight(const Instruction& instruction) {
  const auto found = flights_[instruction.chunk].find(instruction.micro_batch);
  if (found == flights_[instruction.chunk].end() || !found->second.split) {
    return; // the first half did everything
  }
  callbacks_->before_backward(instruction.chunk, completes_gradients(instruction));
  const Note note("weight gradients of micro-batch", instruction.micro_batch);
  const ComputeSpan span('W', instruction, seconds_.backward, on_device_ ? &on_device_->backward : nullptr);
  found->second.split->run_weights([this](torch::autograd::Node* parameter) {
    if (const auto layer = layer_of_.find(parameter); layer != layer_of_.end() && model_.hooks().before) {
      model_.hooks().before(*layer->second);
    }
  });
  flights_[instruction.chunk].erase(found);
}

} // namespace trireme::pipeline
