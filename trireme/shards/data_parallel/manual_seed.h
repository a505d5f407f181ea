#pragma once

#include <cstdint>

namespace trireme::comm {
class Group;
class World;
} // namespace trireme::comm

namespace trireme::parallel {

/// Derives a rank's seed from a run's `seed`: rank 0 gets the seed itself, other ranks get independent numbers.
uint64_t seed_of(int64_t seed, int rank);

/// Seeds this rank's generators, GPUs included, as torch::manual_seed() does, but with another seed on each rank. Ranks
/// draw different noise and dropout masks, and the same ones in every run with as many ranks. A single rank draws what
/// it draws after torch::manual_seed(seed).
///
/// Weights that are drawn afterwards differ between ranks until DataParallel or initialize() broadcasts rank 0's. An
/// engine does not seed generators: after torch::manual_seed(1) on every rank, all ranks draw the same masks.
void manual_seed(int64_t seed, const comm::Group& ranks);
void manual_seed(int64_t seed, const comm::World& world);

} // namespace trireme::parallel
