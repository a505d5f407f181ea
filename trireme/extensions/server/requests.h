#pragma once

#include <trireme/extensions/server/rpc/rpc.h>
#include <trireme/extensions/server/shard.h>

#include <nlohmann/json.hpp>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel::server {

/// A request that is answered later, with its header as JSON.
struct PendingRequest {
  rpc::Event event;
  nlohmann::json header;
  int worker = -1; ///< -1: unknown

  std::string op() const { return header.at("op").get<std::string>(); }
  int64_t clock() const { return header.at("clock").get<int64_t>(); }
};

/// Reads a number of a header. JSON has no NaN and no infinity: they are sent as null. Absent: 0.
inline double number_in(const nlohmann::json& header, const char* key) {
  const auto found = header.find(key);
  return found == header.end() ? 0 : found->is_null() ? std::numeric_limits<double>::quiet_NaN() : found->get<double>();
}

/// Reads Adam's betas if the header has them.
inline std::optional<optim::Betas> betas_in(const nlohmann::json& header) {
  const auto betas = header.value("betas", std::vector<double>());
  return betas.size() == 2 ? std::optional(optim::Betas{betas[0], betas[1]}) : std::nullopt;
}

/// Number of rows of each sparse piece in a push; absent: its body has all pieces.
inline std::optional<std::vector<int64_t>> counts_in(const nlohmann::json& header) {
  return header.contains("rows") ? std::optional(header.at("rows").get<std::vector<int64_t>>()) : std::nullopt;
}

/// Throws nlohmann's exception if a field of a push has the wrong type. Called when the push arrives, before other
/// workers depend on it.
inline void check_push(const nlohmann::json& header) {
  header.at("clock").get<int64_t>();
  number_in(header, "loss");
  number_in(header, "factor");
  header.value("lr", 0.0);
  header.value("stop", false);
  header.value("first_clock", int64_t{0});
  header.value("unused", std::vector<int64_t>());
  betas_in(header);
}

/// Describes a shard's pieces for the response to `join`.
inline nlohmann::json pieces_of(const Shard& shard) {
  nlohmann::json pieces = nlohmann::json::array();
  for (const RowRange& piece : shard.share().pieces) {
    pieces.push_back({{"name", shard.parameters()[piece.parameter].name},
                      {"rows", {piece.begin, piece.end}},
                      {"offset", piece.offset}});
  }
  return pieces;
}

} // namespace trireme::parallel::server
