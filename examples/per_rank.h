#pragma once

#include <trireme/comm/world.h>

#include <torch/torch.h>

#include <vector>

/// The number that each rank has, in the order of the ranks. Collective.
inline std::vector<double> of_each_rank(const trireme::comm::World& world, double mine) {
  at::Tensor all = torch::zeros({world.size()}, torch::kFloat64);
  world.group().all_gather(all, torch::full({1}, mine, torch::kFloat64)).wait();
  const auto* values = all.const_data_ptr<double>();
  return {values, values + world.size()};
}
