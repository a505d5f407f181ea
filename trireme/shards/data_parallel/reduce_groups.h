#pragma once

#include <trireme/comm/group.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <optional>
#include <utility>
#include <vector>

namespace trireme::parallel {

/// The groups that sum gradients, by Placement::reduce_group. Group 0 is the data group. The others are subsets of its
/// ranks, for parameters that not all ranks have, such as the experts of a mixture.
class ReduceGroups {
 public:
  ReduceGroups(comm::Group data = {}, std::vector<comm::Group> others = {});

  const comm::Group& data() const { return groups_.front(); }
  const std::vector<comm::Group>& all() const { return groups_; }
  /// The ranks that hold the elements of `buffer`. Errors: InputError for a number without a group.
  const comm::Group& of(const bucket::FlatParameters& buffer) const { return at(buffer.reduce_group()); }
  const comm::Group& at(int number) const;
  /// Appends a group of any ranks and returns its number.
  int add(comm::Group group);
  /// Returns the size of the largest group.
  int largest() const;
  /// True if every group has one rank: there is nothing to exchange.
  bool alone() const;

  /// Sets hybrid sharding (MiCS, Zhang et al. 2022, arXiv:2205.00119). Shards are split among `shards`, a subset of the
  /// data group that holds one copy, instead of the data group. `replicas` are the ranks that hold the same shards as
  /// this rank, one per copy. The other reduce groups do not change.
  void shard_within(comm::Group shards, comm::Group replicas);
  /// The ranks that hold one copy of the shards of reduce group `number`: the group, or `shards` of shard_within().
  const comm::Group& shards(int number) const;
  const comm::Group& shards_of(const bucket::FlatParameters& buffer) const { return shards(buffer.reduce_group()); }
  /// The ranks with the same shards as this one: a group of one without hybrid sharding.
  const comm::Group& replicas(int number) const;
  const comm::Group& replicas_of(const bucket::FlatParameters& buffer) const { return replicas(buffer.reduce_group()); }
  /// All groups, including those of shard_within().
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
