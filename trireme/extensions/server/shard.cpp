#include <trireme/extensions/server/shard.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/comm/host_memory.h>
#include <trireme/kernels/kernels.h>

#include <torch/utils.h>

#include <algorithm>
#include <cstring>

namespace trireme::parallel::server {
namespace {

constexpr int64_t kFloat = 4;
constexpr const char* kParameter = "parameter";

void check_optimizer(const std::vector<ParameterInfo>& parameters, const Share& share, const optim::Optimizer& rule) {
  if (rule.state_type() == optim::StateType::int8) {
    throw InputError("server", "a parameter server cannot hold 8-bit optimizer states",
                     "Use \"state_dtype\": \"fp32\" or \"bf16\".");
  }
  if (!rule.needs_norms()) {
    return;
  }
  for (const RowRange& piece : share.pieces) {
    const ParameterInfo& parameter = parameters[piece.parameter];
    if (piece.end - piece.begin < parameter.rows() || parameter.sparse) {
      throw InputError(
          "server",
          concat(rule.name(), " needs the norms of whole tensors, but \"", parameter.name,
                 parameter.sparse ? "\" is sparse" : "\" is cut between two servers"),
          parameter.sparse ? "Remove sparse_rows, or use AdamW." : "Describe it as \"whole\", or use AdamW.");
    }
  }
}

// Adds to the sum, or sets it for the first summand.
void add_floats(const at::Tensor& sum, const std::byte* from, bool begun) {
  auto* const to = static_cast<float*>(sum.data_ptr());
  if (!begun) {
    std::memcpy(to, from, sum.nbytes());
    return;
  }
  const void* const in[] = {to, from};
  void* const out = to;
  kernels::CombineArgs args;
  args.in = in;
  args.inputs = 2;
  args.out = &out;
  args.outputs = 1;
  kernels::active_kernels().combine(args, 0, sum.numel());
}

} // namespace

at::ScalarType scalar_type(const ParameterInfo& parameter) {
  return parameter.type == "float32" ? at::kFloat : parameter.type == "bfloat16" ? at::kBFloat16 : at::kHalf;
}

Shard::Shard(std::vector<ParameterInfo> parameters, Share share, const optim::OptimizerOptions& options)
    : parameters_(std::move(parameters)), share_(std::move(share)) {
  const torch::NoGradGuard no_grad;
  std::map<at::ScalarType, std::pair<bucket::NamedTensors, std::vector<size_t>>> by_type;
  for (size_t i = 0; i < share_.pieces.size(); ++i) {
    const RowRange& piece = share_.pieces[i];
    const ParameterInfo& parameter = parameters_[piece.parameter];
    std::vector<int64_t> sizes = parameter.shape;
    if (!sizes.empty()) {
      sizes.front() = piece.end - piece.begin;
    }
    tensors_.push_back(torch::zeros(sizes, scalar_type(parameter)).requires_grad_());
    if (!piece_of_.emplace(parameter.name, i).second) {
      throw InputError("server", concat("two parameters have the name \"", parameter.name, '"'),
                       "Give each parameter its own name.");
    }
    auto& [named, pieces] = by_type[scalar_type(parameter)];
    named.emplace_back(parameter.name, tensors_.back());
    pieces.push_back(i);
  }
  layout_ = array_layout(parameters_, share_);
  const auto placement = [this](const std::string& name, const at::Tensor& tensor) {
    const RowRange& piece = share_.pieces[piece_of_.at(name)];
    bucket::Placement at;
    at.counts_in_norm = !parameters_[piece.parameter].sparse; // squared_norm() adds the rows that have a gradient
    if (piece.end - piece.begin < parameters_[piece.parameter].rows()) {
      at.global_shape = parameters_[piece.parameter].shape;
      at.box_offset.assign(tensor.dim(), 0);
      at.box_offset.front() = piece.begin;
    }
    return at;
  };
  places_.resize(tensors_.size());
  std::vector<bucket::FlatParameters*> pointers;
  for (auto& [type, of_type] : by_type) {
    auto& [named, pieces] = of_type;
    for (size_t n = 0; n < pieces.size(); ++n) {
      places_[pieces[n]] = {std::ssize(buffers_), static_cast<int64_t>(n)};
    }
    buffers_.push_back(std::make_unique<bucket::FlatParameters>(
        named, bucket::LayoutOptions(), comm::allocate_host,
        bucket::FlatOptions{.gradient_type = at::kFloat, .placement_of = placement}));
    pointers.push_back(buffers_.back().get());
    for (int64_t n = 0; n < buffers_.back()->count(); ++n) {
      buffers_.back()->attach_zero_grad(n);
    }
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (parameters_[share_.pieces[i].parameter].sparse) {
      sparse_.emplace(i, tensors_[i].grad());
    }
  }
  const auto options_of = [&](const bucket::TensorInfo& tensor) {
    const ParameterInfo& parameter = parameters_[share_.pieces[piece_of_.at(tensor.name)].parameter];
    return optim::ParameterOptions{parameter.weight_decay >= 0 ? parameter.weight_decay : options.weight_decay(),
                                   parameter.lr_factor};
  };
  if (pointers.empty()) { // there are fewer rows than servers
    return;
  }
  check_optimizer(parameters_, share_, *optim::make_optimizer(options));
  optimizer_ = std::make_unique<optim::FlatOptimizer>(pointers, options_of, options);
  if (std::any_of(buffers_.begin(), buffers_.end(),
                  [](const auto& buffer) { return buffer->scalar_type() != at::kFloat; })) {
    arrays_.emplace_back(optim::kMasterState);
  }
  for (const optim::StateInfo& state : optimizer_->rule().states()) {
    arrays_.push_back(state.name);
  }
}

// Views a body's bytes, which need no more alignment than their type.
at::Tensor Shard::piece_in(std::span<const std::byte> body, size_t i) const {
  const at::Tensor& tensor = tensors_[i];
  auto* const begin = const_cast<std::byte*>(body.data()) + share_.pieces[i].offset;
  return torch::from_blob(begin, tensor.sizes(), tensor.options().requires_grad(false));
}

void Shard::set_values(std::span<const std::byte> body) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].copy_(piece_in(body, i));
  }
  if (optimizer_) {
    optimizer_->refresh_masters();
  }
  change_all();
}

