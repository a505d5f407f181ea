#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::comm {

/// All-reduce algorithms that use only messages, for study and comparison. P bytes, N ranks, p the largest power of two
/// that is not above N, L = ceil(log2 N). A step sends at most one block and receives at most one.
///
/// | algorithm | steps | bytes sent by the busiest rank | by all ranks |
/// |---|---|---|---|
/// | ring | 2(N-1) | 2P(N-1)/N | 2P(N-1) |
/// | halving_doubling, N = p | 2 log2 p | 2P(p-1)/p | 2P(p-1) |
/// | halving_doubling, N > p | 2 log2 p + 2 | 2P(p-1)/p + P | 2P(p-1) + 2P(N-p) |
/// | tree | 2L | P L | 2P(N-1) |
/// | naive | 2(N-1) | P(N-1) | 2P(N-1) |
///
/// All move 2P(N-1) bytes in total (the fold of N > p included); they differ in the balance and the number of steps.
/// Ring: every rank owns 1/N, reduced around the ring and then passed around it (Patarasuk & Yuan 2009, "Bandwidth
/// optimal all-reduce algorithms for clusters of workstations"; known in deep learning through Baidu and Horovod).
/// Halving-doubling: reduce-scatter by recursive halving, all-gather by recursive doubling. Ranks beyond p send their
/// tensor to a neighbour first and get the result last (Rabenseifner 2004, "Optimization of collective reduction
/// operations"; Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH").
/// Tree: binomial reduction to rank 0 and binomial broadcast from it (Thakur et al. 2005). Naive: every rank sends its
/// tensor to rank 0, which sends the result back, as a single parameter server does.
enum class Algorithm { ring, tree, halving_doubling, naive };

/// Every algorithm, in the order of the enumeration.
const std::vector<Algorithm>& all_algorithms();

/// "ring", "tree", "halving-doubling", "naive".
const char* name(Algorithm algorithm);

/// The algorithm of that name. Errors: InputError listing the names.
Algorithm algorithm_named(const std::string& name);

struct Cost {
  /// Steps of the rank with the most.
  int64_t steps = 0;
  /// Bytes of tensor that the busiest rank sends.
  double bytes_busiest = 0;
};

/// The row of the table above. Exact when the tensor's elements divide evenly among the ranks (halving-doubling: among
/// p); otherwise each rank's bytes differ by less than one element per step.
Cost cost(Algorithm algorithm, int ranks, int64_t bytes);

} // namespace trireme::comm
