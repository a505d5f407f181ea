#pragma once

#include <trireme/bucket/flat_parameters.h>
#include <trireme/comm/group.h>

#include <cstdint>
#include <utility>

namespace trireme::zero {

/// Brings the ranks' parts of one bucket of parameters together on every rank. Sharded parameters can be read once it was waited for.
/// Cost: P(N-1)/N bytes sent a rank for a bucket of P bytes.
inline comm::Work gather_bucket(const comm::Group& group, bucket::FlatParameters& parameters, int64_t bucket) {
  comm::Work gathered = group.all_gather(parameters.bucket_data(bucket), parameters.owned_data(bucket, parameters.plan().mine(bucket)), "parameters");
  if (parameters.is_replicated(bucket)) {
    return gathered;
  }
  return comm::then(std::move(gathered), [&parameters, bucket] { parameters.publish(bucket); });
}

} // namespace trireme::zero
