#pragma once

#include <trireme/rpc/rpc.h>

#include <nlohmann/json.hpp>

#include <limits>
#include <string>

namespace trireme::parallel::server {

/// A request that is answered later, with its header as JSON.
struct Waiting {
  rpc::Event event;
  nlohmann::json header;
  int worker = -1; ///< where it is known

  std::string op() const {
    return header.at("op").get<std::string>();
  }
  int64_t clock() const {
    return header.at("clock").get<int64_t>();
  }
};

/// A number of a header; JSON has no NaN and no infinity: they are written as null. Absent: 0.
inline double number_in(const nlohmann::json& header, const char* key) {
  const auto found = header.find(key);
  return found == header.end() ? 0 : found->is_null() ? std::numeric_limits<double>::quiet_NaN() : found->get<double>();
}

} // namespace trireme::parallel::server
