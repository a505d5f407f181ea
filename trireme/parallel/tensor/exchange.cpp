#include <trireme/parallel/tensor/exchange.h>

#include <trireme/base/error.h>
#include <trireme/comm/held_group.h>
#include <trireme/fused/rows.h>
#include <trireme/parallel/tensor/transfer.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

namespace trireme::tensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The operation on a tensor, forward or backward.
enum class Op : int64_t { nothing, sum, part, join, sum_to_part };

at::Tensor sum(const at::Tensor& x, const comm::Group& ranks) {
  const at::Tensor y = allocate(ranks, x.sizes(), x);
  y.copy_(x);
  return start_sum(y, ranks).wait();
}

at::Tensor run(Op op, const at::Tensor& x, const comm::Group& ranks, int64_t dim) {
  switch (op) {
    case Op::nothing:
      break;
    case Op::sum:
      return sum(x, ranks);
    case Op::part:
      return x.narrow(dim, ranks.rank() * (x.size(dim) / ranks.size()), x.size(dim) / ranks.size());
    case Op::join:
      return start_join(x, ranks, dim).wait();
    case Op::sum_to_part:
      return start_sum_to_part(x, ranks, dim).wait();
  }
  return x;
}

struct Exchange : torch::autograd::Function<Exchange> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const comm::Group& ranks, int64_t dim,
                            Op forward, Op backward) {
    context->saved_data["ranks"] = comm::HeldGroup::hold(ranks);
    context->saved_data["dim"] = dim;
    context->saved_data["backward"] = static_cast<int64_t>(backward);
    return run(forward, x, ranks, dim);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    fused::refuse_create_graph("an exchange between tensor-parallel ranks", kOnOneRank);
    const comm::Group ranks = comm::HeldGroup::of(context->saved_data["ranks"]);
    return {run(static_cast<Op>(context->saved_data["backward"].toInt()), grads[0], ranks,
                context->saved_data["dim"].toInt()),
            {},
            {},
            {},
            {}};
  }
};

at::Tensor exchange(const at::Tensor& x, const comm::Group& ranks, int64_t dim, Op forward, Op backward) {
  if (ranks.size() == 1) {
    return x;
  }
  return Exchange::apply(x, ranks, dim, forward, backward);
}

void check_divides(const at::Tensor& x, const comm::Group& ranks, int64_t dim) {
  if (x.size(dim) % ranks.size() != 0) {
    throw InputError("tensor parallel",
                     concat("dim ", dim, " of a tensor of sizes ", x.sizes(), " does not divide by the ", ranks.size(),
                            " ranks of ", ranks.name()),
                     "With sequence_parallel the tensor ranks must divide the tokens of a sample: choose another "
                     "sequence_length, or switch it off.");
  }
}

} // namespace

at::Tensor copy_to_ranks(const at::Tensor& x, const comm::Group& ranks) {
  return exchange(x, ranks, 0, Op::nothing, Op::sum);
}

at::Tensor sum_over_ranks(const at::Tensor& x, const comm::Group& ranks) {
  return exchange(x, ranks, 0, Op::sum, Op::nothing);
}

at::Tensor take_part(const at::Tensor& x, const comm::Group& ranks, int64_t dim) {
  check_divides(x, ranks, dim);
  return exchange(x, ranks, dim, Op::part, Op::join);
}

at::Tensor join_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim) {
  return exchange(x, ranks, dim, Op::join, Op::part);
}

at::Tensor gather_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim) {
  return exchange(x, ranks, dim, Op::join, Op::sum_to_part);
}

at::Tensor sum_to_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim) {
  check_divides(x, ranks, dim);
  return exchange(x, ranks, dim, Op::sum_to_part, Op::join);
}

bool is_exchange(const torch::autograd::Node& node) {
  return dynamic_cast<const torch::autograd::CppNode<Exchange>*>(&node) != nullptr;
}

} // namespace trireme::tensor
