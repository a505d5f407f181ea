#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/comm/group.h>

#include <utility>
#include <vector>

namespace trireme::parallel {

/// The groups that add up gradients, by Placement::reduce_group. Number 0 is the data group; the others are groups of some of its ranks, for
/// parameters that not all of them have: the experts of a mixture, for instance.
class ReduceGroups {
 public:
  ReduceGroups(comm::Group data = {}, std::vector<comm::Group> others = {});

  const comm::Group& data() const {
    return groups_.front();
  }
  const std::vector<comm::Group>& all() const {
    return groups_;
  }
  /// The ranks that have the elements of `buffer`. Errors: InputError for a number without a group.
  const comm::Group& of(const bucket::FlatParameters& buffer) const {
    return at(buffer.reduce_group());
  }
  const comm::Group& at(int number) const;
  /// Appends a group, of any ranks, and returns its number.
  int add(comm::Group group);
  /// Ranks of the largest group.
  int largest() const;
  /// Whether no rank has anybody to exchange with.
  bool alone() const;

 private:
  std::vector<comm::Group> groups_;
};

} // namespace trireme::parallel