void Shard::change_all() {
  ++version_;
  for (auto& [piece, rows] : sparse_) {
    rows.change_all(version_);
  }
}

void Shard::get_piece(std::span<std::byte> body, size_t i) const {
  if (const at::Tensor& tensor = tensors_[i]; is_small(tensor.nbytes())) { // an operator costs more than the copy
    std::memcpy(body.data() + share_.pieces[i].offset, tensor.const_data_ptr(), tensor.nbytes());
  } else {
    piece_in(body, i).copy_(tensor);
  }
}

void Shard::get_values(std::span<std::byte> body) const {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    get_piece(body, i);
  }
}

void Shard::begin_sum() {
  const torch::NoGradGuard no_grad;
  used_.assign(tensors_.size(), false);
  for (auto& [piece, rows] : sparse_) {
    rows.begin_sum();
  }
}

// Copies, because the body may be the worker's memory.
at::Tensor Shard::numbers_in(std::span<const std::byte> body, const RowBlock& block) const {
  const at::Tensor numbers = torch::empty({block.rows}, at::kLong);
  std::memcpy(numbers.mutable_data_ptr(), body.data() + block.numbers, numbers.nbytes());
  return numbers - share_.pieces[block.piece].begin;
}

at::Tensor Shard::rows_in(std::span<const std::byte> body, const RowBlock& block) const {
  const at::Tensor& tensor = tensors_[block.piece];
  return torch::from_blob(const_cast<std::byte*>(body.data()) + block.values,
                          {block.rows, parameters_[share_.pieces[block.piece].parameter].row_numel()},
                          tensor.options().requires_grad(false));
}

