#pragma once

#include <trireme/extensions/server/pieces.h>
#include <trireme/extensions/server/sparse_rows.h>
#include <trireme/optim/flat_optimizer.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::parallel::server {

at::ScalarType scalar_type(const ParameterInfo& parameter);

/// A server's share of the parameters, with its optimizer: flat buffers of pieces on the CPU, stepped by the same
/// kernels as in every other mode.
///
/// A body has the pieces in their types at Piece::offset. In sparse pieces only rows with a gradient are stepped.
/// Momentum and weight decay do not change the other rows or their states (lazy updates). Memory: the pieces twice, as
/// parameters and as gradients, and the optimizer's states.
class Shard {
 public:
  /// Errors: InputError for 8-bit states, and if a parameter is cut or sparse and the optimizer needs whole tensors
  /// (LAMB).
  Shard(std::vector<ParameterInfo> parameters, Share share, const optim::OptimizerOptions& optimizer);

  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  const Share& share() const { return share_; }
  void set_values(std::span<const std::byte> body);
  void get_values(std::span<std::byte> body) const;

  /// Sums the gradients of the next step: begin_sum(), then add() for each summand, in an order that does not depend on
  /// arrival. `unused`: indices of the parameters without a gradient in this summand.
  void begin_sum();
  /// `counts`: number of rows of each sparse piece in the body (RowLayout). Absent: the body has all pieces, and of
  /// sparse ones the rows that are not 0 count.
  void add(std::span<const std::byte> body, const std::vector<int64_t>& unused = {},
           const std::optional<std::vector<int64_t>>& counts = std::nullopt);
  /// Errors: InputError for a body that add() cannot take.
  void check(std::span<const std::byte> body, const std::optional<std::vector<int64_t>>& counts) const;
  /// Squared norm of the sum; NaN or infinite if a gradient is.
  double squared_norm() const;
  /// Steps by the sum multiplied by `factor`. Parameters without a gradient do not change.
  void step(double lr, std::optional<optim::Betas> betas, double factor);
  int64_t steps() const { return optimizer_ ? optimizer_->steps() : steps_; }
  void set_steps(int64_t steps) {
    steps_ = steps;
    if (optimizer_) {
      optimizer_->set_steps(steps);
    }
  }

  bool has_sparse() const { return !sparse_.empty(); }
  /// Version of the values; grows with every change.
  int64_t version() const { return version_; }
  /// Rows of the sparse pieces that changed after a version, and the layout of the body that contains them.
  struct Changes {
    std::vector<at::Tensor> rows; ///< row numbers in the piece
    std::vector<int64_t> counts;
    RowLayout layout;
  };
  Changes changes_since(int64_t version) const;
  void get_changes(std::span<std::byte> body, const Changes& changes) const;

  /// Names of the optimizer's arrays, such as "exp_avg"; "master" comes first if there are masters.
  const std::vector<std::string>& arrays() const { return arrays_; }
  /// Size of one array in bytes: the pieces as fp32 (array_layout()). A body with all arrays concatenates them.
  int64_t array_bytes() const { return layout_.bytes; }
  void get_arrays(std::span<std::byte> body);
  void set_arrays(std::span<const std::byte> body);

  /// Writes parameters and states to a safetensors file (temporary name, fsync, rename), with `metadata`. Errors:
  /// Error.
  void save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata);
  /// Errors: InputError if the file has other parameters.
  void load(const std::filesystem::path& file);

 private:
  void get_piece(std::span<std::byte> body, size_t piece) const;
  at::Tensor piece_in(std::span<const std::byte> body, size_t piece) const;
  at::Tensor numbers_in(std::span<const std::byte> body, const RowBlock& block) const;
  at::Tensor rows_in(std::span<const std::byte> body, const RowBlock& block) const;
  void change_all();
  void visit_arrays(
      const std::function<void(size_t array, size_t piece, const at::Tensor& values, int64_t begin)>& visit,
      bool modifies);

  std::vector<ParameterInfo> parameters_;
  Share share_;
  std::vector<at::Tensor> tensors_;                              // one per piece
  std::vector<std::pair<int64_t, int64_t>> places_;              // buffer of each piece, and index in it
  std::map<std::string, size_t> piece_of_;                       // by the parameter's name
  std::vector<std::unique_ptr<bucket::FlatParameters>> buffers_; // one per type
  std::unique_ptr<optim::FlatOptimizer> optimizer_;              // null: the share has no piece
  int64_t steps_ = 0;
  std::vector<std::string> arrays_;
  ArrayLayout layout_;
  std::vector<bool> used_;              // by piece; unused for sparse ones
  std::map<size_t, SparseRows> sparse_; // by piece
  int64_t version_ = 0;
};

} // namespace trireme::parallel::server
