#include <trireme/mesh/mesh.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>

namespace trireme::mesh {
namespace {

std::string numbers(const std::vector<int>& all, std::string_view separator) {
  std::vector<std::string> words;
  for (const int number : all) {
    words.push_back(std::to_string(number));
  }
  return join(words, separator);
}

std::vector<int> divisors(int number) {
  std::vector<int> found;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) {
      found.push_back(d);
    }
  }
  return found;
}

// "pipe * tensor" and "2 * 3 = 6": names and product of all axes except `rest`.
std::pair<std::string, std::string> product(const std::vector<Axis>& axes, const Axis* rest = nullptr) {
  std::vector<std::string> names;
  std::vector<int> sizes;
  int size = 1;
  for (const Axis& axis : axes) {
    if (&axis != rest) {
      names.push_back(axis.name);
      sizes.push_back(axis.size);
      size *= axis.size;
    }
  }
  return {join(names, " * "), sizes.size() == 1 ? std::to_string(size) : concat(numbers(sizes, " * "), " = ", size)};
}

void check_size(const MeshShape& shape, int ranks) {
  if (shape.size() == ranks) {
    return;
  }
  std::vector<std::string> choices = {concat("Start ", shape.size(), " ranks")};
  for (const Axis& axis : shape.axes()) {
    if (const int others = shape.size() / axis.size; ranks % others == 0) {
      choices.push_back(concat("set ", axis.name, " to ", ranks / others));
    }
  }
  if (choices.size() == 1) {
    choices.push_back(concat("choose sizes from ", numbers(divisors(ranks), ", ")));
  }
  const auto [names, sizes] = product(shape.axes());
  throw InputError("mesh", concat(names, " must equal the number of ranks, got ", sizes, " and ", ranks, " ranks"),
                   join(choices, ", or ") + '.');
}

} // namespace

MeshShape::MeshShape(std::vector<Axis> axes) : axes_(std::move(axes)) {
  if (axes_.empty()) {
    throw InputError("mesh", "a mesh needs at least one axis");
  }
  for (size_t i = 0; i < axes_.size(); ++i) {
    const Axis& axis = axes_[i];
    if (axis.name.empty()) {
      throw InputError("mesh", concat("axis ", i, " has no name"));
    }
    if (index(axis.name) != i) {
      throw InputError("mesh", concat("two axes are named \"", axis.name, "\""));
    }
    if (axis.size < 1) {
      throw InputError("mesh", concat("axis ", axis.name, " must have at least one rank, got ", axis.size));
    }
  }
}

MeshShape MeshShape::fit(int ranks, std::vector<Axis> axes) {
  const auto rest = std::find_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size == kRest; });
  if (rest != axes.end()) {
    rest->size = 1;
    const int others = MeshShape(axes).size();
    if (ranks < 1 || ranks % others != 0) {
      const auto [names, sizes] = product(axes, &*rest);
      const int below = std::max(1, ranks / others) * others;
      throw InputError("mesh", concat(names, " must divide the number of ranks, got ", sizes, " and ", ranks, " ranks"),
                       concat("Start ", below, " or ", below + others, " ranks, or choose ", names, " from ",
                              numbers(divisors(ranks), ", "), "."));
    }
    rest->size = ranks / others;
  }
  MeshShape shape(std::move(axes));
  check_size(shape, ranks);
  return shape;
}

size_t MeshShape::index(std::string_view axis) const {
  const auto found = std::find_if(axes_.begin(), axes_.end(), [&](const Axis& known) { return known.name == axis; });
  if (found == axes_.end()) {
    throw InputError("mesh", concat("the mesh has no axis \"", axis, "\", it is ", describe()));
  }
  return static_cast<size_t>(found - axes_.begin());
}

int MeshShape::size() const {
  int size = 1;
  for (const Axis& axis : axes_) {
    size *= axis.size;
  }
  return size;
}

