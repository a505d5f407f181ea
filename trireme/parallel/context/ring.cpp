#include <trireme/parallel/context/ring.h>

#include <trireme/base/error.h>
#include <trireme/parallel/context/block.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::context {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum Tag { kKeysAndValues, kGradients, kPadding };

int next_of(const comm::Group& ranks) {
  return (ranks.rank() + 1) % ranks.size();
}
int previous_of(const comm::Group& ranks) {
  return (ranks.rank() + ranks.size() - 1) % ranks.size();
}

/// The ring of blocks: first this rank's own, then the previous rank's, and so on. Each step's block is sent on while
/// it is used. The memory of `own` is reused for later blocks.
class Carousel {
 public:
  Carousel(const comm::Group& ranks, const at::Tensor& own, Tag tag, const char* what)
      : ranks_(ranks), tag_(tag), what_(what) {
    places_[0].tensor = own;
  }

  const at::Tensor& present() const { return places_[at(step_)].tensor; }
  /// Starts to send the present block and to receive the next one.
  void start() {
    if (step_ + 1 == ranks_.size()) {
      return;
    }
    Place& place = places_[at(step_ + 1)];
    place.sent.wait(); // three buffers: the next rank has had two steps to receive it
    if (!place.tensor.defined()) {
      const at::Tensor& like = present();
      place.tensor = ranks_.allocate(like.numel(), like.scalar_type(), like.device()).view(like.sizes());
    }
    received_ = ranks_.recv(place.tensor, previous_of(ranks_), tag_, what_);
    places_[at(step_)].sent = ranks_.send(present(), next_of(ranks_), tag_, what_);
  }
  /// Waits for the next block and makes it the present one.
  void advance() {
    received_.wait(); // nothing in the last step
    ++step_;
  }

 private:
  struct Place {
    at::Tensor tensor;
    comm::Work sent; ///< destroyed first: it waits
  };
  static size_t at(int step) { return static_cast<size_t>(step % 3); }

  const comm::Group& ranks_;
  const Tag tag_;
  const char* const what_;
  std::array<Place, 3> places_;
  comm::Work received_;
  int step_ = 0;
};

/// Gradients of the blocks, sent behind them to their owners: each rank adds its part and sends them on. A block's
/// chain begins one step behind its owner, who adds its own part last.
class GradientChain {
 public:
  GradientChain(const comm::Group& ranks, std::vector<int64_t> sizes, at::TensorOptions options)
      : ranks_(ranks), sizes_(std::move(sizes)), options_(options) {}

  /// Posts the receive for the gradients of the block of step `step`; of step N: this rank's own.
  void expect(int step) {
    if (step == 0) {
      return;
    }
    incoming_ =
        ranks_.allocate(c10::multiply_integers(sizes_), c10::typeMetaToScalarType(options_.dtype()), options_.device())
            .view(sizes_);
    if (step == 1) {
      incoming_.zero_();
    } else {
      received_ = ranks_.recv(incoming_, previous_of(ranks_), kGradients, kWhat);
    }
  }
  /// Waits for the expected gradients.
  const at::Tensor& arrived() {
    received_.wait();
    return incoming_;
  }
  void pass_on() {
    if (sent_.size() == 2) { // the next rank has had two steps to take it
      sent_.front().wait();
      sent_.pop_front();
    }
    sent_.push_back(ranks_.send(incoming_, next_of(ranks_), kGradients, kWhat));
  }

 private:
  static constexpr const char* kWhat = "gradients of keys and values";

  const comm::Group& ranks_;
  std::vector<int64_t> sizes_;
  at::TensorOptions options_;
  at::Tensor incoming_;
  comm::Work received_;
  std::deque<comm::Work> sent_;
};

/// The queries of this rank and the keys of rank `from`'s block that they see. Causal, with chunks r and 2N-1-r on rank
/// r: all queries see the first chunk of earlier ranks; only the second chunk of queries sees both chunks of later
/// ranks.
struct Meeting {
  Range queries, keys;
  bool causal;
};
Meeting meeting(int rank, int from, int64_t tokens, bool causal) {
  const Range all{0, tokens};
  const int64_t chunk = tokens / 2;
  if (!causal || from == rank) {
    return {all, all, causal};
  }
  return from < rank ? Meeting{all, {0, chunk}, false} : Meeting{{chunk, chunk}, all, false};
}

/// Backward's state other than tensors.
struct Call : torch::CustomClassHolder {
  Call(const comm::Group& ranks, const AttentionOptions& options, int64_t seed)
      : ranks(ranks), options(options), seed(seed) {}
  comm::Group ranks;
  AttentionOptions options;
  int64_t seed;

