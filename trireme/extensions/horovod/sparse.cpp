#include <trireme/base/error.h>
#include <trireme/extensions/horovod/horovod.h>

#include <ATen/ATen.h>

namespace trireme::horovod {

SparseHandle sparse_allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  const std::string what =
      options.name.empty() ? "sparse_allreduce without a name" : concat("sparse_allreduce of \"", options.name, '"');
  if (!tensor.defined() || tensor.layout() != at::kSparse || !tensor.is_floating_point()) {
    throw InputError("horovod", concat(what, ": not a sparse tensor (COO) of floating-point numbers"),
                     "Use allreduce() for other tensors.");
  }
  if (options.op != Op::average && options.op != Op::sum) {
    throw InputError("horovod", concat(what, " does not support ", name_of(options.op)), "Use Op::average or Op::sum.");
  }
  const at::Tensor mine = tensor.detach().coalesce();
  const bool half = options.compression == Compression::fp16;
  return {.indices = allgather_async(mine.indices().t().contiguous(), options.name, options.process_set),
          .values = allgather_async(half ? mine.values().to(at::kHalf) : mine.values(),
                                    options.name.empty() ? "" : options.name + " (values)", options.process_set),
          .sizes = tensor.sizes().vec(),
          .type = tensor.scalar_type(),
          .scale = options.prescale * options.postscale / (options.op == Op::average ? options.process_set.size() : 1)};
}

at::Tensor sparse_allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return synchronize(sparse_allreduce_async(tensor, options));
}

at::Tensor synchronize(const SparseHandle& handle) {
  const at::Tensor indices = synchronize(handle.indices).t();
  const at::Tensor values = synchronize(handle.values).to(handle.type);
  return at::sparse_coo_tensor(indices, values * handle.scale, handle.sizes).coalesce();
}

} // namespace trireme::horovod