void Shard::check(std::span<const std::byte> body, const std::optional<std::vector<int64_t>>& counts) const {
  const RowLayout layout = counts ? row_layout(parameters_, share_, *counts) : RowLayout{{}, share_.bytes};
  if (std::ssize(body) != layout.bytes) {
    throw InputError("server", concat("the body has ", body.size(), " bytes, expected ", layout.bytes,
                                      counts ? " for these rows" : " for a share"));
  }
  for (const RowBlock& block : layout.blocks) {
    const at::Tensor numbers = numbers_in(body, block);
    const at::Tensor& tensor = tensors_[block.piece];
    const bool ascend = block.rows < 2 || numbers.slice(0, 1).gt(numbers.slice(0, 0, -1)).all().item<bool>();
    if (!ascend ||
        (block.rows > 0 && (numbers[0].item<int64_t>() < 0 || numbers[-1].item<int64_t>() >= tensor.size(0)))) {
      const RowRange& piece = share_.pieces[block.piece];
      throw InputError("server", concat("row numbers of \"", parameters_[piece.parameter].name, "\" must ascend from ",
                                        piece.begin, " to less than ", piece.end));
    }
  }
}

void Shard::add(std::span<const std::byte> body, const std::vector<int64_t>& unused,
                const std::optional<std::vector<int64_t>>& counts) {
  const torch::NoGradGuard no_grad;
  for (const RowBlock& block : counts ? row_layout(parameters_, share_, *counts).blocks : std::vector<RowBlock>()) {
    sparse_.at(block.piece).add(numbers_in(body, block), rows_in(body, block));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_unused = std::find(unused.begin(), unused.end(), share_.pieces[i].parameter) != unused.end();
    if (const auto sparse = sparse_.find(i); sparse != sparse_.end()) {
      if (!counts && !is_unused) {
        const at::Tensor all = piece_in(body, i).flatten(1);
        const at::Tensor numbers = rows_with_values(all);
        sparse->second.add(numbers, all.index_select(0, numbers));
      }
      continue;
    }
    at::Tensor sum = tensors_[i].grad();
    if (!is_unused) {
      if (tensors_[i].scalar_type() == at::kFloat &&
          is_small(tensors_[i].nbytes())) { // an operator costs more than the sum
        add_floats(sum, body.data() + share_.pieces[i].offset, used_[i]);
      } else {
        const at::Tensor one = piece_in(body, i);
        used_[i] ? sum.add_(one) : sum.copy_(one);
      }
      used_[i] = true;
    } else if (!used_[i]) {
      sum.zero_();
    }
  }
}

double Shard::squared_norm() const {
  double sum = optimizer_ ? optimizer_->squared_grad_norm().item<double>() : 0;
  for (const auto& [piece, rows] : sparse_) {
    sum += optim::squared_norm(rows.gradients());
  }
  return sum;
}

Shard::Changes Shard::changes_since(int64_t version) const {
  Changes changes;
  for (const auto& [piece, rows] : sparse_) {
    changes.rows.push_back(rows.since(version));
    changes.counts.push_back(changes.rows.back().numel());
  }
  changes.layout = row_layout(parameters_, share_, changes.counts);
  return changes;
}

void Shard::get_changes(std::span<std::byte> body, const Changes& changes) const {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!sparse_.contains(i)) {
      get_piece(body, i);
    }
  }
  for (size_t s = 0; s < changes.rows.size(); ++s) {
    const RowBlock& block = changes.layout.blocks[s];
    const at::Tensor numbers = changes.rows[s] + share_.pieces[block.piece].begin;
    std::memcpy(body.data() + block.numbers, numbers.const_data_ptr(), numbers.nbytes());
    rows_in(body, block).copy_(tensors_[block.piece].flatten(1).index_select(0, changes.rows[s]));
  }
}

