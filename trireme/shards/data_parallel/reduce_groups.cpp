#include <trireme/shards/data_parallel/reduce_groups.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::parallel {

ReduceGroups::ReduceGroups(comm::Group data, std::vector<comm::Group> others) : groups_(std::move(others)) {
  groups_.insert(groups_.begin(), std::move(data));
  const std::vector<int>& known = this->data().members();
  for (const comm::Group& group : groups_) {
    if (group.size() == 1) {
      continue; // Group() too has size 1
    }
    for (const int rank : group.members()) {
      if (std::find(known.begin(), known.end(), rank) == known.end()) {
        throw InputError(
            "data parallel",
            concat("reduce group \"", group.name(), "\" has rank ", rank, ", which is not in the data group"),
            "Make the group of ranks of the data group: Group::subgroup().");
      }
    }
  }
}

const comm::Group& ReduceGroups::at(int number) const {
  if (number < 0 || number >= std::ssize(groups_)) {
    throw InputError(
        "data parallel",
        concat("a parameter's placement has reduce_group ", number, ", but there are ", groups_.size(), " groups"),
        "0 is the data group; InitializeOptions::reduce_groups adds groups from 1 on.");
  }
  return groups_[number];
}

int ReduceGroups::add(comm::Group group) {
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

int ReduceGroups::largest() const {
  return std::max_element(groups_.begin(), groups_.end(),
                          [](const comm::Group& a, const comm::Group& b) { return a.size() < b.size(); })
      ->size();
}

void ReduceGroups::shard_within(comm::Group shards, comm::Group replicas) {
  hybrid_ = Hybrid{std::move(shards), std::move(replicas)};
}

const comm::Group& ReduceGroups::shards(int number) const {
  return number == 0 && hybrid_ ? hybrid_->shards : at(number);
}

const comm::Group& ReduceGroups::replicas(int number) const {
  return number == 0 && hybrid_ ? hybrid_->replicas : alone_;
}

std::vector<comm::Group> ReduceGroups::every() const {
  std::vector<comm::Group> all = groups_;
  if (hybrid_) {
    all.push_back(hybrid_->shards);
    all.push_back(hybrid_->replicas);
  }
  return all;
}

bool ReduceGroups::alone() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const comm::Group& group) { return group.size() == 1; });
}

} // namespace trireme::parallel
