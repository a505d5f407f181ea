#pragma once

#include <trireme/memory/activations/ledger.h>
#include <trireme/memory/activations/mark.h>
#include <trireme/memory/activations/mover.h>
#include <trireme/memory/activations/sharing.h>
#include <trireme/memory/recompute/saver.h>

#include <c10/core/Storage.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace trireme::activations {

/// What one or several saved tensors are views of: where it is, and its bytes in the ledger. Moved: in `away`.
struct SavedStorage {
  std::shared_ptr<Ledger> ledger;
  int64_t counted = 0;
  std::shared_ptr<Away> away;
  // Where ranks keep shares: this rank's, unless it is away, and the bytes and the checksum of the whole.
  at::Tensor share;
  int64_t whole_bytes = 0;
  at::Tensor checksum;

  ~SavedStorage() {
    ledger->remove(counted);
  }
};

/// Every storage that is saved, once, however many tensors view it. Any thread.
class SavedStorages {
 public:
  /// `sharing` of one rank: nothing is shared.
  SavedStorages(std::shared_ptr<Ledger> ledger, std::shared_ptr<Mover> mover, Sharing sharing = {})
      : ledger_(std::move(ledger)), mover_(std::move(mover)), sharing_(std::move(sharing)) {}

  /// The one of this storage: moved to `place`, unless somebody keeps it anyway, or kept. `version`: of the tensor that
  /// is saved, which changes with its values; `foreign`: see Mover::leave().
  std::shared_ptr<SavedStorage> of(const c10::Storage& storage, uint32_t version, std::optional<Place> place,
                                   bool foreign = false);
  /// The same of a storage of which each rank keeps a share: kept where it is, or moved to `place`.
  std::shared_ptr<SavedStorage> shared(const c10::Storage& storage, uint32_t version, std::optional<Place> place);
  /// The whole of it again, for the current stream; counted while it lives. Collective.
  /// Errors: Error where the ranks had different bytes; on a device found by check_shares(). `type`: the part's class,
  /// for messages.
  c10::Storage gather(const SavedStorage& saved, const std::string& type);
  /// Waits for the device. Errors: Error where ranks had different bytes since the last call.
  void check_shares();
  const Sharing& sharing() const {
    return sharing_;
  }
  Mover& mover() const {
    return *mover_;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage; // as long as it exists no other storage has the address
    std::weak_ptr<SavedStorage> kept;
    std::weak_ptr<SavedStorage> moved;
    uint32_t version = 0; // of what was moved
    std::weak_ptr<SavedStorage> shared = {};
    uint32_t shared_version = 0;
  };
  Entry& entry_of(const c10::Storage& storage);
  void forget_freed();

  const std::shared_ptr<Ledger> ledger_;
  const std::shared_ptr<Mover> mover_;
  const Sharing sharing_;
  std::mutex mutex_;
  at::Tensor differ_; // shares that did not fit together
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  size_t look_again_ = 64;
};

/// One forward of one part, and what it saved.
class Call {
 public:
  Call(std::shared_ptr<SavedStorages> storages, std::shared_ptr<const std::unordered_set<const void*>> fixed,
       std::optional<Place> place, int64_t least_bytes)
      : storages_(std::move(storages)), fixed_(std::move(fixed)), place_(place), least_bytes_(least_bytes) {}

  /// Storages that do not count as what the part itself saves.
  void set_inputs(const std::vector<at::Tensor>& inputs);
  /// Of a part that is recomputed: ranks keep shares of its inputs. `type`: its class.
  void share_inputs(std::string type) {
    shares_ = storages_->sharing().ranks > 1;
    type_ = std::move(type);
  }
  /// The call whose backward comes next.
  void set_before(std::weak_ptr<Call> before) {
    before_ = std::move(before);
  }
  /// Called once, when backward asks for the first of what was saved.
  void on_backward(std::function<void()> f) {
    on_backward_ = std::move(f);
  }
  /// Bytes of storages that this call saved: beside the inputs, and of these. After its forward.
  int64_t bytes() const {
    return bytes_;
  }
  int64_t input_bytes() const {
    return input_bytes_;
  }
  /// What of these this rank keeps: less where ranks keep shares.
  int64_t share_bytes() const {
    return share_bytes_;
  }
  /// What of bytes() would stay if they moved; and what the buffers would take beyond what moves (PartCost).
  int64_t stay_bytes() const {
    return stay_bytes_;
  }
  int64_t padding() const {
    return padding_;
  }

 private:
  friend class SavedTensor;
  bool can_be_shared(const at::Tensor& input) const;
  bool is_shared(const void* storage) const {
    return shared_inputs_.count(storage) != 0;
  }
  bool may_move(const at::Tensor& tensor) const;
  void note(const at::Tensor& tensor);
  void begin_backward();
  void call_back();

  const std::shared_ptr<SavedStorages> storages_;
  const std::shared_ptr<const std::unordered_set<const void*>> fixed_;
  const std::optional<Place> place_;
  const int64_t least_bytes_;
  bool shares_ = false;
  std::string type_;
  std::weak_ptr<Call> before_;
  std::function<void()> on_backward_;
  std::mutex mutex_;
  std::unordered_set<const void*> inputs_;
  std::unordered_set<const void*> shared_inputs_; // of which ranks keep shares
  std::unordered_set<const void*> noted_;
  std::vector<std::weak_ptr<SavedStorage>> moved_;
  int64_t bytes_ = 0;
  int64_t input_bytes_ = 0;
  int64_t share_bytes_ = 0;
  int64_t stay_bytes_ = 0;
  int64_t padding_ = 0;
  bool in_backward_ = false;
};

/// Hands what autograd saves on this thread to a call.
class CallSaver : public recompute::Saver {
 public:
  explicit CallSaver(std::shared_ptr<Call> call) : call_(std::move(call)) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> save() override;

 private:
  const std::shared_ptr<Call> call_;
};

} // namespace trireme::activations
