#include <trireme/parallel/tensor/split.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>
#include <trireme/device/host_scalars.h>
#include <trireme/parallel/tensor/split_mark.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace trireme::tensor {

struct SplitModel::Entry {
  std::string name;
  at::Tensor parameter;
  std::shared_ptr<const SplitParameter> split; ///< null: every rank has it whole
};

namespace {

using Kind = SplitRule::Kind;

/// A parameter with one of its names.
struct Named {
  std::string name;
  std::string module_name;
  std::string key;
  torch::nn::Module* module = nullptr;
  at::Tensor parameter;
};

std::vector<Named> named_parameters(torch::nn::Module& model) {
  std::vector<Named> out;
  for (const auto& module : model.named_modules("", false)) {
    for (const auto& parameter : module.value()->named_parameters(false)) {
      out.push_back({concat(module.key(), '.', parameter.key()), module.key(), parameter.key(), module.value().get(),
                     parameter.value()});
    }
  }
  for (const auto& parameter : model.named_parameters(false)) { // the module's shared_ptr may not exist
    out.push_back({parameter.key(), "", parameter.key(), &model, parameter.value()});
  }
  return out;
}

void check_agreement(const std::vector<Named>& parameters, const std::vector<SplitRule>& rules,
                     const comm::Group& ranks) {
  uint64_t hash = kFnv1aStart;
  for (const Named& p : parameters) {
    hash = fnv1a(concat(p.name, ' ', p.parameter.sizes(), ' ', p.parameter.scalar_type(), '\n'), hash);
  }
  for (const SplitRule& rule : rules) {
    hash = fnv1a(concat(kind_name(rule.kind), ' ', rule.grain, ' ', rule.blocks, ' ', rule.pattern, '\n'), hash);
  }
  const at::Tensor least = at::empty({2}, at::kLong);
  least[0] = static_cast<int64_t>(hash);
  least[1] = ~static_cast<int64_t>(hash); // the least of these is the largest hash's
  ranks.all_reduce(least, comm::ReduceOp::min, "names of the model to split").wait();
  if (least[0].item<int64_t>() != ~least[1].item<int64_t>()) {
    throw InputError(kPart,
                     concat("the ", ranks.size(), " ranks of ", ranks.name(),
                            " have models with different names, shapes or types, or different rules"),
                     "Build the same model with the same rules on every rank.");
  }
}

// True if the rule of a module's weight also decides about this parameter.
bool goes_with_weight(const Named& p, const std::vector<Named>& all) {
  return p.key == "bias" && std::ranges::any_of(all, [&](const Named& other) {
           return other.module == p.module && other.key == "weight";
         });
}

[[noreturn]] void cannot(const Named& p, const SplitRule& rule, const std::string& why) {
  throw InputError(kPart,
                   concat("the pattern \"", rule.pattern, "\" (", kind_name(rule.kind), ") matches ", p.name, ' ',
                          p.parameter.sizes(), ", which cannot be split: ", why),
                   "Make the pattern narrower, or put a rule of kind skip for it in front.");
}

std::shared_ptr<SplitParameter> make_split(const Named& p, const SplitRule& rule, const comm::Group& ranks) {
  const bool bias = p.parameter.dim() == 1 && rule.kind == Kind::column && p.key != "weight";
  if (p.parameter.dim() != 2 && !bias) {
    cannot(p, rule, "only weights of two dimensions can be, and biases of column layers");
  }
  if (!p.parameter.is_floating_point() || p.parameter.layout() != at::kStrided) {
    cannot(p, rule, "it is not a dense tensor of floating-point numbers");
  }
  if (p.module->as<torch::nn::MultiheadAttention>() != nullptr) {
    cannot(p, rule,
           "nn::MultiheadAttention uses its weights in one piece; write attention with a Linear each for query, key "
           "and value");
  }
  const auto* embedding = p.module->as<torch::nn::Embedding>();
  if (embedding != nullptr && rule.kind == Kind::row) {
    cannot(p, rule, "an embedding is split by vocabulary");
  }
  if (embedding != nullptr && (embedding->options.max_norm() || embedding->options.scale_grad_by_freq())) {
    cannot(p, rule, "max_norm and scale_grad_by_freq need the full embedding");
  }
  if (p.parameter.grad().defined() || !p.parameter.is_leaf() ||
      torch::autograd::impl::try_get_grad_accumulator(p.parameter)) {
    cannot(p, rule, "it already has hooks or was in a backward pass; split the model right after building it");
  }
  auto out = std::make_shared<SplitParameter>();
  out->name = p.name;
  out->kind = rule.kind;
  out->ranks.group = ranks;
  out->whole = p.parameter.sizes().vec();
  out->dim = rule.kind == Kind::row ? 1 : 0;
  out->grain = rule.kind == Kind::row || rule.kind == Kind::column ? std::max<int64_t>(rule.grain, 1) : 1;
  out->blocks = rule.kind == Kind::column ? std::max<int64_t>(rule.blocks, 1) : 1;
  const int64_t size = out->whole[out->dim] / out->blocks;
  if (size * out->blocks != out->whole[out->dim]) {
    cannot(p, rule, concat("its rows are not ", out->blocks, " equal blocks"));
  }
  out->part = part_in_grains(size, out->grain, ranks.rank(), ranks.size());
  if (part_in_grains(size, out->grain, ranks.size() - 1, ranks.size()).size() == 0) {
    cannot(p, rule,
           concat("dim ", out->dim, " has fewer parts of ", out->grain, " than there are ranks (", ranks.size(), ')'));
  }
  if (embedding != nullptr) {
    out->padding_idx = embedding->options.padding_idx();
  }
  return out;
}

// Both split rows, and both return all logits on every rank.
bool same_split(const SplitParameter& a, const SplitParameter& b) {
  const auto joined = [](Kind kind) { return kind == Kind::vocabulary || kind == Kind::column_gathered; };
  return a.part.begin == b.part.begin && a.part.end == b.part.end && a.blocks == b.blocks && a.dim == b.dim &&
         (a.kind == b.kind || (joined(a.kind) && joined(b.kind)));
}

using Splits = std::unordered_map<c10::TensorImpl*, std::shared_ptr<SplitParameter>>;

void add_split(const Named& p, std::shared_ptr<SplitParameter> split, Splits& out) {
  const auto [found, is_new] = out.emplace(p.parameter.unsafeGetTensorImpl(), split);
  if (is_new) {
    return;
  }
  SplitParameter& first = *found->second;
  if (!same_split(first, *split)) {
    throw InputError(kPart,
                     concat(first.name, " and ", p.name, " are the same tensor (tied), but one is split as ",
                            kind_name(first.kind), ", the other as ", kind_name(split->kind)),
                     "Split a tied head as column with gather_output, or remove its rule.");
  }
  if (!first.padding_idx) {
    first.padding_idx = split->padding_idx;
  }
}

std::vector<std::string> modules_with_weights(const std::vector<Named>& parameters) {
  std::vector<std::string> out;
  for (const Named& p : parameters) {
    if (p.parameter.dim() == 2) {
      out.push_back(p.key == "weight" ? p.module_name : p.name);
    }
  }
  return out;
}

Splits plan(const std::vector<Named>& parameters, const std::vector<SplitRule>& rules, const comm::Group& ranks) {
  Splits out;
  RuleMatches matches(rules);
  bool columns = false;
  bool rows = false;
  for (const Named& p : parameters) {
    if (goes_with_weight(p, parameters)) {
      continue;
    }
    const bool weight = p.key == "weight" && !p.module_name.empty();
    const int rule =
        matches.first(weight ? std::vector<std::string>{p.name, p.module_name} : std::vector<std::string>{p.name});
    if (rule < 0 || rules[rule].kind == Kind::skip) {
      continue;
    }
    add_split(p, make_split(p, rules[rule], ranks), out);
    columns = columns || rules[rule].kind == Kind::column;
    rows = rows || rules[rule].kind == Kind::row;
  }
  matches.check_all_used(modules_with_weights(parameters));
  if (columns && !rows) {
    throw InputError(kPart, "layers are split by columns, but none by rows, which would sum up their parts",
                     "Split the layer after them by rows, or gather their output (\"gather_output\": true).");
  }
  for (const Named& p : parameters) { // a column's bias is split like its weight
    const auto weight = std::ranges::find_if(
        parameters, [&](const Named& other) { return other.module == p.module && other.key == "weight"; });
    const auto split = !goes_with_weight(p, parameters) ? out.end() : out.find(weight->parameter.unsafeGetTensorImpl());
    if (split != out.end() && split->second->kind == Kind::column) {
      add_split(
          p, make_split(p, {Kind::column, "the bias of a column", split->second->grain, split->second->blocks}, ranks),
          out);
    }
  }
  return out;
}

void broadcast(const at::Tensor& tensor, const comm::Group& ranks, const std::string& name) {
  if (tensor.numel() == 0) {
    return;
  }
  at::Tensor values = tensor.detach();
  at::Tensor dense = values.contiguous();
  ranks.broadcast(dense, 0, name).wait();
  if (!dense.is_same(values)) {
    values.copy_(dense);
  }
}

// The parameter is not split yet; keeps no copy of it.
void cut(at::Tensor parameter, const std::shared_ptr<const SplitParameter>& split) {
  const at::Tensor blocks = parameter.detach()
                                .unflatten(split->dim, {split->blocks, -1})
                                .narrow(split->dim + 1, split->part.begin, split->part.size());
  const at::Tensor part = blocks.contiguous().flatten(split->dim, split->dim + 1).clone(at::MemoryFormat::Contiguous);
  parameter.set_data(part);
  set_mark(parameter, {split, Form::same});
}

bucket::Placement placement(const SplitParameter& split) {
  bucket::Placement out;
  out.global_shape = split.whole;
  out.box_offset.assign(split.whole.size(), 0);
  out.box_offset[split.dim] = split.part.begin;
  out.parts = split.blocks;
  return out;
}

} // namespace

