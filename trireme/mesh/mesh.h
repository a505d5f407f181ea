#pragma once

#include <trireme/comm/group.h>
#include <trireme/comm/world.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::mesh {

/// The three banks of oars, slowest-varying first: ranks of one tensor group are neighbours.
enum class Axis { pipe = 0, data = 1, tensor = 2 };
inline constexpr std::array<Axis, 3> kAxes = {Axis::pipe, Axis::data, Axis::tensor};
const char* axis_name(Axis axis);

/// A rank's place on each axis.
using Coordinates = std::array<int, 3>;

/// The arithmetic of a mesh without any communication. 4 ranks with pipe 2 and data 2:
/// stage 0 = {0, 1}, pipelines {0, 2} and {1, 3}.
class MeshShape {
 public:
  /// Throws InputError when a size is below 1.
  MeshShape(int pipe, int data, int tensor);

  /// The shape for `world_size` ranks whose data axis takes what pipe and tensor leave.
  /// Throws InputError listing the choices when they do not divide world_size.
  static MeshShape fit(int world_size, int pipe, int tensor);

  int size(Axis axis) const {
    return sizes_[static_cast<int>(axis)];
  }
  int world_size() const {
    return sizes_[0] * sizes_[1] * sizes_[2];
  }
  int rank(const Coordinates& at) const;
  Coordinates coordinates(int rank) const;
  /// The ranks that differ from `rank` on this axis only, in axis order.
  std::vector<int> line(int rank, Axis axis) const;
  /// Every line of the axis: the sub-groups that all ranks make in this order.
  std::vector<std::vector<int>> lines(Axis axis) const;

 private:
  Coordinates sizes_;
};

/// This rank's place in the mesh and its group on every axis.
class Mesh {
 public:
  /// Collective: every rank makes every sub-group in the same order. An axis of size 1
  /// is a group of one; an axis as large as the world is the world's group.
  Mesh(comm::World& world, const MeshShape& shape);

  const MeshShape& shape() const {
    return shape_;
  }
  int coordinate(Axis axis) const {
    return here_[static_cast<int>(axis)];
  }
  const comm::Group& group(Axis axis) const {
    return groups_[static_cast<int>(axis)];
  }
  /// All ranks.
  const comm::Group& world() const {
    return world_;
  }

 private:
  MeshShape shape_;
  Coordinates here_;
  comm::Group world_;
  std::array<comm::Group, 3> groups_;
};

} // namespace trireme::mesh
