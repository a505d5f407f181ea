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
  /// Overrides the optimizer's value; -1: no override, and absent from the description.
  double weight_decay = -1;
  double lr_factor = 1;
  /// Workers push only rows with a gradient, and pull only rows that have changed.
  bool sparse = false;
  /// One server holds the whole parameter, because the optimizer needs its norm.
  bool whole = false;
  bool operator==(const ParameterInfo&) const = default;

  int64_t element_bytes() const { return type == "float32" ? 4 : 2; }
  /// A scalar counts as one row of one element.
  int64_t rows() const { return shape.empty() ? 1 : shape.front(); }
  int64_t row_numel() const;
  int64_t bytes() const { return rows() * row_numel() * element_bytes(); }
};

/// Rows [begin, end) of a parameter, and their offset in the bodies of requests, in bytes.
struct RowRange {
  int64_t parameter = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset = 0;

  size_t bytes(const ParameterInfo& parameter) const {
    return static_cast<size_t>((end - begin) * parameter.row_numel() * parameter.element_bytes());
  }
};

/// True if one thread copies that many bytes faster than it calls an operator that may use several threads.
constexpr bool is_small(size_t bytes) {
  return bytes < (size_t{1} << 17);
}

/// The pieces that one server holds.
struct Share {
  std::vector<RowRange> pieces;
  /// Size of a body with all pieces.
  int64_t bytes = 0;
  /// Size of the pieces that are not sparse. A body begins with them.
  int64_t dense_bytes = 0;
};

/// Cuts the concatenated parameters into `servers` shares of equal bytes, up to half a row, or half a parameter that
/// must not be cut. Pieces begin at multiples of 64 bytes in a body. Depends on the arguments alone, so workers and
/// servers with the same list compute the same shares.
std::vector<Share> share_out(const std::vector<ParameterInfo>& parameters, int servers);

/// A body with some rows of the sparse pieces. The pieces that are not sparse come first, as in a body with all pieces.
/// Then follow, for each sparse piece, its row numbers (int64, row of the parameter, ascending) and the rows, each at a
/// multiple of 64 bytes.
struct RowBlock {
  size_t piece = 0;
  int64_t rows = 0;
  int64_t numbers = 0; ///< offset of the row numbers, in bytes
  int64_t values = 0;
};
struct RowLayout {
  std::vector<RowBlock> blocks; ///< one per sparse piece
  int64_t bytes = 0;
};
/// `counts`: number of rows of each sparse piece. Errors: InputError if there are not as many counts as sparse pieces,
/// or a count exceeds a piece's rows.
RowLayout row_layout(const std::vector<ParameterInfo>& parameters, const Share& share,
                     const std::vector<int64_t>& counts);
/// Returns the counts of the longest body: all rows.
std::vector<int64_t> all_rows(const std::vector<ParameterInfo>& parameters, const Share& share);

/// Offsets of a share's pieces in an array of the optimizer (fp32), and the size of an array, in bytes.
struct ArrayLayout {
  std::vector<int64_t> offsets; ///< one per piece
  int64_t bytes = 0;
};
ArrayLayout array_layout(const std::vector<ParameterInfo>& parameters, const Share& share);

/// Errors: InputError for an invalid description.
std::vector<ParameterInfo> read_parameters(const nlohmann::json& described);
nlohmann::json describe(const std::vector<ParameterInfo>& parameters);

} // namespace trireme::parallel::server