int MeshShape::rank(const Coordinates& at) const {
  int rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    rank = rank * axes_[i].size + at[i];
  }
  return rank;
}

Coordinates MeshShape::coordinates(int rank) const {
  Coordinates at(axes_.size());
  for (size_t i = axes_.size(); i-- > 0; rank /= axes_[i].size) {
    at[i] = rank % axes_[i].size;
  }
  return at;
}

int MeshShape::first(int rank, const Axes& axes) const {
  Coordinates at = coordinates(rank);
  for (const std::string& name : axes.names) {
    at[index(name)] = 0;
  }
  return this->rank(at);
}

std::vector<int> MeshShape::line(int rank, const Axes& axes) const {
  std::vector<int> ranks;
  for (int other = 0; other < size(); ++other) {
    if (first(other, axes) == first(rank, axes)) {
      ranks.push_back(other);
    }
  }
  return ranks;
}

std::vector<std::vector<int>> MeshShape::lines(const Axes& axes) const {
  std::map<int, std::vector<int>> by_first;
  for (int rank = 0; rank < size(); ++rank) {
    by_first[first(rank, axes)].push_back(rank);
  }
  std::vector<std::vector<int>> all;
  for (auto& [first, ranks] : by_first) {
    all.push_back(std::move(ranks));
  }
  return all;
}

std::string MeshShape::describe() const {
  const auto [names, sizes] = product(axes_);
  return concat(names, " = ", sizes);
}

Mesh::Mesh(comm::Group all, MeshShape shape, const std::vector<Axes>& together)
    : shape_(std::move(shape)), all_(std::move(all)) {
  check_size(shape_, all_.size());
  for (const Axis& axis : shape_.axes()) {
    add(axis.name);
  }
  for (const Axes& axes : together) {
    add(axes);
  }
}

void Mesh::add(const Axes& axes) {
  const std::string key = this->key(axes);
  if (groups_.count(key) != 0) {
    return;
  }
  comm::Group mine; // this rank's
  for (const std::vector<int>& ranks : shape_.lines(axes)) {
    if (ranks.size() > 1 && std::ssize(ranks) == all_.size()) {
      mine = all_;
    } else if (ranks.size() > 1) {
      std::vector<int> members;
      for (const int rank : ranks) {
        members.push_back(all_.members()[rank]);
      }
      const comm::Group group = all_.subgroup(ranks, concat(key, '[', numbers(members, " "), ']'));
      if (std::find(ranks.begin(), ranks.end(), all_.rank()) != ranks.end()) {
        mine = group;
      }
    }
  }
  groups_.emplace(key, mine);
}

std::string Mesh::key(const Axes& axes) const {
  std::vector<std::string> names;
  for (const Axis& axis : shape_.axes()) {
    if (axis.size > 1 && std::find(axes.names.begin(), axes.names.end(), axis.name) != axes.names.end()) {
      names.push_back(axis.name);
    }
  }
  return join(names, "+");
}

const comm::Group& Mesh::group(const Axes& axes) const {
  for (const std::string& name : axes.names) {
    shape_.size(name); // throws for an unknown name
  }
  const auto found = groups_.find(key(axes));
  if (found == groups_.end()) {
    throw Error("mesh", concat("the mesh has no group over the axes ", join(axes.names, ", ")),
                "Pass them as an entry of `together` to the constructor of Mesh.");
  }
  return found->second;
}

Mesh training_mesh(const comm::Group& all, const TrainingAxes& axes) {
  return Mesh(all,
              MeshShape::fit(all.size(), {{Axis::pipe, axes.pipe},
                                          {Axis::data, axes.data},
                                          {Axis::context, axes.context},
                                          {Axis::tensor, axes.tensor}}),
              {{Axis::data, Axis::context}, {Axis::pipe, Axis::tensor}, {Axis::data, Axis::context, Axis::tensor}});
}

} // namespace trireme::mesh