  int from(int step) const { return (ranks.rank() - step + ranks.size()) % ranks.size(); }
  Block block(int step, const Meeting& meeting, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const at::Tensor& padding) const {
    const uint64_t pair =
        static_cast<uint64_t>(ranks.rank()) * static_cast<uint64_t>(ranks.size()) + static_cast<uint64_t>(from(step));
    return {.q = meeting.queries.of(q),
            .k = meeting.keys.of(k),
            .v = meeting.keys.of(v),
            .causal = meeting.causal,
            .key_padding = padding.defined() ? padding.to(at::kBool) : at::Tensor(),
            .dropout = options.dropout,
            .seed = static_cast<uint64_t>(seed) + (pair + 1) * 0xD1B54A32D192ED03u,
            .window = options.window};
  }
};

/// [2, B, K, t, D], keys and values, in memory that the backend sends without a copy.
at::Tensor pack(const comm::Group& ranks, const at::Tensor& k, const at::Tensor& v) {
  if (ranks.size() == 1) {
    return {};
  }
  std::vector<int64_t> sizes = k.sizes().vec();
  sizes.insert(sizes.begin(), 2);
  at::Tensor both = ranks.allocate(2 * k.numel(), k.scalar_type(), k.device()).view(sizes);
  both[0].copy_(k);
  both[1].copy_(v);
  return both;
}

/// Calls before(step) and then f(step, block, meeting) for the block of every rank, while the next keys and values are
/// sent.
template <class Before, class F>
void go_round(const Call& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const at::Tensor& padding, const Before& before, const F& f) {
  Carousel blocks(call.ranks, pack(call.ranks, k, v), kKeysAndValues, "keys and values");
  Carousel paddings(call.ranks, padding.defined() ? padding.clone() : padding, kPadding, "key padding");
  for (int step = 0; step < call.ranks.size(); ++step) {
    before(step);
    blocks.start();
    if (padding.defined()) {
      paddings.start();
    }
    const Meeting met = meeting(call.ranks.rank(), call.from(step), q.size(2), call.options.causal);
    const at::Tensor& both = blocks.present();
    f(step,
      step == 0 ? call.block(step, met, q, k, v, padding)
                : call.block(step, met, q, both[0], both[1], paddings.present()),
      met);
    blocks.advance();
    if (padding.defined()) {
      paddings.advance();
    }
  }
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& key_padding, const comm::Group& ranks,
                            const AttentionOptions& options) {
    const int64_t seed =
        options.dropout > 0 ? at::randint(std::numeric_limits<int64_t>::max(), {1}, at::kLong).item<int64_t>() : 0;
    const auto call = c10::make_intrusive<Call>(ranks, options, seed);
    const at::Tensor padding = key_padding ? key_padding->contiguous().view(at::kByte) : at::Tensor();
    at::Tensor out, lse;
    go_round(
        *call, q, k, v, padding, [](int) {},
        [&](int step, const Block& block, const Meeting& met) {
          const BlockResult result = context::forward(block);
          if (step == 0) {
            out = result.out.to(type_of_sums(q));
            lse = result.lse;
          } else {
            merge(met.queries.of(out), met.queries.of(lse), result, padding.defined());
          }
        });
    out = out.to(q.scalar_type());
    context->save_for_backward({q, k, v, padding, out, lse});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (at::GradMode::is_enabled()) {
      throw Error("context", "attention over several ranks has no double backward (create_graph).",
                  "Remove create_graph.");
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &padding = saved[3], &out = saved[4], &lse = saved[5];
    const auto call = c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const at::Tensor& dout = grads[0];
    at::Tensor dq, dk, dv;
    std::vector<int64_t> sizes = k.sizes().vec();
    sizes.insert(sizes.begin(), 2);
    GradientChain chain(call->ranks, sizes, q.options().dtype(type_of_sums(q)));
    // Receives must be posted in the order in which the previous rank sends: not every backend has tags.
    go_round(
        *call, q, k, v, padding, [&](int step) { chain.expect(step); },
        [&](int step, const Block& block, const Meeting& met) {
          const BlockGradients part =
              context::backward(block, met.queries.of(dout), met.queries.of(out), met.queries.of(lse));
          if (step == 0) {
            dq = part.q.to(type_of_sums(q));
            dk = part.k;
            dv = part.v;
            return;
          }
          met.queries.of(dq).add_(part.q);
          const at::Tensor& both = chain.arrived();
          met.keys.of(both[0]).add_(part.k);
          met.keys.of(both[1]).add_(part.v);
          chain.pass_on();
        });
    if (call->ranks.size() > 1) {
      chain.expect(call->ranks.size());
      const at::Tensor& both = chain.arrived();
      dk = both[0].add_(dk);
      dv = both[1].add_(dv);
    }
    return {dq.to(q.scalar_type()), dk.to(k.scalar_type()), dv.to(v.scalar_type()), {}, {}, {}};
  }
};

} // namespace

at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
                          const AttentionOptions& options, const at::Tensor& key_padding) {
  return RingAttention::apply(q, k, v, key_padding.defined() ? std::optional<at::Tensor>(key_padding) : std::nullopt,
                              ranks, options);
}

} // namespace trireme::context
