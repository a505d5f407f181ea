#include <trireme/parallel/server/shard.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/comm/host_memory.h>

#include <torch/utils.h>

#include <algorithm>
#include <cstring>

namespace trireme::parallel::server {
namespace {

constexpr int64_t kFloat = 4;
constexpr const char* kParameter = "parameter";

void check_optimizer(const std::vector<ParameterInfo>& parameters, const Share& share, const optim::Optimizer& rule) {
  if (rule.state_type() == optim::StateType::int8) {
    throw InputError("server", "a parameter server with 8-bit optimizer states", "Use \"state_dtype\": \"fp32\" or \"bf16\".");
  }
  if (!rule.needs_norms()) {
    return;
  }
  for (const Piece& piece : share.pieces) {
    const ParameterInfo& parameter = parameters[piece.parameter];
    if (piece.end - piece.begin < parameter.rows()) {
      throw InputError("server", concat(rule.name(), " needs the norms of whole tensors, and \"", parameter.name, "\" is cut between two servers"), "Use one server, or AdamW.");
    }
  }
}

} // namespace

at::ScalarType scalar_type(const ParameterInfo& parameter) {
  return parameter.type == "float32" ? at::kFloat : parameter.type == "bfloat16" ? at::kBFloat16 : at::kHalf;
}

Shard::Shard(std::vector<ParameterInfo> parameters, Share share, const optim::OptimizerOptions& options) : parameters_(std::move(parameters)), share_(std::move(share)) {
  const torch::NoGradGuard no_grad;
  std::map<at::ScalarType, std::pair<bucket::NamedTensors, std::vector<size_t>>> by_type;
  for (size_t i = 0; i < share_.pieces.size(); ++i) {
    const Piece& piece = share_.pieces[i];
    const ParameterInfo& parameter = parameters_[piece.parameter];
    std::vector<int64_t> sizes = parameter.shape;
    if (!sizes.empty()) {
      sizes.front() = piece.end - piece.begin;
    }
    tensors_.push_back(torch::zeros(sizes, scalar_type(parameter)).requires_grad_());
    if (!piece_of_.emplace(parameter.name, i).second) {
      throw InputError("server", concat("two parameters have the name \"", parameter.name, '"'), "Give each one of its own.");
    }
    auto& [named, pieces] = by_type[scalar_type(parameter)];
    named.emplace_back(parameter.name, tensors_.back());
    pieces.push_back(i);
  }
  layout_ = array_layout(parameters_, share_);
  const auto placement = [this](const std::string& name, const at::Tensor& tensor) {
    const Piece& piece = share_.pieces[piece_of_.at(name)];
    bucket::Placement at;
    if (tensor.dim() > 0) {
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
    buffers_.push_back(std::make_unique<bucket::FlatParameters>(named, bucket::LayoutOptions(), comm::allocate_host, bucket::FlatOptions{.gradient_type = at::kFloat, .placement_of = placement}));
    pointers.push_back(buffers_.back().get());
    for (int64_t n = 0; n < buffers_.back()->count(); ++n) {
      buffers_.back()->attach_zero_grad(n);
    }
  }
  const auto options_of = [&](const bucket::TensorInfo& tensor) {
    const ParameterInfo& parameter = parameters_[share_.pieces[piece_of_.at(tensor.name)].parameter];
    return optim::ParameterOptions{parameter.weight_decay >= 0 ? parameter.weight_decay : options.weight_decay(), parameter.lr_factor};
  };
  if (pointers.empty()) { // fewer rows than servers
    return;
  }
  optimizer_ = std::make_unique<optim::FlatOptimizer>(pointers, options_of, options);
  check_optimizer(parameters_, share_, optimizer_->rule());
  if (std::any_of(buffers_.begin(), buffers_.end(), [](const auto& buffer) { return buffer->scalar_type() != at::kFloat; })) {
    arrays_.emplace_back(optim::kMasterState);
  }
  for (const optim::StateInfo& state : optimizer_->rule().states()) {
    arrays_.push_back(state.name);
  }
}

// A view of a body's bytes; they need not be aligned to anything but their type.
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
}

void Shard::get_values(std::span<std::byte> body) const {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    piece_in(body, i).copy_(tensors_[i]);
  }
}

