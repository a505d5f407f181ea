#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::tensor {

/// During its lifetime, random numbers differ between the ranks of a group that otherwise draw the same ones. Needed
/// for dropout of heads or tokens that only one rank has.
///
/// Draws one number, the same on all ranks, and seeds the generators of the CPU and the GPU from it and the rank; the
/// destructor restores both. So recomputation and checkpoints, which keep the generators' states, repeat it. `ranks` of
/// 1: no effect.
class OwnRandom {
 public:
  OwnRandom(int rank, int ranks, at::Device device);
  ~OwnRandom();
  OwnRandom(const OwnRandom&) = delete;
  OwnRandom& operator=(const OwnRandom&) = delete;

 private:
  struct Generator {
    at::Generator generator;
    at::Tensor before; // its state
  };
  std::vector<Generator> generators_;
};

} // namespace trireme::tensor
