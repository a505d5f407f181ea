#pragma once

#include <trireme/memory/activations/activations.h>
#include <trireme/memory/activations/mark.h>
#include <trireme/memory/activations/saved.h>

#include <optional>
#include <regex>
#include <set>
#include <string>

namespace trireme::activations {

/// The registered parts and their measurements; private to this folder. Functions called by backward share its
/// ownership.
class Activations::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(Options options, at::Device device, const aio::Options& aio, int64_t in_flight, Sharing sharing,
       int64_t put_off);

  struct Known {
    const void* key;
    std::string type;
    int64_t place;
    Way way;
    int64_t bytes = 0;
    int64_t input_bytes = 0;
    int64_t share_bytes = 0;
    int64_t stay_bytes = 0;
    int64_t padding = 0;
    Mark forward_begins;
    Mark forward_ends;
    Mark backward_begins;
  };

  Tensors run(const ModelPart& part, const Function& f, const Tensors& inputs);
  void begin_forward() { last_call_.reset(); }
  void end_step();
  bool has_room_for(const Decision& decision, int64_t host_room) const;
  void adopt(Decision decision, bool all);
  bool wants_adoption() const;
  bool doubts_adopted() const;
  void end_adoption(bool adopted);
  bool wants_decision() const;
  std::vector<double> measured(int64_t host_room) const;
  std::string decide(const std::vector<double>& largest);

  const Options options;
  const at::Device device;
  const aio::Options aio;
  const int64_t in_flight;
  const int64_t put_off;
  const std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  std::shared_ptr<Mover> mover;
  std::shared_ptr<SavedStorages> storages;
  std::shared_ptr<const std::unordered_set<const void*>> fixed = std::make_shared<std::unordered_set<const void*>>();
  std::vector<Known> parts;
  std::set<std::string> left_out;
  int64_t peak_bytes = 0; // of the last step
  int64_t steps = 0;

 private:
  size_t index_of(const ModelPart& part, const Tensors& inputs);
  void take_adopted(size_t index, const Tensors& inputs);
  Way first_way(const ModelPart& part, size_t index) const;
  Way measuring_way() const;
  Way usable(Way way) const;
  bool measures() const;
  std::shared_ptr<Call> begin_call(size_t index, std::optional<Place> place, const Tensors& inputs, bool shares);
  void end_forward(size_t index, const Call& call);
  void allow_moves();
  Tensors call_directly(size_t index, const Function& f, const Tensors& inputs);
  Tensors call_recomputed(size_t index, const ModelPart& part, const Function& f, const Tensors& inputs);
  std::string table(const Problem& problem) const;

  std::optional<std::regex> layers_;
  std::weak_ptr<Call> last_call_;
  std::optional<Decision> adopted_;
  bool adopts_all_parts_ = false;
  bool doubts_ = false;
  bool places_given_ = false;
  bool decided_ = false;
};

/// Seconds per byte, measured by moving `bytes` to the host and back, or to a file and back.
MoveCost measure_host(at::Device device, int64_t bytes);
/// Seconds per byte of the gathered memory, measured by gathering shares. Collective.
double measure_gather(const Sharing& sharing, at::Device device, int64_t bytes);
MoveCost measure_nvme(FileSpace& files, const aio::Options& options, int64_t bytes);

} // namespace trireme::activations