void Shard::step(double lr, std::optional<optim::Betas> betas, double factor) {
  if (!optimizer_) {
    ++steps_;
    return;
  }
  const torch::NoGradGuard no_grad;
  optimizer_->begin_step(lr, betas, factor);
  std::vector<std::vector<bool>> left_out(buffers_.size());
  for (size_t b = 0; b < buffers_.size(); ++b) {
    left_out[b].assign(buffers_[b]->count(), false);
  }
  bool any = false;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [b, n] = places_[i];
    if (const auto sparse = sparse_.find(i); sparse != sparse_.end()) {
      optimizer_->step_rows(b, n, sparse->second.touched());
      sparse->second.change_touched(version_ + 1);
    } else {
      left_out[b][n] = !used_[i];
      any = any || !used_[i];
    }
  }
  ++version_;
  for (int64_t b = 0; any && b < std::ssize(buffers_); ++b) {
    optimizer_->leave_out(b, left_out[b]);
  }
  if (optimizer_->needs_norms()) {
    optimizer_->prepare();
  }
  for (int64_t b = 0; b < std::ssize(buffers_); ++b) {
    for (int64_t k = 0; k < std::ssize(buffers_[b]->layout().buckets()); ++k) {
      optimizer_->step_bucket(b, k);
    }
  }
}

void Shard::visit_arrays(const std::function<void(size_t, size_t, const at::Tensor&, int64_t)>& visit, bool modifies) {
  if (!optimizer_) {
    return;
  }
  const torch::NoGradGuard no_grad;
  optimizer_->for_each_state(
      [&](const std::string& name, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
        const auto array = std::find(arrays_.begin(), arrays_.end(), name) - arrays_.begin();
        visit(static_cast<size_t>(array), piece_of_.at(tensor.name), values, begin);
      },
      modifies);
}

void Shard::get_arrays(std::span<std::byte> body) {
  visit_arrays(
      [&](size_t array, size_t piece, const at::Tensor& values, int64_t begin) {
        const at::Tensor as_float = values.to(at::kFloat).contiguous();
        std::memcpy(body.data() + static_cast<int64_t>(array) * layout_.bytes + layout_.offsets[piece] + begin * kFloat,
                    as_float.const_data_ptr(), as_float.nbytes());
      },
      false);
}

void Shard::set_arrays(std::span<const std::byte> body) {
  visit_arrays(
      [&](size_t array, size_t piece, const at::Tensor& values, int64_t begin) {
        at::Tensor as_float = torch::empty(values.sizes(), at::kFloat);
        std::memcpy(as_float.mutable_data_ptr(),
                    body.data() + static_cast<int64_t>(array) * layout_.bytes + layout_.offsets[piece] + begin * kFloat,
                    as_float.nbytes());
        at::Tensor(values).copy_(as_float);
      },
      true);
}

void Shard::save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata) {
  std::vector<checkpoint::NamedTensor> named;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    named.push_back({concat(kParameter, '/', parameters_[share_.pieces[i].parameter].name), tensors_[i].detach()});
  }
  visit_arrays(
      [&](size_t array, size_t piece, const at::Tensor& values, int64_t begin) {
        if (begin != 0 || values.numel() != tensors_[piece].numel()) {
          throw Error("server", concat("state ", arrays_[array], " of \"",
                                       parameters_[share_.pieces[piece].parameter].name, "\" is in several pieces"));
        }
        named.push_back({concat(arrays_[array], '/', parameters_[share_.pieces[piece].parameter].name), values});
      },
      false);
  checkpoint::write_safetensors(file, named, metadata);
}

void Shard::load(const std::filesystem::path& file) {
  const torch::NoGradGuard no_grad;
  const auto saved = checkpoint::Safetensors::open(file);
  const auto read = [&](const std::string& name, const at::Tensor& values) {
    const at::Tensor there = saved.tensor(name);
    if (there.numel() != values.numel()) {
      throw InputError("server",
                       concat(file.string(), ": \"", name, "\" has ", there.numel(), " elements, this server's piece ",
                              values.numel()),
                       "It belongs to another model or number of servers: use another folder, or start over.");
    }
    at::Tensor(values).copy_(there.view(values.sizes()));
  };
  for (size_t i = 0; i < tensors_.size(); ++i) {
    read(concat(kParameter, '/', parameters_[share_.pieces[i].parameter].name), tensors_[i]);
  }
  visit_arrays(
      [&](size_t array, size_t piece, const at::Tensor& values, int64_t) {
        read(concat(arrays_[array], '/', parameters_[share_.pieces[piece].parameter].name), values);
      },
      true);
  change_all();
}

} // namespace trireme::parallel::server
