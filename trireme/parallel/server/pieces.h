#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::parallel::server {

/// A parameter as workers describe it to servers.
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  /// "float32", "bfloat16" or "float16".
  std::string type = "float32";
  /// Of the optimizer: absent from the description where it is that of all.
  double weight_decay = -1;
  double lr_factor = 1;
  bool operator==(const ParameterInfo&) const = default;

  int64_t element_bytes() const {
    return type == "float32" ? 4 : 2;
  }
  /// A scalar is one row of one element.
  int64_t rows() const {
    return shape.empty() ? 1 : shape.front();
  }
  int64_t row_numel() const;
  int64_t bytes() const {
    return rows() * row_numel() * element_bytes();
  }
};

/// Rows [begin, end) of a parameter, and where they are in the bodies of requests, in bytes.
struct Piece {
  int64_t parameter = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset = 0;
};

/// What one server holds.
struct Share {
  std::vector<Piece> pieces;
  /// Of a body with all of them.
  int64_t bytes = 0;
};

/// Cuts the parameters, one behind the other, into `servers` shares of equal bytes, up to half a row. Pieces begin at multiples of 64 bytes in a body. Pure arithmetic: workers and servers
/// that know the same list compute the same shares.
std::vector<Share> share_out(const std::vector<ParameterInfo>& parameters, int servers);

/// Where the pieces of a share are in an array of the optimizer, as fp32, in bytes, and of how many bytes an array is.
struct ArrayLayout {
  std::vector<int64_t> offsets; ///< of each piece
  int64_t bytes = 0;
};
ArrayLayout array_layout(const std::vector<ParameterInfo>& parameters, const Share& share);

/// Errors: InputError for a description that is none.
std::vector<ParameterInfo> read_parameters(const nlohmann::json& described);
nlohmann::json describe(const std::vector<ParameterInfo>& parameters);

} // namespace trireme::parallel::server
