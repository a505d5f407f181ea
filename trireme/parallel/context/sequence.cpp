#include <trireme/parallel/context/sequence.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

#include <vector>

namespace trireme::context {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_divides(int64_t length, int ranks, Kind kind) {
  const bool ring = kind == Kind::ring;
  const int64_t parts = ring ? 2 * int64_t{ranks} : ranks;
  if (length % parts != 0) {
    throw InputError(
        "context",
        concat("a sequence of ", length, " tokens cannot be split among ", ranks, " ranks: with ",
               ring ? "ring attention 2 x " : "Ulysses ", ranks, ring ? concat(" = ", parts) : "",
               " must divide its length."),
        concat("Make it ", (length / parts + 1) * parts, " tokens long, or choose another number of context ranks."));
  }
}

at::Tensor take(const at::Tensor& x, int rank, int ranks, Kind kind, int64_t dim) {
  const int64_t part = x.size(dim) / ranks;
  if (kind == Kind::ulysses) {
    return x.narrow(dim, rank * part, part).contiguous();
  }
  const int64_t chunk = part / 2;
  return at::cat({x.narrow(dim, rank * chunk, chunk), x.narrow(dim, (2 * ranks - 1 - rank) * chunk, chunk)}, dim);
}

int64_t checked_dim(const at::Tensor& x, int64_t dim) {
  const int64_t wrapped = dim < 0 ? dim + x.dim() : dim;
  if (wrapped < 0 || wrapped >= x.dim()) {
    throw InputError("context", concat("a tensor of shape ", x.sizes(), " has no tokens in dim ", dim, "."),
                     "Name the dim of the sequence.");
  }
  return wrapped;
}

/// Keeps the group for backward.
struct Joined : torch::CustomClassHolder {
  Joined(const comm::Group& ranks, Kind kind, int64_t dim) : ranks(ranks), kind(kind), dim(dim) {}
  comm::Group ranks;
  Kind kind;
  int64_t dim;
};

struct JoinTokens : torch::autograd::Function<JoinTokens> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const comm::Group& ranks, Kind kind,
                            int64_t dim) {
    context->saved_data["joined"] = c10::IValue::make_capsule(c10::make_intrusive<Joined>(ranks, kind, dim));
    const int N = ranks.size();
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.insert(sizes.begin(), N);
    const at::Tensor parts = ranks.allocate(N * x.numel(), x.scalar_type(), x.device()).view(sizes);
    ranks.all_gather(parts, x.contiguous(), "tokens").wait();
    std::vector<at::Tensor> pieces;
    const int64_t chunk = kind == Kind::ring ? x.size(dim) / 2 : x.size(dim);
    for (int c = 0; c < (kind == Kind::ring ? 2 * N : N); ++c) {
      pieces.push_back(c < N ? parts[c].narrow(dim, 0, chunk) : parts[2 * N - 1 - c].narrow(dim, chunk, chunk));
    }
    return at::cat(pieces, dim);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto joined = c10::static_intrusive_pointer_cast<Joined>(context->saved_data["joined"].toCapsule());
    return {take(grads[0], joined->ranks.rank(), joined->ranks.size(), joined->kind, joined->dim), {}, {}, {}};
  }
};

} // namespace

at::Tensor take_tokens(const at::Tensor& x, const comm::Group& ranks, Kind kind, int64_t dim) {
  dim = checked_dim(x, dim);
  if (ranks.size() == 1) {
    return x;
  }
  check_divides(x.size(dim), ranks.size(), kind);
  return take(x, ranks.rank(), ranks.size(), kind, dim);
}

at::Tensor positions(int64_t length, const comm::Group& ranks, Kind kind, const at::Device& device) {
  return take_tokens(at::arange(length, at::TensorOptions(at::kLong).device(device)), ranks, kind, 0);
}

at::Tensor join_tokens(const at::Tensor& x, const comm::Group& ranks, Kind kind, int64_t dim) {
  dim = checked_dim(x, dim);
  if (ranks.size() == 1) {
    return x;
  }
  check_divides(x.size(dim) * ranks.size(), ranks.size(), kind);
  return JoinTokens::apply(x, ranks, kind, dim);
}

} // namespace trireme::context
