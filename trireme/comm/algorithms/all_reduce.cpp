#include <trireme/comm/algorithms/all_reduce.h>

#include <trireme/comm/algorithms/exchange.h>

#include <bit>
#include <functional>

namespace trireme::comm {
namespace {

constexpr int kNobody = Exchange::kNobody;

/// Recursive halving and doubling among `power` ranks, of which this is `me`; `rank_of` gives their ranks in the group.
void halve_and_double(Exchange& exchange, int power, int me, const std::function<int(int)>& rank_of) {
  const int64_t count = exchange.count();
  // This rank still reduces blocks [low, low + width) of `power`.
  int low = 0;
  for (int width = power / 2; width >= 1; width /= 2) {
    const int partner = rank_of(me ^ width);
    const bool upper = (me & width) != 0;
    const Block lower_half = {block_of(count, low, power).begin, block_of(count, low + width, power).begin};
    const Block upper_half = {lower_half.end, block_of(count, low + 2 * width - 1, power).end};
    exchange.step(partner, upper ? lower_half : upper_half, partner, upper ? upper_half : lower_half, Arrival::combine);
    low += upper ? width : 0;
  }
  for (int width = 1; width < power; width *= 2) {
    const int partner = rank_of(me ^ width);
    const int other = low ^ width;
    const Block mine = {block_of(count, low, power).begin, block_of(count, low + width - 1, power).end};
    const Block theirs = {block_of(count, other, power).begin, block_of(count, other + width - 1, power).end};
    exchange.step(partner, mine, partner, theirs, Arrival::replace);
    low &= ~width;
  }
}

} // namespace

Traffic all_reduce_ring(const Group& group, at::Tensor tensor, ReduceOp op) {
  Exchange exchange(group, tensor, op);
  const int size = group.size();
  const int next = (group.rank() + 1) % size;
  const int previous = (group.rank() + size - 1) % size;
  const auto block = [&](int index) { return block_of(exchange.count(), ((index % size) + size) % size, size); };
  for (int step = 0; step < size - 1; ++step) {
    exchange.step(next, block(group.rank() - step), previous, block(group.rank() - step - 1), Arrival::combine);
  }
  for (int step = 0; step < size - 1; ++step) {
    exchange.step(next, block(group.rank() + 1 - step), previous, block(group.rank() - step), Arrival::replace);
  }
  return exchange.traffic();
}

Traffic all_reduce_tree(const Group& group, at::Tensor tensor, ReduceOp op) {
  Exchange exchange(group, tensor, op);
  const Block all = {0, exchange.count()};
  const int rank = group.rank();
  const int size = group.size();
  // The lowest set bit of a rank leads to its parent; the bits below it to its children.
  int bit = 1;
  for (; bit < size && (rank & bit) == 0; bit <<= 1) {
    exchange.step(kNobody, {}, rank + bit < size ? rank + bit : kNobody, all, Arrival::combine);
  }
  if (rank != 0) {
    exchange.step(rank - bit, all, kNobody, {}, Arrival::combine);
    exchange.step(kNobody, {}, rank - bit, all, Arrival::replace);
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    exchange.step(rank + bit < size ? rank + bit : kNobody, all, kNobody, {}, Arrival::replace);
  }
  return exchange.traffic();
}

Traffic all_reduce_halving_doubling(const Group& group, at::Tensor tensor, ReduceOp op) {
  Exchange exchange(group, tensor, op);
  const Block all = {0, exchange.count()};
  const int rank = group.rank();
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(group.size())));
  // Among the first 2 * folded ranks, the even ones send to their neighbour and wait for the result.
  const int folded = group.size() - power;
  const bool in_fold = rank < 2 * folded;
  if (in_fold && rank % 2 == 0) {
    exchange.step(rank + 1, all, kNobody, {}, Arrival::combine);
    exchange.step(kNobody, {}, rank + 1, all, Arrival::replace);
    return exchange.traffic();
  }
  if (in_fold) {
    exchange.step(kNobody, {}, rank - 1, all, Arrival::combine);
  }
  halve_and_double(exchange, power, in_fold ? rank / 2 : rank - folded,
                   [folded](int index) { return index < folded ? 2 * index + 1 : index + folded; });
  if (in_fold) {
    exchange.step(rank - 1, all, kNobody, {}, Arrival::replace);
  }
  return exchange.traffic();
}

Traffic all_reduce_naive(const Group& group, at::Tensor tensor, ReduceOp op) {
  Exchange exchange(group, tensor, op);
  const Block all = {0, exchange.count()};
  if (group.rank() != 0) {
    exchange.step(0, all, kNobody, {}, Arrival::combine);
    exchange.step(kNobody, {}, 0, all, Arrival::replace);
    return exchange.traffic();
  }
  for (int rank = 1; rank < group.size(); ++rank) {
    exchange.step(kNobody, {}, rank, all, Arrival::combine);
  }
  for (int rank = 1; rank < group.size(); ++rank) {
    exchange.step(rank, all, kNobody, {}, Arrival::replace);
  }
  return exchange.traffic();
}

Traffic all_reduce(Algorithm algorithm, const Group& group, at::Tensor tensor, ReduceOp op) {
  switch (algorithm) {
    case Algorithm::ring:
      return all_reduce_ring(group, tensor, op);
    case Algorithm::tree:
      return all_reduce_tree(group, tensor, op);
    case Algorithm::halving_doubling:
      return all_reduce_halving_doubling(group, tensor, op);
    case Algorithm::naive:
      return all_reduce_naive(group, tensor, op);
  }
  return {};
}

} // namespace trireme::comm
