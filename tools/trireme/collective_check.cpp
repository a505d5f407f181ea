#include "collective_check.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/lone_group.h>
#include <trireme/comm/world.h>
#include <trireme/device/choose.h>
#include <trireme/device/stream.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <iostream>

namespace trireme::tools {
namespace {

constexpr int64_t kEach = 1003;
constexpr std::chrono::seconds kTimeout{20};
constexpr const char* kMessages = "send/recv";

/// Rank `rank`'s input: integers, so that sums are exact in any order.
at::Tensor numbers(int rank, int64_t numel) {
  return ((torch::arange(numel) * 7 + 13 * rank) % 101).to(at::kFloat);
}

/// The sum over all ranks.
at::Tensor sums(int size, int64_t numel) {
  at::Tensor sum = torch::zeros({numel});
  for (int rank = 0; rank < size; ++rank) {
    sum += numbers(rank, numel);
  }
  return sum;
}

at::Tensor slice(const at::Tensor& whole, int part) {
  return whole.narrow(0, part * kEach, kEach);
}

/// Whether each operation gave this rank the expected result, in the order of checked_collectives().
std::vector<bool> run_each(const comm::Group& group, at::Device device) {
  const int rank = group.rank();
  const int size = group.size();
  const auto there = [&](const at::Tensor& tensor) { return tensor.to(device).clone(); };
  const auto empty = [&](int64_t numel) { return torch::full({numel}, -1.0, at::TensorOptions(device)); };
  std::vector<bool> right;
  const auto expect = [&](const at::Tensor& found, const at::Tensor& wanted) {
    right.push_back(torch::equal(found.cpu(), wanted));
  };
  const at::Tensor mine = numbers(rank, size * kEach);

  at::Tensor reduced = there(mine);
  group.all_reduce(reduced).wait();
  expect(reduced, sums(size, size * kEach));

  at::Tensor part = empty(kEach);
  group.reduce_scatter(part, there(mine)).wait();
  expect(part, slice(sums(size, size * kEach), rank));

  at::Tensor gathered = empty(size * kEach);
  group.all_gather(gathered, there(slice(mine, 0))).wait();
  at::Tensor of_all = torch::empty({size * kEach});
  for (int other = 0; other < size; ++other) {
    slice(of_all, other).copy_(numbers(other, kEach));
  }
  expect(gathered, of_all);

  at::Tensor spread = rank == size - 1 ? there(mine) : empty(size * kEach);
  group.broadcast(spread, size - 1).wait();
  expect(spread, numbers(size - 1, size * kEach));

  at::Tensor exchanged = empty(size * kEach);
  group.all_to_all(exchanged, there(mine)).wait();
  for (int other = 0; other < size; ++other) {
    slice(of_all, other).copy_(slice(numbers(other, size * kEach), rank));
  }
  expect(exchanged, of_all);

  at::Tensor received = empty(size * kEach);
  if (size > 1) { // around the ring
    const int before = (rank + size - 1) % size;
    comm::Work sent = group.send(there(mine), (rank + 1) % size);
    group.recv(received, before).wait();
    sent.wait();
    expect(received, numbers(before, size * kEach));
  } else {
    right.push_back(true);
  }

  group.barrier().wait();
  right.push_back(true);
  return right;
}

} // namespace

const std::vector<std::string>& checked_collectives() {
  static const std::vector<std::string> names = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                 "all_to_all", kMessages,        "barrier"};
  return names;
}

std::vector<DeviceFinding> check_collectives(const comm::Group& group, c10::Device device) {
  const torch::NoGradGuard no_grad;
  group.open(device, comm::Neighbours::ring);
  const std::vector<bool> right = run_each(group, device);
  const auto count = std::ssize(right);
  at::Tensor mine = torch::zeros({count}, at::kByte);
  for (int64_t i = 0; i < count; ++i) {
    mine[i] = right[static_cast<size_t>(i)] ? 1 : 0;
  }
  at::Tensor all = torch::zeros({group.size() * count}, at::kByte);
  group.all_gather(all, mine, "findings").wait();
  std::vector<DeviceFinding> findings;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<std::string> wrong;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (all[rank * count + i].item<int>() == 0) {
        wrong.push_back(std::to_string(rank));
      }
    }
    const std::string who = concat(wrong.size() == 1 ? "rank " : "ranks ", join(wrong, ", "), " got wrong numbers");
    findings.push_back(
        {checked_collectives()[static_cast<size_t>(i)], wrong.empty() ? "as computed" : who, wrong.empty()});
  }
  return findings;
}

std::vector<DeviceFinding> check_collectives_alone(const std::string& backend, c10::Device device) {
  const torch::NoGradGuard no_grad;
  const comm::LoneGroup alone(backend, device);
  const std::vector<bool> right = run_each(alone.group(), device);
  std::vector<DeviceFinding> findings;
  for (size_t i = 0; i < right.size(); ++i) {
    if (checked_collectives()[i] != kMessages) {
      findings.push_back({checked_collectives()[i], right[i] ? "as computed" : "the rank got wrong numbers", right[i]});
    }
  }
  return findings;
}

namespace {

void print(const std::vector<DeviceFinding>& findings) {
  for (const DeviceFinding& finding : findings) {
    std::cout << nlohmann::json{{"op", finding.what}, {"found", finding.found}, {"good", finding.good}}.dump() << '\n';
  }
}

} // namespace

int check_collectives_as_rank(const std::string& device, const std::string& backend) {
  if (!backend.empty()) {
    const at::Device own = device::choose(device, 0, 1);
    device::make_current(own);
    print(check_collectives_alone(backend, own));
    return 0;
  }
  comm::World world = comm::World::connect(comm::with_timeout({}, kTimeout));
  const at::Device own = device::choose(device, world.local_rank(), world.local_size());
  device::make_current(own);
  const std::vector<DeviceFinding> findings = check_collectives(world.group(), own);
  world.close();
  if (world.rank() == 0) {
    print(findings);
  }
  return 0;
}

} // namespace trireme::tools
