#include <trireme/memory/activations/saved.h>

#include <trireme/base/error.h>
#include <trireme/memory/activations/options.h>
#include <trireme/memory/activations/storage_tensor.h>
#include <trireme/memory/aio/memory.h>

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace trireme::activations {
namespace {

// A storage is not moved for a view of less than 1/kLargestWaste of it, such as a slice of a data set.
constexpr int64_t kLargestWaste = 8;

bool has_plain_storage(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized() && !tensor.is_nested() &&
         !tensor.is_conj() && !tensor.is_neg();
}

// The same memory, in-place changes included, without the graph: a saved output must not own the node that owns it.
at::Tensor alias_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/false));
}

// The tensor's memory, counted until its last use ends.
c10::Storage counted_memory(const at::Tensor& tensor, const std::shared_ptr<SavedStorage>& counted) {
  using Held = std::pair<at::Tensor, std::shared_ptr<SavedStorage>>;
  at::DataPtr data(
      tensor.data_ptr(), new Held(tensor, counted), [](void* held) { delete static_cast<Held*>(held); },
      tensor.device());
  return c10::Storage(c10::Storage::use_byte_size_t(), tensor.nbytes(), std::move(data), /*allocator=*/nullptr,
                      /*resizable=*/false);
}

[[noreturn]] void refuse_shares(const std::string& type) {
  throw Error("activations",
              concat("partition_activations: tensor ranks have different inputs of ", type.empty() ? "a part" : type,
                     ", so they cannot keep shares of them"),
              "Begin the part after the sum of a row-parallel layer, or remove \"partition_activations\".");
}

} // namespace

SavedStorages::Entry& SavedStorages::entry_of(const c10::Storage& storage) {
  forget_freed();
  auto* const impl = storage.unsafeGetStorageImpl();
  auto found = entries_.find(impl);
  if (found != entries_.end() && found->second.storage.expired()) {
    entries_.erase(found);
    found = entries_.end();
  }
  if (found == entries_.end()) {
    found = entries_
                .emplace(impl, Entry{c10::weak_intrusive_ptr<c10::StorageImpl>(
                                         c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl)),
                                     {},
                                     {},
                                     0,
                                     {},
                                     0})
                .first;
  }
  return found->second;
}

std::shared_ptr<SavedStorage> SavedStorages::of(const c10::Storage& storage, uint32_t version,
                                                std::optional<Place> place, bool foreign) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_of(storage);
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
  std::erase_if(entries_, [](const auto& one) {
    return one.second.kept.expired() && one.second.moved.expired() && one.second.shared.expired();
  });
  look_again_ = std::max<size_t>(64, 2 * entries_.size());
}

// Ignores whether the storage is also kept in full: ranks gather collectively, and that might differ among them.
std::shared_ptr<SavedStorage> SavedStorages::shared(const c10::Storage& storage, uint32_t version,
                                                    std::optional<Place> place) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_of(storage);
  if (auto saved = entry.shared.lock(); saved && entry.shared_version == version) {
    return saved;
  }
  const auto saved = std::make_shared<SavedStorage>();
  saved->ledger = ledger_;
  saved->whole_bytes = static_cast<int64_t>(storage.nbytes());
  saved->checksum = checksum_of(storage, saved->whole_bytes);
  at::Tensor share = cut_share(sharing_, storage);
  if (place) {
    saved->away = mover_->leave(share.storage(), *place);
  } else {
    saved->counted = share.numel();
    ledger_->add(saved->counted);
    saved->share = std::move(share);
  }
  entry.shared = saved;
  entry.shared_version = version;
  return saved;
}

c10::Storage SavedStorages::gather(const SavedStorage& saved, const std::string& type) {
  const at::NoGradGuard no_grad;
  const int64_t each = share_of(saved.whole_bytes, sharing_.ranks);
  const at::Tensor share =
      saved.away ? storage_tensor(mover_->wait_for(*saved.away), at::kByte, {each}, {1}, 0) : saved.share;
  const at::Tensor whole = at::empty({sharing_.ranks * each}, share.options());
  sharing_.gather(whole, share);
  const auto counted = std::make_shared<SavedStorage>();
  counted->ledger = ledger_;
  counted->counted = whole.numel();
  ledger_->add(counted->counted);
  c10::Storage storage = counted_memory(whole, counted);
  const at::Tensor differs = checksum_of(storage, saved.whole_bytes).ne(saved.checksum);
  if (whole.is_cpu() && differs.item<bool>()) {
    refuse_shares(type);
  }
  const std::lock_guard lock(mutex_);
  entry_of(storage).kept = counted; // the recomputed part may save it again
  if (!whole.is_cpu()) {
    differ_ = differ_.defined() ? differ_.logical_or(differs) : differs;
  }
  return storage;
}

