#pragma once

#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/data_parallel/reduce_groups.h>
#include <trireme/shards/zero/access_order.h>
#include <trireme/shards/zero/gather_rule.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::autograd {
struct Node;
}

namespace trireme::zero {

/// Gathers the parameters of the unit that is about to be used and prefetches the next ones (ZeRO stage
/// 3).
///
/// One rule for forward, backward and recomputation: entering a unit releases every other that is not
/// expected next. So the last unit of forward stays gathered for its backward, and a recomputed one for
/// the backward that follows. The order of the last pass predicts the next; the first pass prefetches
/// nothing. In a pipeline's schedule a computation is known after the first of its kind. Units that the
/// pass uses again may be kept, the next ones first, up to keep() elements gathered in total (Belady 1966:
/// evict what is needed latest). Every rank enters the same units in the same order.
///
/// Cost: each rank sends P(N-1)/N bytes for forward and as many for backward, for P bytes of parameters,
/// less what is kept. With L equal units, K kept (at least 2 when prefetching) and M micro-batches:
/// 2M(L-K)+K gathers per step. Shards in files are prefetched in two steps: from the disk to the host,
/// then gathered.
///
/// Memory: the shards, one unit, and what is prefetched; or, if that is more, what may be kept. Source:
/// Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3.
class ParameterCoordinator : public std::enable_shared_from_this<ParameterCoordinator> {
 public:
  /// True if a node of autograd's graph only exchanges its one tensor with other ranks.
  using IsExchange = std::function<bool(const torch::autograd::Node&)>;
  /// `ahead`: elements that may be prefetched; absent: the next unit, whatever its size; 0: none. `is_exchange`:
  /// identifies exchanges among tensor ranks. The buffers must outlive it, unless forget_buffers() is called before
  /// their end; then pins need not be undone.
  ParameterCoordinator(std::vector<bucket::FlatParameters*> buffers, parallel::ReduceGroups groups,
                       std::optional<int64_t> ahead, IsExchange is_exchange);

  using SizeOf = std::function<int64_t(const at::Tensor& parameter)>;
  /// Makes a unit of the module: its parameters and its children's, without those of tiles, are gathered at a time. The
  /// buffers must hold them already. `within`: the unit that a tile lies in; it stays gathered while the tile is used.
  /// `size`: elements of a parameter, used to decide what to prefetch and keep. Tensor ranks, whose parts may differ,
  /// must pass the largest, so that all decide the same.
  void add(const torch::nn::Module& module, const SizeOf& size, const torch::nn::Module* within = nullptr);

  /// Sets how many elements may be gathered at a time, including kept units that the pass uses again. Default: none are
  /// kept.
  void keep(int64_t elements) { rule_.keep = elements; }
  /// For shards in a bucket::StateStore that reads ahead: reads this many buckets to the host while earlier units are
  /// used, before they are gathered. Default: none.
  void read_ahead(int64_t buckets) { read_ahead_ = buckets; }
  /// Elements that belong to units.
  int64_t unit_elements() const;

  /// Begins a forward of training or evaluation.
  void begin(Pass pass) { order_.begin(pass); }
  /// Begins a pass of these stretches; see AccessOrder.
  void begin(std::vector<int> stretches) { order_.begin(std::move(stretches)); }
  void next_stretch() {
    order_.next_stretch();
    current_ = nullptr; // so that every stretch notes its first unit
  }
  /// Returns when the unit's parameters are gathered. Does nothing for a module that is not a unit.
  void enter(const torch::nn::Module& module);
  /// Enters the unit again when the backward of `output`, which it returned, begins.
  void gather_for_backward(const torch::nn::Module& module, const at::Tensor& output);
  /// Releases all units: the shards have changed.
  void release_all();

  /// Gathers the buckets of these parameters and keeps them until unpin(). Ignores parameters that are not sharded.
  /// `to_modify`: one rank's values will be broadcast. Errors: InputError for parameters that not all ranks of the data
  /// group have.
  void pin(const std::vector<at::Tensor>& parameters, bool to_modify = false);
  /// Called whenever parameters were modified between pin() and unpin().
  void on_modified(std::function<void()> callback) { on_modified_ = std::move(callback); }
  void forget_buffers();
  /// True if pin() holds anything that is sharded.
  bool has_pins() const { return !pins_.empty(); }
  /// Gathers the parameters and calls f, which sets the same new values on every rank.
  void rewrite(const std::vector<at::Tensor>& parameters, const std::function<void()>& f);
  /// `modifier`: the rank whose values are broadcast.
  void unpin(const std::vector<at::Tensor>& parameters, std::optional<int> modifier);

  /// Time spent waiting for parameters so far.
  double exposed_seconds() const { return exposed_; }

 private:
  // A bucket; parts are their numbers, those of all buffers one behind the other.
  struct Bucket {
    bucket::FlatParameters* buffer;
    int64_t bucket;

    bool is_replicated() const { return buffer->is_replicated(bucket); }
  };
  struct Live {
    comm::Work work;
    bool arrived = false;
  };
  using Parts = std::vector<int64_t>;

  bool reads_parameters_in_backward(const at::Tensor& output) const;
  Parts parts_of(const std::vector<at::Tensor>& parameters) const;
  PartSet whole_parts(const Parts& needed) const;
  void prefetch(const Parts& gathered) const;
  void start(int64_t part);
  void finish(int64_t part);
  void release_except(const PartSet& kept);

  std::vector<bucket::FlatParameters*> buffers_;
  std::vector<Bucket> buckets_; // by part
  parallel::ReduceGroups groups_;
  GatherRule rule_; // sizes: as add() was told
  IsExchange is_exchange_;
  int64_t read_ahead_ = 0;
  std::map<const torch::nn::Module*, Parts> units_;
  AccessOrder order_;
  const torch::nn::Module* current_ = nullptr;
  std::map<int64_t, Live> live_; // by part
  std::map<int64_t, int> pins_;
  std::function<void()> on_modified_;
  double exposed_ = 0;
};

} // namespace trireme::zero
