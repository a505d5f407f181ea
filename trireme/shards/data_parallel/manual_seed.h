#pragma once

#include <cstdint>

namespace trireme::comm {
class Group;
class World;
} // namespace trireme::comm

namespace trireme::parallel {

/// Returns the seed of one of the ranks that share a run's `seed`: for rank 0 the seed itself, for the others numbers
/// that have nothing in common.
uint64_t seed_of(int64_t seed, int rank);

/// Seeds this rank's generators, those of devices too, as torch::manual_seed() does, but each rank by a seed of its
/// own: ranks draw different noise and dropout masks, the same ones in every run with as many ranks. One rank alone
/// draws what it draws after torch::manual_seed(seed).
///
/// Weights that are drawn after it differ between ranks until DataParallel or initialize() has made them rank 0's. An
/// engine does not seed them: after torch::manual_seed(1) on every rank all draw the same masks with it too.
void manual_seed(int64_t seed, const comm::Group& ranks);
void manual_seed(int64_t seed, const comm::World& world);

} // namespace trireme::parallel
