#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
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
  /// Workers push the rows that have a gradient, and pull those that have changed.
  bool sparse = false;
  /// Of an optimizer that needs its norm: one server has all of it.
  bool whole = false;
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
struct RowRange {
  int64_t parameter = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset = 0;

  size_t bytes(const ParameterInfo& parameter) const {
    return static_cast<size_t>((end - begin) * parameter.row_numel() * parameter.element_bytes());
  }
};

/// Whether one thread copies so many bytes faster than it calls an operator that may share the work among threads.
constexpr bool is_small(size_t bytes) {
  return bytes < (size_t{1} << 17);
}

/// What one server holds.
struct Share {
  std::vector<RowRange> pieces;
  /// Of a body with all of them.
  int64_t bytes = 0;
  /// Of the pieces that are not sparse, with which a body begins.
  int64_t dense_bytes = 0;
};

/// Cuts the parameters, one behind the other, into `servers` shares of equal bytes, up to half a row, or half a
/// parameter that is to be whole. Pieces begin at multiples of 64 bytes in a body. Pure arithmetic: workers and servers
/// that know the same list compute the same shares.
std::vector<Share> share_out(const std::vector<ParameterInfo>& parameters, int servers);

/// A body with some rows of the sparse pieces: it begins with the other pieces, as a body with all of them does; then
/// come, for each sparse piece, the numbers of its rows (int64, of the parameter, ascending) and the rows, either at a
/// multiple of 64 bytes.
struct RowBlock {
  size_t piece = 0;
  int64_t rows = 0;
  int64_t numbers = 0; ///< where they begin, in bytes
  int64_t values = 0;
};
struct RowLayout {
  std::vector<RowBlock> blocks; ///< one a sparse piece
  int64_t bytes = 0;
};
/// `counts`: rows of each sparse piece. Errors: InputError for other counts than the share has sparse pieces, or rows.
RowLayout row_layout(const std::vector<ParameterInfo>& parameters, const Share& share,
                     const std::vector<int64_t>& counts);
/// The counts of the longest such body: all rows.
std::vector<int64_t> all_rows(const std::vector<ParameterInfo>& parameters, const Share& share);

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
