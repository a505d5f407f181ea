#include <trireme/mesh/mesh.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>

namespace trireme::mesh {

const char* axis_name(Axis axis) {
  static constexpr const char* names[] = {"pipe", "data", "tensor"};
  return names[static_cast<int>(axis)];
}

MeshShape::MeshShape(int pipe, int data, int tensor) : sizes_{pipe, data, tensor} {
  for (const Axis axis : kAxes) {
    if (size(axis) < 1) {
      throw InputError("mesh", concat("axis ", axis_name(axis), " must have at least one rank, got ", size(axis)));
    }
  }
}

MeshShape MeshShape::fit(int world_size, int pipe, int tensor) {
  const MeshShape model(pipe, 1, tensor);
  const int per_replica = model.world_size();
  if (world_size < 1 || world_size % per_replica != 0) {
    std::vector<std::string> divisors;
    for (int d = 1; d <= world_size; ++d) {
      if (world_size % d == 0) {
        divisors.push_back(std::to_string(d));
      }
    }
    const int below = std::max(1, world_size / per_replica) * per_replica;
    throw InputError("mesh",
                     concat("pipe * tensor must divide the number of ranks, got ", pipe, " * ", tensor, " = ", per_replica, " and ", world_size,
                            " ranks"),
                     concat("Start ", below, " or ", below + per_replica, " ranks, or choose pipe * tensor from ", join(divisors, ", "), "."));
  }
  return MeshShape(pipe, world_size / per_replica, tensor);
}

int MeshShape::rank(const Coordinates& at) const {
  return (at[0] * sizes_[1] + at[1]) * sizes_[2] + at[2];
}

Coordinates MeshShape::coordinates(int rank) const {
  return {rank / (sizes_[1] * sizes_[2]), rank / sizes_[2] % sizes_[1], rank % sizes_[2]};
}

std::vector<int> MeshShape::line(int rank, Axis axis) const {
  Coordinates at = coordinates(rank);
  std::vector<int> ranks;
  for (int i = 0; i < size(axis); ++i) {
    at[static_cast<int>(axis)] = i;
    ranks.push_back(this->rank(at));
  }
  return ranks;
}

std::vector<std::vector<int>> MeshShape::lines(Axis axis) const {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (coordinates(rank)[static_cast<int>(axis)] == 0) {
      all.push_back(line(rank, axis));
    }
  }
  return all;
}

namespace {

// "data[0 2]": what messages and the recorder call the sub-group.
std::string line_name(Axis axis, const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int rank : ranks) {
    words.push_back(std::to_string(rank));
  }
  return concat(axis_name(axis), '[', join(words, " "), ']');
}

} // namespace

Mesh::Mesh(comm::World& world, const MeshShape& shape)
    : shape_(shape), here_(shape.coordinates(world.rank())), world_(world.group()) {
  if (shape.world_size() != world.size()) {
    throw InputError("mesh",
                     concat("pipe * data * tensor must equal the number of ranks, got ", shape.size(Axis::pipe), " * ", shape.size(Axis::data),
                            " * ", shape.size(Axis::tensor), " = ", shape.world_size(), " and ", world.size(), " ranks"),
                     concat("Start ", shape.world_size(), " ranks or change \"parallel\"."));
  }
  for (const Axis axis : kAxes) {
    comm::Group& mine = groups_[static_cast<int>(axis)];
    if (shape.size(axis) == 1) {
      continue; // the default Group is a group of one
    }
    if (shape.size(axis) == world.size()) {
      mine = world_;
      continue;
    }
    for (const std::vector<int>& ranks : shape.lines(axis)) {
      const comm::Group group = world.subgroup(ranks, line_name(axis, ranks));
      if (std::find(ranks.begin(), ranks.end(), world.rank()) != ranks.end()) {
        mine = group;
      }
    }
  }
}

} // namespace trireme::mesh
