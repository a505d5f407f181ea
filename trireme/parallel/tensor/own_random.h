#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::tensor {

/// While it lives, random numbers differ between the ranks of a group that otherwise draw the same ones: for dropout in
/// what each rank has alone, heads or tokens. Outside, all ranks of a group draw the same.
///
/// It draws one number where all ranks are at the same place, and starts the host's and the device's generator anew
/// from it and the rank; afterwards both go on as if nothing had happened. So recomputation and checkpoints, which keep
/// the generators' states, repeat it. `ranks` of 1: it does nothing.
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
