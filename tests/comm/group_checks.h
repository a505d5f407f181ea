#pragma once

#include <trireme/comm/group.h>

#include <torch/utils.h>

#include <gtest/gtest.h>

// What every group must do, whatever carries it.
namespace trireme::comm {

/// Rank r's tensor: r * 100 + 0, 1, 2, ...; small whole numbers, so that every type holds them exactly.
inline at::Tensor numbers(int rank, int64_t numel, at::ScalarType type) {
  return (torch::arange(numel, torch::kInt64) % 7 + rank * 3 + 1).to(type);
}

inline at::Tensor sum_of_all(int size, int64_t numel, at::ScalarType type) {
  at::Tensor sum = torch::zeros({numel}, torch::kInt64);
  for (int rank = 0; rank < size; ++rank) {
    sum += numbers(rank, numel, torch::kInt64);
  }
  return sum.to(type);
}

inline void expect_equal(const at::Tensor& found, const at::Tensor& wanted, const char* what) {
  EXPECT_TRUE(torch::equal(found, wanted)) << what << "\nfound " << found << "\nwanted " << wanted;
}

inline void all_reduce_each_way(const Group& group, at::ScalarType type) {
  const int64_t numel = 1001;
  auto tensor = numbers(group.rank(), numel, type);
  group.all_reduce(tensor).wait();
  expect_equal(tensor, sum_of_all(group.size(), numel, type), "sum");
  tensor = numbers(group.rank(), numel, type);
  group.all_reduce(tensor, ReduceOp::max).wait();
  expect_equal(tensor, numbers(group.size() - 1, numel, type), "max");
  tensor = numbers(group.rank(), numel, type).view({7, 11, 13});
  group.all_reduce(tensor, ReduceOp::min).wait();
  expect_equal(tensor, numbers(0, numel, type).view({7, 11, 13}), "min");
}

inline void reduce_scatter_and_all_gather(const Group& group, at::ScalarType type) {
  const int64_t part = 130;
  const int size = group.size();
  auto whole = numbers(group.rank(), part * size, type);
  const auto before = whole.clone();
  auto mine = torch::empty({part}, type);
  group.reduce_scatter(mine, whole).wait();
  expect_equal(mine, sum_of_all(size, part * size, type).narrow(0, group.rank() * part, part), "reduce_scatter");
  expect_equal(whole, before, "reduce_scatter leaves its input alone");
  group.reduce_scatter(mine, whole, ReduceOp::max).wait();
  expect_equal(mine, numbers(size - 1, part * size, type).narrow(0, group.rank() * part, part), "reduce_scatter max");
  group.reduce_scatter(mine, whole, ReduceOp::min).wait();
  expect_equal(mine, numbers(0, part * size, type).narrow(0, group.rank() * part, part), "reduce_scatter min");

  auto inside = whole.narrow(0, group.rank() * part, part);
  group.reduce_scatter(inside, whole).wait();
  expect_equal(inside, sum_of_all(size, part * size, type).narrow(0, group.rank() * part, part),
               "reduce_scatter into its own slice");
  group.all_gather(whole, inside).wait();
  expect_equal(whole, sum_of_all(size, part * size, type), "all_gather from its own slice");

  auto gathered = torch::zeros({size, part}, type);
  group.all_gather(gathered, numbers(group.rank(), part, type)).wait();
  for (int rank = 0; rank < size; ++rank) {
    expect_equal(gathered[rank], numbers(rank, part, type), "all_gather");
  }
}

inline void broadcast_and_all_to_all(const Group& group, at::ScalarType type) {
  for (int root = 0; root < group.size(); ++root) {
    auto tensor = numbers(group.rank(), 33, type);
    group.broadcast(tensor, root).wait();
    expect_equal(tensor, numbers(root, 33, type), "broadcast");
  }
  const int size = group.size();
  auto in = torch::empty({size, 5}, type);
  for (int to = 0; to < size; ++to) {
    in[to] = numbers(group.rank() * size + to, 5, type);
  }
  auto out = torch::zeros({size, 5}, type);
  group.all_to_all(out, in).wait();
  for (int from = 0; from < size; ++from) {
    expect_equal(out[from], numbers(from * size + group.rank(), 5, type), "all_to_all");
  }
  group.barrier().wait();
}

inline void check_every_operation(const Group& group, at::ScalarType type) {
  all_reduce_each_way(group, type);
  reduce_scatter_and_all_gather(group, type);
  broadcast_and_all_to_all(group, type);
}

} // namespace trireme::comm
