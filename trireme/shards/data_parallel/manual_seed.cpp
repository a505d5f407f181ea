#include <trireme/shards/data_parallel/manual_seed.h>

#include <trireme/base/hash.h>
#include <trireme/comm/world.h>

#include <ATen/Context.h>

namespace trireme::parallel {

uint64_t seed_of(int64_t seed, int rank) {
  const auto number = static_cast<uint64_t>(seed);
  return rank == 0 ? number : mix64(mix64(number + kMixStep) + static_cast<uint64_t>(rank) * kMixStep);
}

void manual_seed(int64_t seed, const comm::Group& ranks) {
  at::manual_seed(seed_of(seed, ranks.rank()));
}

void manual_seed(int64_t seed, const comm::World& world) {
  manual_seed(seed, world.group());
}

} // namespace trireme::parallel
