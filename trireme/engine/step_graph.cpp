#include <trireme/engine/step_graph.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>

namespace trireme::engine {
namespace {

// Launched one by one before the first recording, so that libraries and the allocator have made what they keep.
constexpr int64_t kFirstSteps = 3;
// Shapes that get a graph.
constexpr size_t kMostGraphs = 4;

void add_tensors(std::vector<int64_t>& key, const std::vector<at::Tensor>& tensors) {
  key.push_back(std::ssize(tensors));
  for (const at::Tensor& tensor : tensors) {
    key.push_back(tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : -1);
    if (tensor.defined()) {
      key.push_back(tensor.dim());
      key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
    }
  }
}

std::vector<at::Tensor> memory_like(const std::vector<at::Tensor>& tensors, at::Device device) {
  std::vector<at::Tensor> there;
  for (const at::Tensor& tensor : tensors) {
    there.push_back(tensor.defined()
                        ? torch::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(device))
                        : at::Tensor());
  }
  return there;
}

void copy_into(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].defined()) {
      at::Tensor(to[i]).copy_(from[i], /*non_blocking=*/true);
      device::record_stream(from[i], device::current_stream(to[i].device())); // the loader's, of another stream
    }
  }
}

} // namespace

std::string StepGraph::why_not(const Parts& parts, bool own_sync) {
  const Stepper& stepper = parts.stepper;
  if (parts.ranks.everyone.size() > 1 || parts.ranks.workers > 1) {
    return "there are several ranks";
  }
  if (parts.model.executor) {
    return "the model is a list of layers for pipeline stages";
  }
  if (parts.parameters_are_sharded() || stepper.optimizer->steps_on_host() || parts.ranks.offloaded ||
      (!parts.buffers.trained.empty() && parts.buffers.trained.front()->gradients_are_sharded())) {
    return "parameters, gradients or optimizer states are offloaded";
  }
  if (stepper.activations) {
    return "activations are recomputed or moved (\"activation_checkpointing\")";
  }
  if (stepper.may_step_in_backward) {
    return "\"step_in_backward\" is on";
  }
  if (own_sync || !parts.agreement.sync->may_end_unknown()) {
    return "the run has a GradientSync of its own";
  }
  if (env::text("TRIREME_FAULT")) {
    return "TRIREME_FAULT is set";
  }
  return "";
}

std::unique_ptr<StepGraph> StepGraph::make(const Parts& parts, config::CudaGraph wanted, bool own_sync,
                                           const c10::Stream& stream) {
  if (wanted == config::CudaGraph::off) {
    return nullptr;
  }
  const bool required = wanted == config::CudaGraph::on;
  std::unique_ptr<device::GraphPool> pool = device::make_graph_pool(parts.device());
  const std::string why = pool ? why_not(parts, own_sync) : concat(parts.device(), " has no CUDA graphs");
  if (!why.empty() && required) {
    throw InputError("engine", concat("training.cuda_graph is true, but ", why),
                     "Set it to \"auto\" or false, or change the other setting.");
  }
  if (pool && parts.ranks.everyone.rank() == 0) {
    log::info(why.empty() ? concat("steps are replayed as CUDA graphs from step ", kFirstSteps + 1,
                                   " on (training.cuda_graph=false: launch by launch)")
                          : concat("no CUDA graph: ", why));
  }
  return why.empty() ? std::make_unique<StepGraph>(parts, required, std::move(pool), stream) : nullptr;
}

StepGraph::StepGraph(const Parts& parts, bool required, std::unique_ptr<device::GraphPool> pool,
                     const c10::Stream& stream)
    : parts_(parts), required_(required), pool_(std::move(pool)), stream_(stream) {}

StepGraph::OnStream::OnStream(const c10::Stream& stream)
    : outer_(device::current_stream(stream.device())), own_(stream) {
  if (outer_ != own_) {
    current_.emplace(own_, outer_);
  }
}

StepGraph::OnStream::OnStream(const StepGraph* graph)
    : OnStream(graph != nullptr ? graph->stream_ : device::current_stream(at::kCPU)) {}

StepGraph::OnStream::~OnStream() {
  if (current_) {
    device::Event end(own_.device_type());
    end.record(own_);
    end.block(outer_);
  }
}

at::Tensor StepGraph::OnStream::give(at::Tensor tensor) const {
  if (current_) {
    device::record_stream(tensor, outer_);
  }
  return tensor;
}

// Targets that count and padding change what a loss function may read from the host.
StepGraph::Key StepGraph::key_of(const std::vector<data::Batch>& batches) {
  Key key;
  for (const data::Batch& batch : batches) {
    add_tensors(key, batch.inputs);
    add_tensors(key, batch.targets);
    key.insert(key.end(), {batch.samples, batch.masks_targets ? 1 : 0, batch.loss_weight == 1 ? 1 : 0});
  }
  return key;
}