SplitModel::SplitModel(comm::Group ranks, std::vector<Entry> entries)
    : ranks_(std::move(ranks)), entries_(std::move(entries)) {}
SplitModel::SplitModel(SplitModel&&) noexcept = default;
SplitModel& SplitModel::operator=(SplitModel&&) noexcept = default;
SplitModel::~SplitModel() = default;

SplitModel SplitModel::split(torch::nn::Module& model, const std::vector<SplitRule>& rules, const comm::Group& ranks) {
  const std::vector<Named> parameters = named_parameters(model);
  check_agreement(parameters, rules, ranks);
  const Splits splits = plan(parameters, rules, ranks);
  const torch::NoGradGuard no_grad;
  std::vector<Entry> entries;
  std::unordered_set<c10::TensorImpl*> done;
  for (const Named& p : parameters) {
    const auto found = splits.find(p.parameter.unsafeGetTensorImpl());
    const std::shared_ptr<const SplitParameter> split = found == splits.end() ? nullptr : found->second;
    entries.push_back({p.name, p.parameter, split});
    if (ranks.size() == 1 || !done.insert(p.parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    broadcast(p.parameter, ranks, p.name);
    if (split) {
      cut(p.parameter, split);
    }
    if (auto* embedding = p.module->as<torch::nn::Embedding>(); split && embedding != nullptr) {
      embedding->options.padding_idx(std::nullopt); // it would be compared with this rank's rows; the mark knows it
    }
  }
  for (const auto& buffer : model.named_buffers()) {
    if (ranks.size() > 1 && buffer.value().defined()) {
      broadcast(buffer.value(), ranks, buffer.key());
    }
  }
  return SplitModel(ranks, std::move(entries));
}

std::optional<bucket::Placement> SplitModel::placement_of(const std::string& name) const {
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.name == name; });
  return found == entries_.end() || !found->split ? std::nullopt : std::optional(placement(*found->split));
}

