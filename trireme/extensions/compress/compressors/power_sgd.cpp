#include <trireme/extensions/compress/compressors/power_sgd.h>

#include <trireme/base/error.h>
#include <trireme/comm/compressed_sizes.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

namespace trireme::comm {

PowerSgd::PowerSgd(Group group, int64_t numel, std::vector<FlatMatrix> matrices, int64_t rank)
    : group_(std::move(group)), numel_(numel), rank_(rank) {
  if (rank < 1) {
    throw Error("comm", concat("PowerSGD of rank ", rank), "Ask for 1 or more; 1 to 4 are usual.");
  }
  int64_t end = 0; // of what is placed
  const auto add_plain = [&](int64_t to) {
    if (end < to) {
      plain_.push_back({end, 1, to - end});
    }
  };
  for (const FlatMatrix& matrix : matrices) {
    if (matrix.begin < end || matrix.rows < 0 || matrix.columns < 0 || matrix.begin + matrix.numel() > numel) {
      throw Error("comm", concat("PowerSGD of ", numel, " elements: the matrix of ", matrix.rows, " x ", matrix.columns,
                                 " at ", matrix.begin, " leaves them or overlaps the one before it"));
    }
    if (!has_factors(rank, matrix.rows, matrix.columns)) {
      continue;
    }
    add_plain(matrix.begin);
    end = matrix.begin + matrix.numel();
    first_.begin.push_back(first_.total);
    first_.total += rank * matrix.rows;
    second_.begin.push_back(second_.total);
    second_.total += rank * matrix.columns;
    matrices_.push_back(matrix);
  }
  add_plain(numel);
  for (const FlatMatrix& one : plain_) {
    first_.begin.push_back(first_.total);
    first_.total += one.columns;
  }
}

PowerSgd::State PowerSgd::first_state(at::Device device, uint64_t seed) const {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return {at::zeros({numel_}, at::TensorOptions(at::kFloat).device(device)),
          at::empty({second_.total}, at::kFloat).normal_(0, 1, generator).to(device)};
}

at::Tensor PowerSgd::left_of(const at::Tensor& message, size_t matrix) const {
  const int64_t rows = matrices_[matrix].rows;
  return message.slice(0, first_.begin[matrix], first_.begin[matrix] + rows * rank_).view({rows, rank_});
}

at::Tensor PowerSgd::right_of(const at::Tensor& message, size_t matrix) const {
  const int64_t columns = matrices_[matrix].columns;
  return message.slice(0, second_.begin[matrix], second_.begin[matrix] + columns * rank_).view({columns, rank_});
}

// Gram-Schmidt, twice, in fp64: the second pass removes the first one's rounding errors. A column that depends on
// earlier ones becomes 0.
void PowerSgd::make_orthonormal(at::Tensor columns) {
  const at::Tensor exact = columns.to(at::kDouble);
  for (int64_t k = 0; k < exact.size(1); ++k) {
    const at::Tensor column = exact.select(1, k);
    const at::Tensor before = column.norm();
    const at::Tensor others = exact.slice(1, 0, k);
    for (int time = 0; time < 2; ++time) {
      column.sub_(others.matmul(others.t().matmul(column)));
    }
    const at::Tensor norm = column.norm();
    column.mul_(at::where(norm.gt(before.mul(1e-6)), norm.reciprocal(), at::zeros_like(norm)));
  }
  columns.copy_(exact);
}

void PowerSgd::run(const at::Tensor& x, const State& state, std::string_view what) const {
  const at::NoGradGuard no_grad;
  const auto fits = [&](const at::Tensor& tensor, int64_t numel) {
    return tensor.defined() && tensor.device() == x.device() && tensor.is_contiguous() && tensor.dim() == 1 &&
           tensor.numel() == numel && tensor.scalar_type() == at::kFloat;
  };
  if (!fits(x, numel_) || !fits(state.error, numel_) || !fits(state.right, second_.total)) {
    throw Error("comm", concat("PowerSGD: a tensor of ", x.sizes(), ' ', x.scalar_type(),
                               " or a state that does not fit its ", numel_, " contiguous elements of fp32"));
  }
  if (group_.size() == 1) {
    return;
  }
  const auto matrix_of = [&](const at::Tensor& flat, const FlatMatrix& matrix) {
    return flat.slice(0, matrix.begin, matrix.begin + matrix.numel()).view({matrix.rows, matrix.columns});
  };
  state.error.add_(x);
  const at::Tensor left = group_.allocate(first_.total, at::kFloat, x.device());
  const auto plain_of = [&](size_t i) {
    const int64_t begin = first_.begin[matrices_.size() + i];
    return left.slice(0, begin, begin + plain_[i].columns).view({1, plain_[i].columns});
  };
  for (size_t m = 0; m < matrices_.size(); ++m) {
    left_of(left, m).copy_(matrix_of(state.error, matrices_[m]).matmul(right_of(state.right, m)));
  }
  for (size_t i = 0; i < plain_.size(); ++i) {
    plain_of(i).copy_(matrix_of(state.error, plain_[i]));
    matrix_of(state.error, plain_[i]).zero_();
  }
  group_.all_reduce(left, ReduceOp::sum, what).wait();
  left.div_(group_.size());
  const at::Tensor right = group_.allocate(second_.total, at::kFloat, x.device());
  for (size_t m = 0; m < matrices_.size(); ++m) {
    make_orthonormal(left_of(left, m));
    const at::Tensor own = matrix_of(state.error, matrices_[m]);
    right_of(right, m).copy_(own.t().matmul(left_of(left, m)));
    own.sub_(left_of(left, m).matmul(right_of(right, m).t()));
  }
  group_.all_reduce(right, ReduceOp::sum, what).wait();
  right.div_(group_.size());
  for (size_t m = 0; m < matrices_.size(); ++m) {
    // If P is 0, Q stays unchanged: from 0 it would never recover.
    const at::Tensor alive = left_of(left, m).ne(0).any(0);
    right_of(state.right, m).copy_(at::where(alive, right_of(right, m), right_of(state.right, m)));
    matrix_of(x, matrices_[m]).copy_(left_of(left, m).matmul(right_of(state.right, m).t()));
  }
  for (size_t i = 0; i < plain_.size(); ++i) {
    matrix_of(x, plain_[i]).copy_(plain_of(i));
  }
}

} // namespace trireme::comm
