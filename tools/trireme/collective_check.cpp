#include "collective_check.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/lone_group.h>
#include <trireme/comm/world.h>
#include <trireme/device/choose.h>
#include <trireme/device/stream.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <iostream>

namespace trireme::tools {
namespace {

constexpr int64_t kEach = 1003;
constexpr std::chrono::seconds kTimeout{20};
constexpr const char* kMessages = "send/recv";
constexpr std::array kCheckedTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                      at::kByte,  at::kChar,   at::kInt,  at::kLong};
constexpr int kLargestSum = 127; // of int8; half-precision formats have all integers up to it

/// Makes what ranks of a group send in one type: integers so small that sums are exact in any order.
struct SmallIntegers {
  int size;
  at::ScalarType type;

  at::Tensor of(int rank, int64_t numel) const {
    return ((torch::arange(numel) * 7 + 13 * rank) % (std::max(1, kLargestSum / size) + 1)).to(type);
  }
  at::Tensor sums(int64_t numel) const {
    at::Tensor sum = torch::zeros({numel}, type);
    for (int rank = 0; rank < size; ++rank) {
      sum += of(rank, numel);
    }
    return sum;
  }
};

at::Tensor slice(const at::Tensor& whole, int part) {
  return whole.narrow(0, part * kEach, kEach);
}

/// Whether each operation gave this rank the expected result in this type, in the order of checked_collectives().
std::vector<bool> run_each(const comm::Group& group, at::Device device, at::ScalarType type) {
  const int rank = group.rank();
  const int size = group.size();
  const SmallIntegers inputs{size, type};
  const auto there = [&](const at::Tensor& tensor) { return tensor.to(device).clone(); };
  const auto empty = [&](int64_t numel) { return torch::full({numel}, 111, at::TensorOptions(device).dtype(type)); };
  std::vector<bool> right;
  const auto expect = [&](const at::Tensor& found, const at::Tensor& wanted) {
    right.push_back(torch::equal(found.cpu(), wanted));
  };
  const at::Tensor mine = inputs.of(rank, size * kEach);

  at::Tensor reduced = there(mine);
  group.all_reduce(reduced).wait();
  expect(reduced, inputs.sums(size * kEach));

  at::Tensor part = empty(kEach);
  group.reduce_scatter(part, there(mine)).wait();
  expect(part, slice(inputs.sums(size * kEach), rank));

  at::Tensor gathered = empty(size * kEach);
  group.all_gather(gathered, there(slice(mine, 0))).wait();
  at::Tensor of_all = torch::empty({size * kEach}, type);
  for (int other = 0; other < size; ++other) {
    slice(of_all, other).copy_(inputs.of(other, kEach));
  }
  expect(gathered, of_all);

  at::Tensor spread = rank == size - 1 ? there(mine) : empty(size * kEach);
  group.broadcast(spread, size - 1).wait();
  expect(spread, inputs.of(size - 1, size * kEach));

  at::Tensor exchanged = empty(size * kEach);
  group.all_to_all(exchanged, there(mine)).wait();
  for (int other = 0; other < size; ++other) {
    slice(of_all, other).copy_(slice(inputs.of(other, size * kEach), rank));
  }
  expect(exchanged, of_all);

  at::Tensor received = empty(size * kEach);
  if (size > 1) { // around the ring
    const int before = (rank + size - 1) % size;
    comm::Work sent = group.send(there(mine), (rank + 1) % size);
    group.recv(received, before).wait();
    sent.wait();
    expect(received, inputs.of(before, size * kEach));
  } else {
    right.push_back(true);
  }

  group.barrier().wait();
  right.push_back(true);
  return right;
}

/// For each operation the first of kCheckedTypes, counted from 1, in which its result was wrong; 0: none.
std::vector<uint8_t> first_wrong_types(const comm::Group& group, at::Device device) {
  std::vector<uint8_t> wrong(checked_collectives().size(), 0);
  for (size_t t = 0; t < kCheckedTypes.size(); ++t) {
    const std::vector<bool> right = run_each(group, device, kCheckedTypes[t]);
    for (size_t i = 0; i < wrong.size(); ++i) {
      wrong[i] = wrong[i] == 0 && !right[i] ? static_cast<uint8_t>(t + 1) : wrong[i];
    }
  }
  return wrong;
}

std::string in_type(int number) {
  return concat(" (", at::toString(kCheckedTypes[static_cast<size_t>(number - 1)]), ')');
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
  const std::vector<uint8_t> here = first_wrong_types(group, device);
  const auto count = std::ssize(here);
  at::Tensor mine = torch::zeros({count}, at::kByte);
  for (int64_t i = 0; i < count; ++i) {
    mine[i] = here[static_cast<size_t>(i)];
  }
  at::Tensor all = torch::zeros({group.size() * count}, at::kByte);
  group.all_gather(all, mine, "findings").wait();
  std::vector<DeviceFinding> findings;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<std::string> wrong;
    int type = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (const int number = all[rank * count + i].item<int>(); number != 0) {
        wrong.push_back(std::to_string(rank));
        type = type == 0 ? number : std::min(type, number);
      }
    }
    const std::string who = wrong.empty() ? ""
                                          : concat(wrong.size() == 1 ? "rank " : "ranks ", join(wrong, ", "),
                                                   " got wrong numbers", in_type(type));
    findings.push_back(
        {checked_collectives()[static_cast<size_t>(i)], wrong.empty() ? "as computed" : who, wrong.empty()});
  }
  return findings;
}

std::vector<DeviceFinding> check_collectives_alone(const std::string& backend, c10::Device device) {
  const torch::NoGradGuard no_grad;
  const comm::LoneGroup alone(backend, device);
  const std::vector<uint8_t> wrong = first_wrong_types(alone.group(), device);
  std::vector<DeviceFinding> findings;
  for (size_t i = 0; i < wrong.size(); ++i) {
    if (checked_collectives()[i] != kMessages) {
      findings.push_back({checked_collectives()[i],
                          wrong[i] == 0 ? "as computed" : concat("the rank got wrong numbers", in_type(wrong[i])),
                          wrong[i] == 0});
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