void SavedStorages::check_shares() {
  const std::lock_guard lock(mutex_);
  const at::Tensor differ = std::exchange(differ_, {});
  if (differ.defined() && differ.item<bool>()) {
    refuse_shares("");
  }
}

void Call::set_inputs(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) {
    if (input.defined() && has_plain_storage(input) && inputs_.insert(input.storage().unsafeGetStorageImpl()).second) {
      const auto* const storage = input.storage().unsafeGetStorageImpl();
      const auto bytes = static_cast<int64_t>(input.storage().nbytes());
      const bool counts = fixed_->count(storage) == 0;
      if (counts && can_be_shared(input)) {
        shared_inputs_.insert(storage);
      }
      input_bytes_ += counts ? bytes : 0;
      share_bytes_ += !counts ? 0 : is_shared(storage) ? share_of(bytes, storages_->sharing().ranks) : bytes;
      padding_ += counts ? aio::round_up(bytes) - bytes : 0;
    }
  }
}

// Excludes leaves that require a gradient: another stage sent them, and the reader of that gradient holds the storage
// in full. Excludes tensors smaller than their storage, whose other bytes may differ among ranks.
bool Call::can_be_shared(const at::Tensor& input) const {
  return shares_ && input.is_floating_point() && !(input.is_leaf() && input.requires_grad()) &&
         input.nbytes() == input.storage().nbytes() && may_move(input);
}

bool Call::may_move(const at::Tensor& tensor) const {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  return bytes >= least_bytes_ && bytes <= kLargestWaste * static_cast<int64_t>(tensor.nbytes());
}

void Call::note(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  const auto* const storage = tensor.storage().unsafeGetStorageImpl();
  if (inputs_.count(storage) == 0 && noted_.insert(storage).second) {
    const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
    bytes_ += bytes;
    (may_move(tensor) ? padding_ : stay_bytes_) += may_move(tensor) ? aio::round_up(bytes) - bytes : bytes;
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
    if (!has_plain_storage(tensor) || tensor.storage().nbytes() == 0 ||
        tensor.device().type() != call_->storages_->mover().device().type() ||
        call_->fixed_->count(tensor.storage().unsafeGetStorageImpl()) != 0) {
      keep(tensor);
      return;
    }
    const c10::Storage& storage = tensor.storage();
    call_->note(tensor);
    const bool moves = call_->place_ && call_->may_move(tensor);
    shared_ = call_->is_shared(storage.unsafeGetStorageImpl());
    if (shared_) {
      storage_ = call_->storages_->shared(storage, version_, moves ? call_->place_ : std::nullopt);
    } else {
      storage_ = call_->storages_->of(storage, version_, moves ? call_->place_ : std::nullopt,
                                      /*foreign=*/call_->inputs_.count(storage.unsafeGetStorageImpl()) != 0);
      if (!storage_->away) {
        keep(tensor);
        return;
      }
    }
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
    type_ = tensor.scalar_type();
    if (storage_->away) {
      const std::lock_guard lock(call_->mutex_);
      call_->moved_.push_back(storage_);
    }
  }

  at::Tensor call_unpack_hook() override {
    call_->begin_backward();
    TORCH_CHECK(!counter_.enabled() || counter_.current_version() == version_,
                "one of the variables needed for gradient computation has been modified by an inplace operation: it "
                "was at version ",
                version_, " when it was saved and is at version ", counter_.enabled() ? counter_.current_version() : 0,
                " now");
    if (kept_.defined()) {
      return kept_;
    }
    return storage_tensor(shared_ ? call_->storages_->gather(*storage_, call_->type_)
                                  : call_->storages_->mover().wait_for(*storage_->away),
                          type_, sizes_, strides_, offset_);
  }

 private:
  void keep(const at::Tensor& tensor) {
    kept_ = tensor.is_leaf() && tensor.requires_grad() ? tensor : alias_of(tensor);
  }

  const std::shared_ptr<Call> call_;
  std::shared_ptr<SavedStorage> storage_;
  bool shared_ = false;
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