StepGraph::Recorded* StepGraph::find(const Key& key) {
  const auto found =
      std::find_if(recorded_.begin(), recorded_.end(), [&](const Recorded& entry) { return entry.key == key; });
  return found == recorded_.end() ? nullptr : &*found;
}

bool StepGraph::is_ready_for(const std::vector<data::Batch>& batches) {
  return !failed_ && eager_steps_ >= kFirstSteps && find(key_of(batches)) != nullptr;
}

void StepGraph::ran_eagerly(const std::vector<data::Batch>& batches, at::ScalarType loss) {
  ++eager_steps_;
  const Key key = key_of(batches);
  if (failed_ || find(key) != nullptr) {
    return;
  }
  if (recorded_.size() < kMostGraphs) {
    recorded_.emplace_back().key = key;
    recorded_.back().loss_type = loss;
  } else if (!std::exchange(full_, true)) {
    log::info("there are CUDA graphs for ", kMostGraphs,
              " shapes of micro-batches; steps of other shapes are launched one by one. Pad samples to fewer lengths.");
  }
}

void StepGraph::make_inputs(Recorded& entry, const std::vector<data::Batch>& batches) const {
  const at::Device device = parts_.device();
  entry.inputs = {};
  for (const data::Batch& batch : batches) {
    data::Batch& kept = entry.inputs.batches.emplace_back(batch);
    kept.inputs = memory_like(batch.inputs, device);
    kept.targets = memory_like(batch.targets, device);
    entry.inputs.weights.push_back(
        batch.loss_weight == 1 ? at::Tensor() : torch::empty({}, at::TensorOptions(torch::kFloat32).device(device)));
  }
  entry.loss = torch::empty({}, at::TensorOptions(entry.loss_type).device(device));
  entry.inputs.root = torch::empty_like(entry.loss);
}

// Batches are copied by the uploader's stream while the device computes, and from there into the graph's memory.
void StepGraph::fill(Recorded& entry, const std::vector<data::Batch>& batches, const at::Tensor& root) const {
  const torch::NoGradGuard no_grad;
  for (size_t m = 0; m < batches.size(); ++m) {
    copy_into(entry.inputs.batches[m].inputs, parts_.ranks.uploader->upload(batches[m].inputs));
    copy_into(entry.inputs.batches[m].targets, parts_.ranks.uploader->upload(batches[m].targets));
    if (entry.inputs.weights[m].defined()) {
      entry.inputs.weights[m].fill_(batches[m].loss_weight);
    }
  }
  entry.inputs.root.copy_(root);
}

std::vector<StepGraph::Grad> StepGraph::grads() const {
  std::vector<Grad> all;
  for (const auto& buffer : parts_.buffers.trained) {
    for (int64_t i = 0; i < buffer->count(); ++i) {
      if (buffer->was_used(i)) {
        all.push_back({buffer.get(), i, buffer->parameter(i).grad()});
      }
    }
  }
  return all;
}

bool StepGraph::record(Recorded& entry, const Launch& launch) {
  entry.graph = pool_->graph();
  const std::string why = device::record(*entry.graph, [&] { entry.loss_sum = launch(entry.inputs); });
  if (why.empty()) {
    entry.grads = grads();
    ++recordings_;
    return true;
  }
  parts_.buffers.reducer->abandon();
  parts_.buffers.coordinator->release_all();
  for (const auto& buffer : parts_.buffers.trained) {
    buffer->clear_grads();
  }
  failed_ = true;
  recorded_.clear();
  const std::string what = concat("a step cannot be recorded as a CUDA graph: ", why);
  const char* const advice =
      "The host may not wait for the GPU in model or loss function (item(), nonzero(), copies to the host).";
  if (required_) {
    throw InputError("engine", what, concat(advice, " Or set training.cuda_graph to \"auto\" or false."));
  }
  log::warning(what, ". Steps are launched one by one. ", advice);
  return false;
}

at::Tensor StepGraph::run(const std::vector<data::Batch>& batches, const RootGradient& root, const Launch& launch) {
  Recorded& entry = *find(key_of(batches));
  if (!entry.graph) {
    make_inputs(entry, batches);
  }
  fill(entry, batches, root(entry.loss));
  if (!entry.graph && !record(entry, launch)) {
    return {};
  }
  for (const Grad& one : entry.grads) { // as the hooks of backward leave them
    one.buffer->parameter(one.parameter).mutable_grad() = one.grad;
    one.buffer->attach_grad(one.parameter);
  }
  entry.graph->replay();
  ++replays_;
  return entry.loss_sum;
}

} // namespace trireme::engine
