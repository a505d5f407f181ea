#pragma once

#include <trireme/comm/group.h>

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::mesh {

/// One axis of a mesh: its name and how many ranks lie along it.
struct Axis {
  std::string name;
  int size = 1;

  /// The well-known names. The engine's order is pipe, data, context, tensor; experts lie within data.
  static constexpr const char* pipe = "pipe";
  static constexpr const char* data = "data";
  static constexpr const char* expert = "expert";
  static constexpr const char* context = "context";
  static constexpr const char* tensor = "tensor";
};

/// The size of an axis that takes all remaining ranks.
inline constexpr int kRest = -1;

/// Names of axes: Axis::data, or {Axis::data, Axis::context} for a group over both.
struct Axes {
  Axes(const char* name) : names{name} {}
  Axes(const std::string& name) : names{name} {}
  Axes(std::initializer_list<std::string_view> all) : names(all.begin(), all.end()) {}
  std::vector<std::string> names;
};

/// A rank's index on each axis, in the order of the axes.
using Coordinates = std::vector<int>;

/// The arithmetic of a mesh, without communication. The first axis varies slowest, so ranks along the last one are
/// neighbours: 4 ranks with pipe 2 and data 2 have stages {0, 1} and {2, 3}, pipelines {0, 2} and {1, 3}. Errors:
/// InputError for an axis without a name, a repeated or unknown name, or a size below 1.
class MeshShape {
 public:
  explicit MeshShape(std::vector<Axis> axes);

  /// The shape for `ranks` ranks; an axis of size kRest takes the remaining ranks.
  /// Errors: as above, and InputError listing the choices when the sizes do not multiply to `ranks`.
  static MeshShape fit(int ranks, std::vector<Axis> axes);

  const std::vector<Axis>& axes() const { return axes_; }
  int size(std::string_view axis) const { return axes_[index(axis)].size; }
  /// Number of ranks of the mesh.
  int size() const;
  int rank(const Coordinates& at) const;
  Coordinates coordinates(int rank) const;
  int coordinate(int rank, std::string_view axis) const { return coordinates(rank)[index(axis)]; }
  /// The ranks that differ from `rank` on these axes only, ascending.
  std::vector<int> line(int rank, const Axes& axes) const;
  /// All lines of these axes, by first rank: all ranks make these sub-groups in this order.
  std::vector<std::vector<int>> lines(const Axes& axes) const;
  /// "pipe * data = 2 * 3 = 6".
  std::string describe() const;

 private:
  size_t index(std::string_view axis) const;
  /// The first rank of the line through `rank`.
  int first(int rank, const Axes& axes) const;

  std::vector<Axis> axes_;
};

/// This rank's coordinates in the mesh and its group on every axis.
class Mesh {
 public:
  /// Makes the groups. Collective over `all`: every rank makes every sub-group in the same order. Each axis gets a
  /// group, and each entry of `together` one over its axes. A group of all ranks is `all`. Axes of size 1 are ignored:
  /// {data, context} costs nothing if context is 1. Errors: InputError listing the choices if the shape does not have
  /// all.size() ranks.
  Mesh(comm::Group all, MeshShape shape, const std::vector<Axes>& together = {});

  const MeshShape& shape() const { return shape_; }
  int coordinate(std::string_view axis) const { return shape_.coordinate(group().rank(), axis); }
  /// Errors: Error for axes that are not an entry of the constructor's `together`.
  const comm::Group& group(const Axes& axes) const;
  /// All ranks of the mesh.
  const comm::Group& group() const { return all_; }

 private:
  void add(const Axes& axes);
  /// "data+context", without axes of size 1 and in the mesh's order.
  std::string key(const Axes& axes) const;

  MeshShape shape_;
  comm::Group all_;
  std::map<std::string, comm::Group> groups_;
};

/// Sizes of the engine's axes.
struct TrainingAxes {
  int pipe = 1;
  int data = kRest;
  int context = 1;
  int tensor = 1;
};

/// Makes the mesh [pipe, data, context, tensor] that initialize() takes, with the groups an engine needs. Make it
/// before the model, whose layers exchange over group(Axis::tensor) and group(Axis::context). Collective over
/// `all`.
Mesh training_mesh(const comm::Group& all, const TrainingAxes& axes);

} // namespace trireme::mesh
