#include <trireme/shards/bucket/shared_memory.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <vector>

namespace trireme::bucket {
namespace {

// The range of the storage that a tensor uses, in bytes.
struct Window {
  const void* storage;
  int64_t begin;
  int64_t end;
  const std::string* name;
  bool trained;
};

Window window_of(const std::string& name, const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset() * bytes, (last + 1) * bytes, &name,
          tensor.requires_grad()};
}

} // namespace

NamedTensors tensors_of(const torch::nn::Module& module, const std::string& prefix) {
  NamedTensors tensors;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) {
      tensors.emplace_back(prefix + item.key(), item.value());
    }
  }
  return tensors;
}

void refuse_shared_memory(const NamedTensors& tensors) {
  std::vector<Window> windows;
  std::set<const void*> seen;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && tensor.has_storage() && tensor.numel() > 0 &&
        seen.insert(tensor.unsafeGetTensorImpl()).second) {
      windows.push_back(window_of(name, tensor));
    }
  }
  std::stable_sort(windows.begin(), windows.end(), [](const Window& a, const Window& b) {
    return std::pair(a.storage, a.begin) < std::pair(b.storage, b.begin);
  });
  for (size_t i = 0; i < windows.size(); ++i) {
    const Window& a = windows[i];
    for (size_t j = i + 1; j < windows.size() && windows[j].storage == a.storage && windows[j].begin < a.end; ++j) {
      if (a.trained || windows[j].trained) {
        throw InputError("model",
                         concat('"', *a.name, "\" and \"", *windows[j].name,
                                "\" are two tensors that share memory; training would untie them"),
                         "Tie parameters by using one tensor or one module in both places (at::linear(x, "
                         "embedding->weight)), not by set_data() or views; "
                         "between layers of a pipeline with TiedLayerSpec.");
      }
    }
  }
}

} // namespace trireme::bucket
