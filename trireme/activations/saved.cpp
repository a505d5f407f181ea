#include <trireme/activations/saved.h>

#include <trireme/activations/storage_tensor.h>

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>

namespace trireme::activations {
namespace {

// A view of less than this part of a storage does not take the whole of it along: a slice of a data set, say.
constexpr int64_t kLargestWaste = 8;

bool has_plain_storage(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized() && !tensor.is_nested() && !tensor.is_conj() && !tensor.is_neg();
}

// The same memory, changes in place included, without the graph: a saved output must not hold the node that holds it.
at::Tensor alias_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/false));
}

} // namespace

std::shared_ptr<SavedStorage> SavedStorages::of(const c10::Storage& storage, uint32_t version, std::optional<Place> place, bool foreign) {
  const std::lock_guard lock(mutex_);
  forget_freed();
  auto* const impl = storage.unsafeGetStorageImpl();
  auto found = entries_.find(impl);
  if (found != entries_.end() && found->second.storage.expired()) {
    entries_.erase(found);
    found = entries_.end();
  }
  if (found == entries_.end()) {
    found = entries_.emplace(impl, Entry{c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl)), {}, {}, 0}).first;
  }
  Entry& entry = found->second;
  auto saved = entry.kept.lock();
  if (!saved && place && entry.version == version) {
    saved = entry.moved.lock();
  }
  if (saved) {
    return saved;
  }
  saved = std::make_shared<SavedStorage>();
  saved->ledger = ledger_;
  if (place) {
    saved->away = mover_->leave(storage, *place, foreign);
    entry.moved = saved;
    entry.version = version;
  } else {
    saved->counted = static_cast<int64_t>(storage.nbytes());
    ledger_->add(saved->counted);
    entry.kept = saved;
  }
  return saved;
}

void SavedStorages::forget_freed() {
  if (entries_.size() < look_again_) {
    return;
  }
  std::erase_if(entries_, [](const auto& one) { return one.second.kept.expired() && one.second.moved.expired(); });
  look_again_ = std::max<size_t>(64, 2 * entries_.size());
}

void Call::set_inputs(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) {
    if (input.defined() && has_plain_storage(input) && inputs_.insert(input.storage().unsafeGetStorageImpl()).second) {
      input_bytes_ += fixed_->count(input.storage().unsafeGetStorageImpl()) == 0 ? static_cast<int64_t>(input.storage().nbytes()) : 0;
    }
  }
}

void Call::note(const c10::Storage& storage) {
  const std::lock_guard lock(mutex_);
  if (inputs_.count(storage.unsafeGetStorageImpl()) == 0 && noted_.insert(storage.unsafeGetStorageImpl()).second) {
    bytes_ += static_cast<int64_t>(storage.nbytes());
  }
}

void Call::call_back() {
  std::vector<std::weak_ptr<SavedStorage>> moved;
  {
    const std::lock_guard lock(mutex_);
    moved.swap(moved_);
  }
  for (auto one = moved.rbegin(); one != moved.rend(); ++one) { // what was saved last is needed first
    if (const auto saved = one->lock()) {
      storages_->mover().call_back(*saved->away);
    }
  }
}

void Call::begin_backward() {
  {
    const std::lock_guard lock(mutex_);
    if (in_backward_) {
      return;
    }
    in_backward_ = true;
  }
  if (on_backward_) {
    on_backward_();
  }
  call_back();
  if (const auto next = before_.lock()) {
    next->call_back();
  }
}

class SavedTensor : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedTensor(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    if (!tensor.is_inference() && counter.enabled()) {
      counter_ = counter;
      version_ = counter.current_version();
    }
    if (!has_plain_storage(tensor) || tensor.storage().nbytes() == 0 || tensor.device().type() != call_->storages_->mover().device().type() || call_->fixed_->count(tensor.storage().unsafeGetStorageImpl()) != 0) {
      keep(tensor);
      return;
    }
    const c10::Storage& storage = tensor.storage();
    call_->note(storage);
    const auto bytes = static_cast<int64_t>(storage.nbytes());
    const bool moves = call_->place_ && bytes >= call_->least_bytes_ && bytes <= kLargestWaste * static_cast<int64_t>(tensor.nbytes());
    storage_ = call_->storages_->of(storage, version_, moves ? call_->place_ : std::nullopt, /*foreign=*/call_->inputs_.count(storage.unsafeGetStorageImpl()) != 0);
    if (!storage_->away) {
      keep(tensor);
      return;
    }
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
    type_ = tensor.scalar_type();
    const std::lock_guard lock(call_->mutex_);
    call_->moved_.push_back(storage_);
  }

  at::Tensor call_unpack_hook() override {
    call_->begin_backward();
    TORCH_CHECK(!counter_.enabled() || counter_.current_version() == version_,
                "one of the variables needed for gradient computation has been modified by an inplace operation: it was at version ", version_, " when it was saved and is at version ",
                counter_.enabled() ? counter_.current_version() : 0, " now");
    return kept_.defined() ? kept_ : storage_tensor(call_->storages_->mover().wait_for(*storage_->away), type_, sizes_, strides_, offset_);
  }

 private:
  void keep(const at::Tensor& tensor) {
    kept_ = tensor.is_leaf() && tensor.requires_grad() ? tensor : alias_of(tensor);
  }

  const std::shared_ptr<Call> call_;
  std::shared_ptr<SavedStorage> storage_;
  at::Tensor kept_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  int64_t offset_ = 0;
  at::ScalarType type_ = at::kFloat;
  c10::VariableVersion counter_{c10::VariableVersion::DISABLED};
  uint32_t version_ = 0;
};

std::unique_ptr<torch::autograd::SavedVariableHooks> CallSaver::save() {
  return std::make_unique<SavedTensor>(call_);
}

} // namespace trireme::activations
