#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::horovod {

enum class Kind { allreduce, allgather, broadcast, alltoall, reducescatter, barrier, join };
enum class Op { average, sum, min, max, product, adasum };

/// "allreduce".
const char* name_of(Kind kind);
/// "Average".
const char* name_of(Op op);

using Shape = std::vector<int64_t>;

/// A rank's request for a name, as far as other ranks need it.
struct Request {
  Kind kind = Kind::allreduce;
  std::string name;
  c10::ScalarType type = c10::ScalarType::Float;
  std::vector<Shape> shapes; // of each tensor of a group
  Op op = Op::average;
  int root = 0;
  double prescale = 1;
  double postscale = 1;
  std::vector<int64_t> splits; // of alltoall: rows for each rank
  bool on_device = false;      // otherwise on the host

  nlohmann::json to_json() const;
  static Request from_json(const nlohmann::json& json);
};

/// Compares the requests of all ranks for one name; `of_rank` has none of ranks that have joined. Returns a sentence
/// with the first difference and its ranks, or nullopt if they agree.
std::optional<std::string> mismatch(const std::vector<std::optional<Request>>& of_rank);

} // namespace trireme::horovod
