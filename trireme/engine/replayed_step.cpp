// Steps of an engine with a StepGraph.
#include <trireme/base/error.h>
#include <trireme/base/notes.h>
#include <trireme/device/host_scalars.h>
#include <trireme/engine/engine_impl.h>
#include <trireme/monitor/chrome_trace.h>

#include <torch/types.h>

namespace trireme::engine {

// What a graph records: no stopwatch, and nothing of the host's that changes from step to step.
at::Tensor Engine::Impl::launch_step(const StepInputs& inputs) {
  at::Tensor sum;
  for (size_t m = 0; m < inputs.batches.size(); ++m) {
    at::Tensor loss = parts.loss_of(inputs.batches[m]).loss;
    if (const at::Tensor& weight = inputs.weights[m]; weight.defined()) {
      loss = (loss * weight).to(loss.scalar_type());
    }
    if (loss.numel() != 1 || loss.scalar_type() != inputs.root.scalar_type()) {
      throw Error("engine", concat("the loss has type ", loss.scalar_type(), " and shape ", loss.sizes(),
                                   ", and had type ", inputs.root.scalar_type(), " and one element in earlier steps"));
    }
    device::add_scalar(sum, loss);
    run_backward(loss, m + 1 == inputs.batches.size(), [&] { return inputs.root.reshape(loss.sizes()); });
  }
  return sum;
}

bool Engine::Impl::replay_step(const std::vector<data::Batch>& batches) {
  start_step();
  const Stopwatch watch = clock.backward();
  const monitor::Span span("graph");
  const Note note("graph of step", state.global_steps + 1);
  begin_forward();
  const at::Tensor loss_sum = graph->run(
      batches, [&](const at::Tensor& loss) { return optimizer_step.root_gradient(loss); },
      [&](const StepInputs& inputs) { return launch_step(inputs); });
  went_back_ = loss_sum.defined();
  if (went_back_) {
    optimizer_step.send_loss(loss_sum);
    optimizer_step.replay_end();
    state.micro_steps += std::ssize(batches) - 1;
  }
  return went_back_;
}

// Overflows are searched for by hooks, which a replay does not call.
void Engine::Impl::run_with_graph(const std::function<data::Batch()>& next,
                                  const std::function<void()>& end_micro_batch) {
  std::vector<data::Batch> batches;
  for (int64_t i = 0; i < parts.settings.batch.accumulation; ++i) {
    batches.push_back(load(next));
  }
  if (graph->is_ready_for(batches) && !optimizer_step.watches_overflow() && replay_step(batches)) {
    end_micro_batch();
    return;
  }
  at::ScalarType type = at::kFloat;
  for (const data::Batch& batch : batches) {
    const at::Tensor loss = forward(batch);
    type = loss.scalar_type();
    backward(loss);
    end_micro_batch();
  }
  graph->ran_eagerly(batches, type);
}

} // namespace trireme::engine