void Shard::begin_sum() {
  summands_ = 0;
  used_.assign(tensors_.size(), false);
}

void Shard::add(std::span<const std::byte> body, const std::vector<int64_t>& unused) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    at::Tensor sum = tensors_[i].grad();
    if (std::find(unused.begin(), unused.end(), share_.pieces[i].parameter) == unused.end()) {
      const at::Tensor one = piece_in(body, i);
      used_[i] ? sum.add_(one) : sum.copy_(one);
      used_[i] = true;
    } else if (!used_[i]) {
      sum.zero_();
    }
  }
  ++summands_;
}

double Shard::squared_norm() const {
  return optimizer_ ? optimizer_->squared_grad_norm().item<double>() : 0;
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
    left_out[places_[i].first][places_[i].second] = !used_[i];
    any = any || !used_[i];
  }
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
  visit_arrays([&](size_t array, size_t piece, const at::Tensor& values, int64_t begin) {
    const at::Tensor as_float = values.to(at::kFloat).contiguous();
    std::memcpy(body.data() + static_cast<int64_t>(array) * layout_.bytes + layout_.offsets[piece] + begin * kFloat, as_float.const_data_ptr(), as_float.nbytes());
  }, false);
}

void Shard::set_arrays(std::span<const std::byte> body) {
  visit_arrays([&](size_t array, size_t piece, const at::Tensor& values, int64_t begin) {
    at::Tensor as_float = torch::empty(values.sizes(), at::kFloat);
    std::memcpy(as_float.mutable_data_ptr(), body.data() + static_cast<int64_t>(array) * layout_.bytes + layout_.offsets[piece] + begin * kFloat, as_float.nbytes());
    at::Tensor(values).copy_(as_float);
  }, true);
}

void Shard::save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata) {
  std::vector<checkpoint::NamedTensor> named;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    named.push_back({concat(kParameter, '/', parameters_[share_.pieces[i].parameter].name), tensors_[i].detach()});
  }
  visit_arrays([&](size_t array, size_t piece, const at::Tensor& values, int64_t begin) {
    if (begin != 0 || values.numel() != tensors_[piece].numel()) {
      throw Error("server", concat("state ", arrays_[array], " of \"", parameters_[share_.pieces[piece].parameter].name, "\" is in several pieces"));
    }
    named.push_back({concat(arrays_[array], '/', parameters_[share_.pieces[piece].parameter].name), values});
  }, false);
  checkpoint::write_safetensors(file, named, metadata);
}

void Shard::load(const std::filesystem::path& file) {
  const torch::NoGradGuard no_grad;
  const auto saved = checkpoint::Safetensors::open(file);
  const auto read = [&](const std::string& name, const at::Tensor& values) {
    const at::Tensor there = saved.tensor(name);
    if (there.numel() != values.numel()) {
      throw InputError("server", concat(file.string(), ": \"", name, "\" has ", there.numel(), " elements, this server's piece ", values.numel()),
                       "It is of another model or another number of servers: use another folder, or begin anew.");
    }
    at::Tensor(values).copy_(there.view(values.sizes()));
  };
  for (size_t i = 0; i < tensors_.size(); ++i) {
    read(concat(kParameter, '/', parameters_[share_.pieces[i].parameter].name), tensors_[i]);
  }
  visit_arrays([&](size_t array, size_t piece, const at::Tensor& values, int64_t) {
    read(concat(arrays_[array], '/', parameters_[share_.pieces[piece].parameter].name), values);
  }, true);
}

} // namespace trireme::parallel::server
