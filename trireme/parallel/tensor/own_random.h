#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <mutex>

namespace trireme::tensor {

/// While it lives, random numbers differ between the ranks of a group that otherwise draw the same ones: for dropout in what each rank has alone, heads
/// or tokens. Outside, all ranks of a group draw the same.
///
/// It draws one number where all ranks are at the same place, and starts the device's generator anew from it and the rank; afterwards that generator
/// goes on as if nothing had happened. So recomputation and checkpoints, which keep the generators' states, repeat it.
/// `ranks` of 1: it does nothing.
class OwnRandom {
 public:
  OwnRandom(int rank, int ranks, at::Device device);
  ~OwnRandom();
  OwnRandom(const OwnRandom&) = delete;
  OwnRandom& operator=(const OwnRandom&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_; // the generator's state; undefined: it does nothing
};

} // namespace trireme::tensor
