#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace trireme::parallel::server {

/// The checkpoint from which a server's values started. Number 0: none; they are the first worker's initial values.
struct Load {
  int64_t number = 0; ///< Index among this job's loads, from 1.
  std::string id;     ///< Equal on all workers that have loaded the same checkpoint.
  int64_t step = 0;   ///< Of the training.
  int64_t clock = 0;  ///< The server's clock when the values were set; earlier gradients are of older values.
};

inline nlohmann::json as_json(const Load& load) {
  return {{"number", load.number}, {"id", load.id}, {"step", load.step}, {"clock", load.clock}};
}
inline Load read_load(const nlohmann::json& json) {
  return {json.at("number").get<int64_t>(), json.at("id").get<std::string>(), json.at("step").get<int64_t>(),
          json.at("clock").get<int64_t>()};
}

} // namespace trireme::parallel::server
