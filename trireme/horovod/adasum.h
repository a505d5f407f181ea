#pragma once

#include <trireme/mesh/mesh.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace trireme::horovod {

/// Adds up tensors of ranks so that parts in the same direction are averaged and perpendicular parts added: in each of log2(N) rounds pairs of ranks compute
/// (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b.
///
/// The number of ranks is a power of two. All ranks get the same bits.
/// Cost: P log2(N) sent by each rank, P: the bytes of the tensor. Source: Maleki et al. 2020, arXiv:2006.02924.
class Adasum {
 public:
  /// Collective over the group. Errors: InputError where the number of ranks is no power of two.
  explicit Adasum(const comm::Group& ranks);

  /// Adds up `tensor` in place, as one vector. Floating point. Collective.
  void run(at::Tensor tensor) const;

  /// The formula for two tensors of one shape.
  static at::Tensor combine(const at::Tensor& a, const at::Tensor& b);

 private:
  int rounds_ = 0;
  std::optional<mesh::Mesh> mesh_; // axes of two ranks
};

} // namespace trireme::horovod
