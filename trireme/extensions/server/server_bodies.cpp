// Copies between tensors and the bodies of a worker's requests and responses.
#include <trireme/base/log.h>
#include <trireme/extensions/server/server_connection.h>
#include <trireme/extensions/server/shard.h>
#include <trireme/extensions/server/sparse_rows.h>

#include <torch/utils.h>

#include <cstring>
#include <utility>

namespace trireme::parallel::server {
namespace {

// Returns the piece's address in a tensor if its bytes are laid out as in a body; else null. For the many small tensors
// of some models, memcpy costs a tenth of an operator.
std::byte* bytes_of(const at::Tensor& whole, const ParameterInfo& parameter, const RowRange& piece) {
  const bool as_in_a_body = whole.is_cpu() && whole.is_contiguous() && whole.scalar_type() == scalar_type(parameter);
  return as_in_a_body ? static_cast<std::byte*>(whole.data_ptr()) +
                            piece.begin * parameter.row_numel() * parameter.element_bytes()
                      : nullptr;
}

} // namespace

void Servers::gather_piece(Connection& server, const RowRange& piece, const at::Tensor& whole) const {
  const ParameterInfo& parameter = parameters_[piece.parameter];
  const size_t bytes = piece.bytes(parameter);
  if (const std::byte* const from = is_small(bytes) ? bytes_of(whole, parameter, piece) : nullptr) {
    std::memcpy(server.gradients.get() + piece.offset, from, bytes);
    return;
  }
  const at::Tensor rows = whole.dim() == 0 ? whole.detach() : whole.detach().slice(0, piece.begin, piece.end);
  torch::from_blob(server.gradients.get() + piece.offset, rows.sizes(), scalar_type(parameters_[piece.parameter]))
      .copy_(rows);
}

void Servers::gather_values(Connection& server, const TensorOf& values) const {
  const torch::NoGradGuard no_grad;
  for (const RowRange& piece : server.share.pieces) {
    gather_piece(server, piece, values(piece.parameter));
  }
}

// Gathers whole pieces, and of sparse pieces the rows that have a gradient.
void Servers::gather_gradients(const TensorOf& gradients) {
  const torch::NoGradGuard no_grad;
  unused_.clear();
  std::vector<int64_t> rows_of(parameters_.size(), 0);
  for (const auto& server : servers_) {
    for (const RowRange& piece : server->share.pieces) {
      if (const at::Tensor whole = gradients(piece.parameter); !whole.defined()) {
        unused_.push_back(piece.parameter);
      } else if (!parameters_[piece.parameter].sparse) {
        gather_piece(*server, piece, whole);
      }
    }
    gather_rows(*server, gradients, rows_of);
  }
  for (size_t p = 0; p < parameters_.size() && options_.worker == 0; ++p) {
    if (parameters_[p].sparse && rows_of[p] == parameters_[p].rows() && !std::exchange(said_dense_, true)) {
      log::warning('"', parameters_[p].name, "\": all ", rows_of[p],
                   " rows have a gradient, so sparse_rows saves nothing: each row is sent with its number. An "
                   "embedding tied to the output layer has this in every step");
    }
  }
}

void Servers::gather_rows(Connection& server, const TensorOf& gradients, std::vector<int64_t>& rows_of) {
  std::vector<at::Tensor> rows;
  std::vector<at::Tensor> numbers; // of the piece
  server.counts.clear();
  for (const RowRange& piece : server.share.pieces) {
    if (parameters_[piece.parameter].sparse) {
      const at::Tensor whole = gradients(piece.parameter);
      rows.push_back(whole.defined() ? whole.detach().slice(0, piece.begin, piece.end).flatten(1) : at::Tensor());
      numbers.push_back(whole.defined() ? rows_with_values(rows.back()) : torch::empty({0}, at::kLong));
      server.counts.push_back(numbers.back().numel());
      rows_of[piece.parameter] += server.counts.back();
    }
  }
  const RowLayout layout = row_layout(parameters_, server.share, server.counts);
  server.gradient_bytes = static_cast<size_t>(layout.bytes);
  for (size_t s = 0; s < layout.blocks.size(); ++s) {
    const RowBlock& block = layout.blocks[s];
    const RowRange& piece = server.share.pieces[block.piece];
    if (block.rows > 0) {
      torch::from_blob(server.gradients.get() + block.numbers, {block.rows}, at::kLong).copy_(numbers[s] + piece.begin);
      torch::from_blob(server.gradients.get() + block.values, {block.rows, rows[s].size(1)},
                       scalar_type(parameters_[piece.parameter]))
          .copy_(rows[s].index_select(0, numbers[s]));
    }
  }
}

void Servers::scatter(Connection& server, const nlohmann::json& reply, const TensorOf& tensors) const {
  const bool all = !reply.contains("rows");
  for (const RowRange& piece : server.share.pieces) {
    if (all || !parameters_[piece.parameter].sparse) {
      const ParameterInfo& parameter = parameters_[piece.parameter];
      const at::Tensor tensor = tensors(piece.parameter);
      const size_t bytes = piece.bytes(parameter);
      if (std::byte* const to = is_small(bytes) ? bytes_of(tensor, parameter, piece) : nullptr) {
        std::memcpy(to, server.values.get() + piece.offset, bytes);
        continue;
      }
      const at::Tensor whole = tensor.detach();
      at::Tensor rows = whole.dim() == 0 ? whole : whole.slice(0, piece.begin, piece.end);
      rows.copy_(torch::from_blob(server.values.get() + piece.offset, rows.sizes(),
                                  scalar_type(parameters_[piece.parameter])));
    }
  }
  const RowLayout layout =
      all ? RowLayout() : row_layout(parameters_, server.share, reply["rows"].get<std::vector<int64_t>>());
  for (const RowBlock& block : layout.blocks) {
    const RowRange& piece = server.share.pieces[block.piece];
    at::Tensor whole = tensors(piece.parameter).detach();
    const at::Tensor numbers = torch::from_blob(server.values.get() + block.numbers, {block.rows}, at::kLong);
    const at::Tensor rows =
        torch::from_blob(server.values.get() + block.values, {block.rows, parameters_[piece.parameter].row_numel()},
                         scalar_type(parameters_[piece.parameter]));
    std::vector<int64_t> sizes = whole.sizes().vec();
    sizes.front() = block.rows;
    whole.index_copy_(0, numbers.to(whole.device()), rows.view(sizes).to(whole.options()));
  }
  if (const auto version = reply.find("version"); version != reply.end()) {
    server.version = version->get<int64_t>();
  }
}

// `memory` holds all arrays of the server, concatenated.
void Servers::visit_arrays(const Connection& server, std::byte* memory, const OfArray& f) const {
  const ArrayLayout layout = array_layout(parameters_, server.share);
  for (size_t a = 0; a < server.arrays.size(); ++a) {
    for (size_t p = 0; p < server.share.pieces.size(); ++p) {
      const RowRange& piece = server.share.pieces[p];
      const int64_t row = parameters_[piece.parameter].row_numel();
      const int64_t at = static_cast<int64_t>(a) * server.array_bytes + layout.offsets[p];
      f(server.arrays[a], piece.parameter, piece.begin * row,
        torch::from_blob(memory + at, {(piece.end - piece.begin) * row}, at::kFloat));
    }
  }
}

} // namespace trireme::parallel::server
