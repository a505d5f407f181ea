#pragma once

#include <trireme/activations/activations.h>
#include <trireme/activations/mark.h>
#include <trireme/activations/saved.h>

#include <optional>
#include <regex>

namespace trireme::activations {

/// The parts and what is known of them; private to this folder. The functions that backward calls hold it.
class Activations::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(Options options, at::Device device, const aio::Options& aio, int64_t in_flight);

  struct Known {
    const void* key;
    std::string type;
    int64_t place;
    Way way;
    int64_t bytes = 0;
    int64_t input_bytes = 0;
    Mark forward_begins;
    Mark forward_ends;
    Mark backward_begins;
  };

  Tensors run(const Part& part, const Function& f, const Tensors& inputs);
  void end_step();
  bool wants_decision() const;
  std::vector<double> measured() const;
  std::string decide(const std::vector<double>& largest);

  const Options options;
  const at::Device device;
  const aio::Options aio;
  const int64_t in_flight;
  const std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  std::shared_ptr<Mover> mover;
  std::shared_ptr<SavedStorages> storages;
  std::shared_ptr<const std::unordered_set<const void*>> fixed = std::make_shared<std::unordered_set<const void*>>();
  std::vector<Known> parts;
  int64_t peak_bytes = 0; // of the last step

 private:
  size_t place_of(const Part& part);
  Way first_way(const Part& part, size_t index) const;
  Way usable(Way way) const;
  bool measures() const;
  std::shared_ptr<Call> begin_call(size_t index, std::optional<Place> place, const Tensors& inputs);
  void end_forward(size_t index, const Call& call);
  void allow_moves();
  Tensors call_directly(size_t index, const Function& f, const Tensors& inputs);
  Tensors call_recomputed(size_t index, const Part& part, const Function& f, const Tensors& inputs);
  std::string table(const Problem& problem) const;

  std::optional<std::regex> layers_;
  std::weak_ptr<Call> last_call_;
  int64_t steps_ = 0;
  bool places_given_ = false;
  bool decided_ = false;
};

/// Seconds a byte of what was measured by moving `bytes` to the host and back, and to a file and back.
MoveCost measure_host(at::Device device, int64_t bytes);
MoveCost measure_nvme(const std::string& folder, const aio::Options& options, int64_t bytes);

} // namespace trireme::activations
