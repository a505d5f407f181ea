#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/parallel/data/reduce_groups.h>
#include <trireme/zero/access_order.h>
#include <trireme/zero/gather_rule.h>

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

/// Gathers the parameters of the unit that is about to be used, and those of the next ones ahead of time (ZeRO stage
/// 3).
///
/// One rule for forward, backward and recomputation: entering a unit lets go of every other that is not expected next.
/// So the last unit of forward is still there for its backward, and a recomputed one for the backward that follows.
/// What is next is what came next in the pass before; the first pass gathers nothing ahead. Of a pipeline's schedule
/// each computation is known from the first of its kind on. Units that the pass uses again may be kept, those that come
/// first, as long as no more than keep() elements are whole (Belady 1966: whatever is needed latest has to go). Every
/// rank enters the same units in the same order.
///
/// Cost: P(N-1)/N bytes sent a rank for the forward and as much for the backward of P bytes of parameters, less what is
/// kept: where M micro-batches go to and fro over L units of one size, of which K (at least two, where one is gathered
/// ahead) are kept, 2M(L - K) + K units are gathered. Shards that are in files come from there two stages ahead: from
/// the disk to the host, and then gathered.
///
/// Memory: the shards, one unit, and what is gathered ahead; or, if that is more, what may be kept. Source: Rajbhandari
/// et al. 2020, arXiv:1910.02054, section 5.3.
class ParameterCoordinator : public std::enable_shared_from_this<ParameterCoordinator> {
 public:
  /// Whether a node of autograd's graph only exchanges its one tensor with other ranks.
  using IsExchange = std::function<bool(const torch::autograd::Node&)>;
  /// `ahead`: elements that may be gathered ahead; absent: the next unit, whatever its size; 0: nothing. `is_exchange`:
  /// that of tensor ranks. The buffers must outlive it, or forget_buffers() comes before their end: what is pinned then
  /// needs not be given back.
  ParameterCoordinator(std::vector<bucket::FlatParameters*> buffers, parallel::ReduceGroups groups,
                       std::optional<int64_t> ahead, IsExchange is_exchange);

  using SizeOf = std::function<int64_t(const at::Tensor& parameter)>;
  /// Makes a unit of the module: its parameters, those of its children but not of tiles included, are gathered
  /// together. Those of the unit `within` which a tile lies stay while it is used. They have been taken in by the
  /// buffers. `size`: elements of a parameter when it is decided what is gathered ahead and kept. Tensor ranks, whose
  /// parts may differ, take the largest: they gather what they have whole among all of them, so they decide the same.
  void add(const torch::nn::Module& module, const SizeOf& size, const torch::nn::Module* within = nullptr);

  /// How many elements may be whole at a time with those of units that are used again later in the pass. At first none
  /// are kept.
  void keep(int64_t elements) {
    rule_.keep = elements;
  }
  /// Says that shards are elsewhere (a bucket::StateStore that reads ahead): the buckets of so many come from there to
  /// the host while earlier units are used, before they are gathered. At first none.
  void read_ahead(int64_t buckets) {
    read_ahead_ = buckets;
  }
  /// Elements that belong to units.
  int64_t unit_elements() const;

  /// A forward, a pass of training or evaluation, begins.
  void begin(Pass pass) {
    order_.begin(pass);
  }
  /// A pass of these stretches begins; see AccessOrder.
  void begin(std::vector<int> stretches) {
    order_.begin(std::move(stretches));
  }
  void next_stretch() {
    order_.next_stretch();
    current_ = nullptr; // so that every stretch notes its first unit
  }
  /// Returns when the unit's parameters are there. A module that is not a unit: nothing happens.
  void enter(const torch::nn::Module& module);
  /// Enters the unit again when the backward of `output`, which it returned, begins.
  void gather_for_backward(const torch::nn::Module& module, const at::Tensor& output);
  /// Lets go of everything: the shards have changed.
  void release_all();

  /// Gathers the buckets of these parameters and keeps them until unpin(). Parameters that are not sharded are passed
  /// over. `to_modify`: one rank's values will be everybody's. Errors: InputError for parameters that not all ranks of
  /// the data group have.
  void pin(const std::vector<at::Tensor>& parameters, bool to_modify = false);
  /// Called whenever parameters were modified between pin() and unpin().
  void on_modified(std::function<void()> callback) {
    on_modified_ = std::move(callback);
  }
  void forget_buffers();
  /// Whether anything that is sharded is held by pin().
  bool has_pins() const {
    return !pins_.empty();
  }
  /// Calls f, which gives the parameters new values, the same on every rank, with all of them there.
  void rewrite(const std::vector<at::Tensor>& parameters, const std::function<void()>& f);
  /// `modifier`: the rank whose values are everybody's from now on.
  void unpin(const std::vector<at::Tensor>& parameters, std::optional<int> modifier);

  /// Time spent waiting for parameters so far.
  double exposed_seconds() const {
    return exposed_;
  }

 private:
  // A bucket; parts are their numbers, those of all buffers one behind the other.
  struct Bucket {
    bucket::FlatParameters* buffer;
    int64_t bucket;

    bool is_replicated() const {
      return buffer->is_replicated(bucket);
    }
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