Placements SplitModel::placements() const {
  Placements out;
  for (const Entry& entry : entries_) {
    if (entry.split) {
      out.emplace(entry.parameter.unsafeGetTensorImpl(), placement(*entry.split));
    }
  }
  return out;
}

std::string SplitModel::describe() const {
  size_t widest = 0;
  for (const Entry& entry : entries_) {
    widest = std::max(widest, entry.split ? entry.name.size() : 0);
  }
  std::ostringstream out;
  for (const Entry& entry : entries_) {
    if (entry.split) {
      out << std::left << std::setw(static_cast<int>(widest) + 2) << entry.name << std::setw(18)
          << kind_name(entry.split->kind) << at::IntArrayRef(entry.split->whole) << " -> " << entry.parameter.sizes()
          << '\n';
    }
  }
  return out.str();
}

bool SplitModel::check_gradients() const {
  std::vector<const Entry*> whole;
  for (const Entry& entry : entries_) {
    if (!entry.split && entry.parameter.requires_grad()) {
      whole.push_back(&entry);
    }
  }
  if (whole.empty() || ranks_.size() == 1) {
    return true;
  }
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> sums; // for each parameter: its sum, and the sum of magnitudes
  for (const Entry* const entry : whole) {
    const at::Tensor& gradient = entry->parameter.grad();
    const at::Tensor dense = gradient.defined() ? gradient.to_dense() : at::zeros({1}, entry->parameter.options());
    sums.push_back(at::stack({dense.sum(at::kDouble), dense.abs().sum(at::kDouble)}));
  }
  const at::Tensor mine = at::stack(sums);
  const at::Tensor least = at::stack({mine, -mine});
  ranks_.all_reduce(least, comm::ReduceOp::min, "gradients of whole parameters").wait();
  const at::Tensor differ = (-least[1] - least[0]).amax(-1);
  const at::Tensor size = -least[1].select(-1, 1);
  constexpr double kNoise = 1e-9;     // relative to all magnitudes: gradients that are zero except for rounding
  constexpr double kTolerance = 1e-3; // orders of additions, also in bf16; a missing rank's part is larger
  std::vector<at::Tensor> wanted = (differ - kTolerance * size - kNoise * size.sum()).unbind();
  wanted.push_back(size.sum());
  const std::vector<double> missing = device::read_scalars(wanted);
  if (!std::isfinite(missing.back())) {
    return false;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    if (!(missing[i] <= 0)) {
      throw InputError(kPart,
                       concat("the gradients of ", whole[i]->name, ", which is not split, differ between the ranks of ",
                              ranks_.name()),
                       "It acts on features that are split by columns, so each rank sees only a part of its gradient, "
                       "or the ranks draw different random numbers. Split it by a "
                       "rule of its own, use it outside of split layers, or give all ranks the same seed.");
    }
  }
  return true;
}

double SplitModel::clip_grad_norm(double max_norm) const {
  const torch::NoGradGuard no_grad;
  std::map<c10::TensorImpl*, const Entry*> once;
  const at::Device device = entries_.empty() ? at::Device(at::kCPU) : entries_.front().parameter.device();
  const at::Tensor squares =
      at::zeros({2}, at::TensorOptions(at::kDouble).device(device)); // of split parameters, and of unsplit ones
  for (const Entry& entry : entries_) {
    if (entry.parameter.grad().defined() && once.emplace(entry.parameter.unsafeGetTensorImpl(), &entry).second) {
      squares[entry.split ? 0 : 1].add_(
          at::linalg_vector_norm(entry.parameter.grad(), 2, {}, false, at::kDouble).square());
    }
  }
  if (ranks_.size() > 1) {
    ranks_.all_reduce(squares.slice(0, 0, 1), comm::ReduceOp::sum, "squares of gradients").wait();
  }
  const double norm = std::sqrt(device::read_scalars({squares.sum()}).front());
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) {
    for (const auto& [impl, entry] : once) {
      entry->parameter.grad().mul_(factor);
    }
  }
  return norm;
}

} // namespace trireme::tensor
