#include <trireme/optim/shard_check.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>

namespace trireme::optim {
namespace {

const char* short_name(at::ScalarType type) {
  return type == at::kFloat      ? "fp32"
         : type == at::kBFloat16 ? "bf16"
         : type == at::kHalf     ? "fp16"
         : type == at::kDouble   ? "fp64"
         : type == at::kInt      ? "int32"
                                 : "uint8";
}

} // namespace

void check_flat(const at::Tensor& tensor, const std::string& what, std::initializer_list<at::ScalarType> types,
                at::Device device) {
  std::vector<std::string> names;
  bool known = false;
  for (const at::ScalarType type : types) {
    names.emplace_back(short_name(type));
    known = known || (tensor.defined() && tensor.scalar_type() == type);
  }
  const std::string expected = join(names, " or ");
  if (!tensor.defined()) {
    throw Error("optim", concat(what, " is an undefined tensor, expected a flat ", expected, " array."));
  }
  if (tensor.dim() != 1 || !known || !tensor.is_contiguous() || tensor.device() != device) {
    throw Error(
        "optim",
        concat(what, " must be a contiguous ", expected, " array [n] on ", device, ", got ", tensor.scalar_type(), ' ',
               tensor.sizes(), " on ", tensor.device(), tensor.is_contiguous() ? "" : ", not contiguous", '.'),
        "Pass the flat buffer or a slice of it.");
  }
}

void check_shard(const ShardStep& shard, const Optimizer& optimizer) {
  const std::string prefix = std::string(optimizer.name()) + ": ";
  const at::Device device = shard.param.defined() ? shard.param.device() : at::kCPU;
  const auto check = [&](const at::Tensor& tensor, const std::string& name,
                         std::initializer_list<at::ScalarType> types) {
    check_flat(tensor, prefix + name, types, device);
    if (tensor.numel() != shard.param.numel()) {
      throw Error("optim", concat(prefix, name, " has ", tensor.numel(), " elements, the parameters have ",
                                  shard.param.numel(), '.'));
    }
  };
  check(shard.param, "param", {at::kFloat});
  check(shard.grad, "grad", {at::kFloat, at::kBFloat16, at::kHalf});
  if (shard.param_copy.defined()) {
    check(shard.param_copy, "param_copy", {at::kBFloat16, at::kHalf});
  }
  if (shard.device_grad_scale.defined()) {
    check_flat(shard.device_grad_scale, prefix + "device_grad_scale", {at::kFloat}, device);
  }
  if (shard.step_scalars.defined()) {
    check_flat(shard.step_scalars.reshape({-1}), prefix + "step_scalars", {at::kInt}, device);
  }
  const auto& infos = optimizer.states();
  const size_t scales = optimizer.state_type() == StateType::int8 ? infos.size() : 0;
  if (shard.states.size() != infos.size() || shard.scales.size() != scales) {
    throw Error("optim", concat(prefix, "needs ", infos.size(), " states and ", scales, " arrays of scales, got ",
                                shard.states.size(), " and ", shard.scales.size(), '.'));
  }
  for (size_t i = 0; i < infos.size(); ++i) {
    check(shard.states[i], infos[i].name, {scalar_type(optimizer.state_type())});
  }
  int64_t blocks = 0;
  const Segments segments = segments_of(shard);
  for (const Segment& segment : segments.span()) {
    blocks = std::max(blocks, segment.first_block + blocks_of(segment.end - segment.begin));
  }
  for (size_t i = 0; i < scales; ++i) {
    check_flat(shard.scales[i], concat(prefix, "scales of ", infos[i].name), {at::kFloat}, device);
    if (shard.scales[i].numel() < blocks) {
      throw Error("optim", concat(prefix, "scales of ", infos[i].name, " has ", shard.scales[i].numel(), " elements, ",
                                  blocks, " are needed."));
    }
  }
}

void check_option(bool holds, const char* optimizer, const char* option, const char* range, double value) {
  if (!holds) {
    throw InputError("optim", concat(optimizer, ": ", option, " must be ", range, ", got ", value, '.'));
  }
}

kernels::Element element_of(at::ScalarType type) {
  using kernels::Element;
  return type == at::kBFloat16 ? Element::bf16
         : type == at::kHalf   ? Element::f16
         : type == at::kByte   ? Element::u8
                               : Element::f32;
}

void set_arrays(kernels::StepArgs& args, const ShardStep& shard) {
  args.param = shard.param.mutable_data_ptr<float>();
  args.grad = shard.grad.const_data_ptr();
  args.grad_type = element_of(shard.grad.scalar_type());
  if (shard.param_copy.defined()) {
    args.param_copy = shard.param_copy.mutable_data_ptr();
    args.copy_type = element_of(shard.param_copy.scalar_type());
  }
  args.grad_scale = static_cast<float>(shard.grad_scale);
  if (shard.device_grad_scale.defined()) {
    args.device_grad_scale = shard.device_grad_scale.const_data_ptr<float>();
  }
  args.host_rows = shard.rows.empty() ? nullptr : shard.rows.data();
  if (shard.step_scalars.defined()) {
    args.step_scalars = static_cast<const kernels::StepScalars*>(shard.step_scalars.const_data_ptr());
  }
}

Segments segments_of(const ShardStep& shard) {
  return shard.rows.empty() && !shard.step_scalars.defined() ? Segments{{{0, shard.param.numel()}}, {}}
                                                             : Segments{{}, shard.segments};
}

kernels::StateArray state_array(const ShardStep& shard, size_t i) {
  const at::Tensor& state = shard.states[i];
  return {state.mutable_data_ptr(), element_of(state.scalar_type()),
          shard.scales.empty() ? nullptr : shard.scales[i].mutable_data_ptr<float>()};
}

} // namespace trireme::optim
