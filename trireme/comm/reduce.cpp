#include <trireme/comm/reduce.h>

#include <vector>

namespace trireme::comm {

kernels::Element element_of(at::ScalarType type, const char* op, const char* carrier) {
  using kernels::Element;
  switch (type) {
    case at::kFloat:
      return Element::f32;
    case at::kDouble:
      return Element::f64;
    case at::kHalf:
      return Element::f16;
    case at::kBFloat16:
      return Element::bf16;
    case at::kByte:
      return Element::u8;
    case at::kChar:
      return Element::i8;
    case at::kShort:
      return Element::i16;
    case at::kInt:
      return Element::i32;
    case at::kLong:
      return Element::i64;
    default:
      throw Error("comm", concat(op, " of ", c10::toString(type), " is not possible over ", carrier, "."),
                  "Convert it to a type of numbers, such as float.");
  }
}

kernels::Combine combine_of(ReduceOp op) {
  return op == ReduceOp::sum   ? kernels::Combine::sum
         : op == ReduceOp::max ? kernels::Combine::max
                               : kernels::Combine::min;
}

void combine_slices(const at::Tensor& out, const at::Tensor& parts, kernels::Element element, ReduceOp op) {
  if (out.numel() == 0) {
    return;
  }
  const auto slices = static_cast<size_t>(parts.numel() / out.numel());
  const auto* first = static_cast<const std::byte*>(parts.const_data_ptr());
  std::vector<const void*> in(slices);
  for (size_t slice = 0; slice < slices; ++slice) {
    in[slice] = first + slice * out.nbytes();
  }
  void* const target = out.data_ptr();
  kernels::CombineArgs args;
  args.in = in.data();
  args.inputs = static_cast<int>(slices);
  args.out = &target;
  args.outputs = 1;
  args.element = element;
  args.combine = combine_of(op);
  kernels::active_kernels().combine(args, 0, out.numel());
}

} // namespace trireme::comm
