#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace trireme::parallel::server {

/// The checkpoint that a server's values began with. Number 0: none, they are the first worker's.
struct Load {
  int64_t number = 0; ///< of all that were loaded in this job, from 1
  std::string id;     ///< equal on all workers that have loaded the same one
  int64_t step = 0;   ///< of the training
  int64_t clock = 0;  ///< the server's, with which they came: a gradient of an earlier one is not of these values
};

inline nlohmann::json as_json(const Load& load) {
  return {{"number", load.number}, {"id", load.id}, {"step", load.step}, {"clock", load.clock}};
}
inline Load read_load(const nlohmann::json& json) {
  return {json.at("number").get<int64_t>(), json.at("id").get<std::string>(), json.at("step").get<int64_t>(),
          json.at("clock").get<int64_t>()};
}

} // namespace trireme::parallel::server
