#include <trireme/shards/data_parallel/convert_sync_batch_norm.h>

#include <trireme/base/error.h>
#include <trireme/shards/data_parallel/sync_batch_norm.h>

#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

namespace trireme::parallel {
namespace {

using TensorId = const c10::TensorImpl*;

/// A converted layer.
struct Layer {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor; // keeps the address from being reused
  std::weak_ptr<torch::nn::Module> module;         // empty: the layer is not owned by a shared_ptr
  comm::Group ranks;
  StatisticsNames names;
};

/// The converted layers of this process, by the address of the weight, or of the running mean if there is no weight.
class Layers {
 public:
  static Layers& instance() {
    static auto* const layers = new Layers; // never destroyed: layers may be removed while the process ends
    return *layers;
  }

  bool add(const at::Tensor& tensor, Layer layer) {
    const std::unique_lock lock(mutex_);
    return layers_.try_emplace(tensor.unsafeGetTensorImpl(), std::move(layer)).second;
  }
  void remove(TensorId tensor) {
    const std::unique_lock lock(mutex_);
    layers_.erase(tensor);
  }
  std::optional<Layer> find(const at::Tensor& tensor) const {
    const std::shared_lock lock(mutex_);
    const auto found = layers_.find(tensor.unsafeGetTensorImpl());
    return found == layers_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<TensorId, Layer> layers_;
};

// aten::batch_norm
at::Tensor batch_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps,
                      bool cudnn_enabled) {
  const auto given = [](const std::optional<at::Tensor>& tensor) { return tensor.value_or(at::Tensor()); };
  const at::Tensor key = weight && weight->defined() ? *weight : given(running_mean);
  if (training && key.defined()) {
    if (const std::optional<Layer> layer = Layers::instance().find(key)) {
      // Without running statistics, evaluation uses the batch's too, but each rank its own.
      const auto module = layer->module.lock();
      if (!module || module->is_training()) {
        return sync_batch_norm(x, {given(weight), given(bias), given(running_mean), given(running_var)}, momentum, eps,
                               layer->ranks, layer->names);
      }
    }
  }
  return at::native::batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}

// Replaces aten::batch_norm for the rest of the process, once; programs that convert nothing keep libtorch's.
void look_up_layers() {
  static const auto* const libraries = [] {
    using Key = c10::DispatchKey;
    auto* made = new std::vector<torch::Library>;
    // Inference mode dispatches to the device keys.
    for (const Key key : {Key::AutogradCPU, Key::AutogradCUDA, Key::AutogradPrivateUse1, Key::AutogradXPU,
                          Key::AutogradMPS, Key::AutogradHPU, Key::AutogradMTIA, Key::CPU, Key::CUDA, Key::PrivateUse1,
                          Key::XPU, Key::MPS, Key::HPU, Key::MTIA}) {
      made->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__)
          .impl("batch_norm", TORCH_FN(batch_norm));
    }
    return made;
  }();
  (void)libraries;
}

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr || module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr;
}

at::Tensor tensor_of(const torch::nn::Module& layer, const std::string& name) {
  for (const auto& item : layer.named_parameters(false)) {
    if (item.key() == "weight") {
      return item.value();
    }
  }
  for (const auto& item : layer.named_buffers(false)) {
    if (item.key() == "running_mean") {
      return item.value();
    }
  }
  throw InputError(
      "sync_batch_norm",
      concat("the BatchNorm \"", name, "\" has neither weights nor running statistics by which to recognise it"),
      "Make it with affine(true) or track_running_stats(true), or put a trireme::SyncBatchNorm in its place.");
}

} // namespace

class SyncedBatchNorms::Impl {
 public:
  Impl(const std::vector<torch::nn::Module*>& modules, const comm::Group& ranks) : ranks_(statistics_group(ranks)) {
    if (ranks_.size() == 1) {
      return;
    }
    look_up_layers();
    try {
      for (torch::nn::Module* const one : modules) {
        one->apply([this, one](const std::string& name, torch::nn::Module& module) {
          if (is_batch_norm(module)) {
            convert(name.empty() ? one->name() : name, module);
          }
        });
      }
    } catch (...) {
      revert();
      throw;
    }
  }
  ~Impl() { revert(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const comm::Group& group() const { return ranks_; }
  int64_t size() const { return std::ssize(converted_); }

 private:
  void convert(const std::string& name, torch::nn::Module& module) {
    const at::Tensor tensor = tensor_of(module, name);
    for (const TensorId known : converted_) {
      if (known == tensor.unsafeGetTensorImpl()) {
        return; // the model contains the layer twice
      }
    }
    if (!Layers::instance().add(tensor, {c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                                         module.weak_from_this(), ranks_, StatisticsNames("layer " + name)})) {
      throw InputError("sync_batch_norm",
                       concat("the BatchNorm \"", name, "\" already normalises over the ranks of a group"),
                       "Convert a model once: an engine and DataParallel do it if sync_batch_norm is on.");
    }
    converted_.push_back(tensor.unsafeGetTensorImpl());
  }
  void revert() {
    for (const TensorId tensor : converted_) {
      Layers::instance().remove(tensor);
    }
    converted_.clear();
  }

  comm::Group ranks_;
  std::vector<TensorId> converted_;
};

SyncedBatchNorms::SyncedBatchNorms(torch::nn::Module& model, const comm::Group& ranks)
    : SyncedBatchNorms(std::vector{&model}, ranks) {}
SyncedBatchNorms::SyncedBatchNorms(const std::vector<torch::nn::Module*>& modules, const comm::Group& ranks)
    : impl_(std::make_unique<Impl>(modules, ranks)) {}
SyncedBatchNorms::~SyncedBatchNorms() = default;
SyncedBatchNorms::SyncedBatchNorms(SyncedBatchNorms&&) noexcept = default;
SyncedBatchNorms& SyncedBatchNorms::operator=(SyncedBatchNorms&&) noexcept = default;

int64_t SyncedBatchNorms::size() const {
  return impl_->size();
}
const comm::Group& SyncedBatchNorms::group() const {
  return impl_->group();
}

} // namespace trireme::parallel
