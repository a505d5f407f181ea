#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <optional>
#include <utility>
#include <vector>

namespace trireme::parallel {

/// The groups that add up gradients, by Placement::reduce_group. Number 0 is the data group; the others are groups of
/// some of its ranks, for parameters that not all of them have: the experts of a mixture, for instance.
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

  /// Hybrid sharding (MiCS, Zhang et al. 2022, arXiv:2205.00119): what is sharded among the data group is sharded among
  /// `shards` instead, some of its ranks that hold one copy together, and `replicas` are the ranks that hold the same
  /// shards as this one, one of each copy. The other reduce groups stay as they are.
  void shard_within(comm::Group shards, comm::Group replicas);
  /// The ranks that hold one copy of what is sharded in reduce group `number`: all of it, or those of shard_within().
  const comm::Group& shards(int number) const;
  const comm::Group& shards_of(const bucket::FlatParameters& buffer) const {
    return shards(buffer.reduce_group());
  }
  /// The ranks with the same shards as this one: a group of one, unless there is hybrid sharding.
  const comm::Group& replicas(int number) const;
  const comm::Group& replicas_of(const bucket::FlatParameters& buffer) const {
    return replicas(buffer.reduce_group());
  }
  /// All of these groups, those of shard_within() included.
  std::vector<comm::Group> every() const;

 private:
  struct Hybrid {
    comm::Group shards;
    comm::Group replicas;
  };
  std::vector<comm::Group> groups_;
  std::optional<Hybrid> hybrid_;
  comm::Group alone_;
};

} // namespace trireme::parallel
