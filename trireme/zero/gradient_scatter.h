#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/comm/group.h>

#include <cstdint>

namespace trireme::zero {

/// Reduces one bucket of gradients to shards: afterwards rank r's slice of the bucket (bucket::ShardPlan) holds the sum over the group,
/// in place; the other slices hold nothing of use. Riders are summed on every rank.
/// `travel`: the type in which they are sent; another than the gradients' costs a converted copy of the bucket meanwhile.
/// Cost: P(N-1)/N bytes sent a rank for P bytes of gradients in that type, half of an all-reduce.
/// Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 7.
comm::Work scatter_gradients(const comm::Group& group, bucket::FlatParameters& buffer, int64_t bucket, at::ScalarType travel);

} // namespace trireme::zero
