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

/// A storage viewed by saved tensors: its location, and its bytes in the ledger. If moved, it is in `away`.
struct SavedStorage {
  std::shared_ptr<Ledger> ledger;
  int64_t counted = 0;
  std::shared_ptr<Away> away;
  // If ranks keep shares: this rank's share unless it is moved, and the bytes and checksum of the full storage.
  at::Tensor share;
  int64_t whole_bytes = 0;
  at::Tensor checksum;

  ~SavedStorage() { ledger->remove(counted); }
};

/// All saved storages, each once for all tensors that view it. Thread-safe.
class SavedStorages {
 public:
  /// `sharing` with one rank: nothing is shared.
  SavedStorages(std::shared_ptr<Ledger> ledger, std::shared_ptr<Mover> mover, Sharing sharing = {})
      : ledger_(std::move(ledger)), mover_(std::move(mover)), sharing_(std::move(sharing)) {}

  /// Returns the entry of this storage: moved to `place`, unless it is kept anyway, or kept. `version`: of the saved
  /// tensor, which changes with its values; `foreign`: see Mover::leave().
  std::shared_ptr<SavedStorage> of(const c10::Storage& storage, uint32_t version, std::optional<Place> place,
                                   bool foreign = false);
  /// Returns the entry of a storage of which each rank keeps a share, in memory or moved to `place`.
  std::shared_ptr<SavedStorage> shared(const c10::Storage& storage, uint32_t version, std::optional<Place> place);
  /// Gathers the full storage for the current stream; counted while it lives. Collective. Errors: Error if the ranks
  /// had different bytes; on a device check_shares() reports it. `type`: the part's class, for messages.
  c10::Storage gather(const SavedStorage& saved, const std::string& type);
  /// Waits for the device. Errors: Error if ranks had different bytes since the last call.
  void check_shares();
  const Sharing& sharing() const { return sharing_; }
  Mover& mover() const { return *mover_; }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage; // while it exists no other storage has this address
    std::weak_ptr<SavedStorage> kept;
    std::weak_ptr<SavedStorage> moved;
    uint32_t version = 0; // of the moved storage
    std::weak_ptr<SavedStorage> shared = {};
    uint32_t shared_version = 0;
  };
  Entry& entry_of(const c10::Storage& storage);
  void forget_freed();

  const std::shared_ptr<Ledger> ledger_;
  const std::shared_ptr<Mover> mover_;
  const Sharing sharing_;
  std::mutex mutex_;
  at::Tensor differ_; // whether gathered shares differed among ranks
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  size_t look_again_ = 64;
};

/// One forward of one part, and what it saved.
class Call {
 public:
  Call(std::shared_ptr<SavedStorages> storages, std::shared_ptr<const std::unordered_set<const void*>> fixed,
       std::optional<Place> place, int64_t least_bytes)
      : storages_(std::move(storages)), fixed_(std::move(fixed)), place_(place), least_bytes_(least_bytes) {}

  /// Sets storages that do not count as saved by the part itself.
  void set_inputs(const std::vector<at::Tensor>& inputs);
  /// For a recomputed part: ranks keep shares of its inputs. `type`: its class.
  void share_inputs(std::string type) {
    shares_ = storages_->sharing().ranks > 1;
    type_ = std::move(type);
  }
  /// Sets the call whose backward comes next.
  void set_before(std::weak_ptr<Call> before) { before_ = std::move(before); }
  /// Calls f once, when backward asks for the first saved tensor.
  void on_backward(std::function<void()> f) { on_backward_ = std::move(f); }
  /// Bytes of storages that this call saved: besides its inputs, and of its inputs. Valid after its forward.
  int64_t bytes() const { return bytes_; }
  int64_t input_bytes() const { return input_bytes_; }
  /// Bytes of the inputs that this rank keeps: fewer if ranks keep shares.
  int64_t share_bytes() const { return share_bytes_; }
  /// Bytes of bytes() that would not be moved, and padding of the buffers (PartCost).
  int64_t stay_bytes() const { return stay_bytes_; }
  int64_t padding() const { return padding_; }

 private:
  friend class SavedTensor;
  bool can_be_shared(const at::Tensor& input) const;
  bool is_shared(const void* storage) const { return shared_inputs_.count(storage) != 0; }
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

/// Passes what autograd saves on this thread to a call.
class CallSaver : public recompute::Saver {
 public:
  explicit CallSaver(std::shared_ptr<Call> call) : call_(std::move(call)) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> save() override;

 private:
  const std::shared_ptr<Call> call_;
};

} // namespace trireme::activations
