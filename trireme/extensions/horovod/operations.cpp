#include <trireme/base/error.h>
#include <trireme/extensions/horovod/autograd.h>
#include <trireme/extensions/horovod/horovod.h>
#include <trireme/extensions/horovod/optimizer_bytes.h>
#include <trireme/extensions/horovod/process_set.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace trireme::horovod {
namespace {

std::string quoted(const Request& request) {
  return request.name.empty() ? concat(name_of(request.kind), " without a name")
                              : concat(name_of(request.kind), " of \"", request.name, '"');
}

Request request_of(Kind kind, const std::string& name, const std::vector<at::Tensor>& tensors) {
  Request request;
  request.kind = kind;
  request.name = name;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      throw InputError("horovod", concat(quoted(request), ": an undefined tensor"), "Pass a tensor of zeros instead.");
    }
    if (tensor.layout() != at::kStrided) {
      throw InputError("horovod", concat(quoted(request), ": a sparse tensor"),
                       "Use sparse_allreduce(), or make it dense.");
    }
    if (tensor.scalar_type() != tensors.front().scalar_type() || tensor.device() != tensors.front().device()) {
      throw InputError("horovod", concat(quoted(request), ": tensors of different types or devices"),
                       "Group only tensors of one type and device.");
    }
    request.shapes.push_back(tensor.sizes().vec());
  }
  if (!tensors.empty()) {
    request.type = tensors.front().scalar_type();
    request.on_device = !tensors.front().is_cpu();
  }
  return request;
}

void check_rows(const Request& request) {
  if (request.shapes.front().empty()) {
    throw InputError("horovod", concat(quoted(request), ": a tensor without dims"), "Reshape it to [1].");
  }
}

Request reduction_of(Kind kind, const std::vector<at::Tensor>& tensors, const AllreduceOptions& options) {
  if (tensors.empty()) {
    throw InputError("horovod", concat(name_of(kind), " of no tensors"), "Pass at least one.");
  }
  Request request = request_of(kind, options.name, tensors);
  request.op = options.op;
  request.prescale = options.prescale;
  request.postscale = options.postscale;
  if (!tensors.front().is_floating_point() &&
      (options.op == Op::average || options.op == Op::adasum || options.prescale != 1 || options.postscale != 1)) {
    throw InputError(
        "horovod",
        concat(quoted(request), ": ", name_of(options.op), " of numbers of type ", at::toString(request.type)),
        "Use Op::sum without factors for integers, or a floating-point tensor.");
  }
  const int ranks = static_cast<int>(state_of(options.process_set).ranks.size());
  if (options.op == Op::adasum && (ranks & (ranks - 1)) != 0) {
    throw InputError("horovod", concat("Adasum over ", ranks, " ranks: their number must be a power of two"),
                     "Use Op::average, or another number of ranks.");
  }
  return request;
}

std::vector<at::Tensor> compressed(const std::vector<at::Tensor>& tensors, Compression compression) {
  if (compression == Compression::none) {
    return tensors;
  }
  std::vector<at::Tensor> halves;
  for (const at::Tensor& tensor : tensors) {
    halves.push_back(tensor.defined() && tensor.is_floating_point() ? tensor.to(at::kHalf) : tensor);
  }
  return halves;
}

Handle reduce_async(Kind kind, std::vector<at::Tensor> tensors, const AllreduceOptions& options, bool in_place) {
  for (at::Tensor& tensor : tensors) {
    tensor = tensor.defined() ? tensor.detach() : tensor;
  }
  std::vector<at::Tensor> sent = compressed(tensors, options.compression);
  Request request = reduction_of(kind, sent, options); // refuses undefined ones
  if (kind == Kind::reducescatter) {
    check_rows(request);
    if (options.op != Op::average && options.op != Op::sum) {
      throw InputError("horovod", concat("reducescatter does not support ", name_of(options.op)),
                       "Use Op::average or Op::sum.");
    }
  }
  const at::ScalarType type = tensors.front().scalar_type();
  return member_of(options.process_set)
      .submit(std::move(request), std::move(sent), in_place ? std::move(tensors) : std::vector<at::Tensor>(), type);
}

Handle submit_one(Kind kind, const at::Tensor& tensor, const std::string& name, const ProcessSet& set,
                  const std::function<void(Request&)>& more = nullptr, std::vector<at::Tensor> outputs = {}) {
  const at::Tensor input = tensor.defined() ? tensor.detach() : tensor;
  Request request = request_of(kind, name, {input});
  if (more) {
    more(request);
  }
  return member_of(set).submit(std::move(request), {input}, std::move(outputs));
}

// Gradients have names of their own: ranks that reach two of them in different orders must not confuse them.
std::string name_of_gradient(const Handle& handle) {
  return "gradient of " + handle->request.name;
}

} // namespace

std::vector<at::Tensor> synchronize_all(const Handle& handle) {
  handle->wait();
  return handle->operands.outputs;
}
at::Tensor synchronize(const Handle& handle) {
  return synchronize_all(handle).front();
}
bool poll(const Handle& handle) {
  return handle->done();
}

Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return reduce_async(Kind::allreduce, {tensor}, options, false);
}
at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return grouped_allreduce({tensor}, options).front();
}
Handle allreduce_async_(at::Tensor tensor, const AllreduceOptions& options) {
  return reduce_async(Kind::allreduce, {std::move(tensor)}, options, true);
}
at::Tensor allreduce_(at::Tensor tensor, const AllreduceOptions& options) {
  synchronize(allreduce_async_(tensor, options));
  return tensor;
}
Handle grouped_allreduce_async(const std::vector<at::Tensor>& tensors, const AllreduceOptions& options) {
  return reduce_async(Kind::allreduce, tensors, options, false);
}
std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors, const AllreduceOptions& options) {
  const Handle handle = grouped_allreduce_async(tensors, options);
  std::vector<at::Tensor> results = synchronize_all(handle);
  if (!follows(tensors)) {
    return results;
  }
  return with_gradient(
      tensors, std::move(results),
      [options, name = name_of_gradient(handle)](const std::vector<at::Tensor>& gradients) {
        if (options.op != Op::average && options.op != Op::sum) {
          throw InputError("horovod", concat("allreduce with ", name_of(options.op), " has no gradient (", name, ")"),
                           "Detach the tensor, or use Op::average or Op::sum.");
        }
        AllreduceOptions of_gradients = options;
        of_gradients.name = name;
        return grouped_allreduce(gradients, of_gradients);
      });
}

Handle allgather_async(const at::Tensor& tensor, const std::string& name, const ProcessSet& set) {
  return submit_one(Kind::allgather, tensor, name, set, [](Request& request) { check_rows(request); });
}
at::Tensor allgather(const at::Tensor& tensor, const std::string& name, const ProcessSet& set) {
  const Handle handle = allgather_async(tensor, name, set);
  at::Tensor result = synchronize(handle);
  if (!follows({tensor})) {
    return result;
  }
  // The gradient sums over all ranks what they have for this rank's rows.
  return with_gradient(
             {tensor}, {std::move(result)},
             [set, name = name_of_gradient(handle), rows = handle->operands.received,
              shape = tensor.sizes().vec()](const std::vector<at::Tensor>& gradients) -> std::vector<at::Tensor> {
               Shape of_all = shape;
               of_all.insert(of_all.begin(), set.size());
               return {alltoall(gradients.front(), rows, name, set).first.view(of_all).sum(0)};
             })
      .front();
}

namespace {

Handle broadcast_into(const at::Tensor& tensor, int root, const std::string& name, const ProcessSet& set,
                      std::vector<at::Tensor> outputs) {
  return submit_one(
      Kind::broadcast, tensor, name, set,
      [&](Request& request) {
        if (root < 0 || root >= set.size()) {
          throw InputError("horovod",
                           concat(quoted(request), " from rank ", root, ", but there are ", set.size(), " ranks"),
                           "Give a root from 0 to the number of ranks - 1.");
        }
        request.root = root;
      },
      std::move(outputs));
}

} // namespace

Handle broadcast_async(const at::Tensor& tensor, int root, const std::string& name, const ProcessSet& set) {
  return broadcast_into(tensor, root, name, set, {});
}
at::Tensor broadcast(const at::Tensor& tensor, int root, const std::string& name, const ProcessSet& set) {
  const Handle handle = broadcast_async(tensor, root, name, set);
  at::Tensor result = synchronize(handle);
  if (!follows({tensor})) {
    return result;
  }
  return with_gradient({tensor}, {std::move(result)},
                       [set, root, name = name_of_gradient(handle)](
                           const std::vector<at::Tensor>& gradients) -> std::vector<at::Tensor> {
                         at::Tensor sum =
                             allreduce(gradients.front(), {.name = name, .op = Op::sum, .process_set = set});
                         // Zeros are computed from the sum, so that all ranks have the same graph for second
                         // derivatives.
                         return {set.rank() == root ? std::move(sum)
                                                    : sum.masked_fill(at::ones({}, sum.options().dtype(at::kBool)), 0)};
                       })
      .front();
}
Handle broadcast_async_(at::Tensor tensor, int root, const std::string& name, const ProcessSet& set) {
  return broadcast_into(tensor, root, name, set, {tensor.defined() ? tensor.detach() : tensor});
}
at::Tensor broadcast_(at::Tensor tensor, int root, const std::string& name, const ProcessSet& set) {
  synchronize(broadcast_async_(tensor, root, name, set));
  return tensor;
}

std::pair<at::Tensor, std::vector<int64_t>> alltoall(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                                     const std::string& name, const ProcessSet& set) {
  const Handle handle = submit_one(Kind::alltoall, tensor, name, set, [&](Request& request) {
    check_rows(request);
    const int64_t rows = request.shapes.front()[0];
    request.splits = splits;
    if (splits.empty()) {
      if (rows % set.size() != 0) {
        throw InputError("horovod",
                         concat(quoted(request), ": ", rows, " rows do not divide by ", set.size(), " ranks"),
                         "Pass splits.");
      }
      request.splits.assign(static_cast<size_t>(set.size()), rows / set.size());
    }
    const bool fits =
        std::ssize(request.splits) == set.size() &&
        std::all_of(request.splits.begin(), request.splits.end(), [](int64_t split) { return split >= 0; }) &&
        std::accumulate(request.splits.begin(), request.splits.end(), int64_t{0}) == rows;
    if (!fits) {
      throw InputError("horovod",
                       concat(quoted(request), ": ", request.splits.size(), " splits for ", set.size(), " ranks and ",
                              rows, " rows"),
                       "Give one number of rows per rank, with the tensor's rows as their sum.");
    }
  });
  at::Tensor result = synchronize(handle);
  const std::vector<int64_t>& received = handle->operands.received;
  if (follows({tensor})) {
    result = with_gradient({tensor}, {std::move(result)},
                           [set, name = name_of_gradient(handle),
                            received](const std::vector<at::Tensor>& gradients) -> std::vector<at::Tensor> {
                             return {alltoall(gradients.front(), received, name, set).first};
                           })
                 .front();
  }
  return {std::move(result), received};
}

at::Tensor reducescatter(const at::Tensor& tensor, const AllreduceOptions& options) {
  const Handle handle = reduce_async(Kind::reducescatter, {tensor}, options, false);
  at::Tensor result = synchronize(handle).to(tensor.scalar_type());
  if (!follows({tensor})) {
    return result;
  }
  const double scale =
      options.prescale * options.postscale / (options.op == Op::average ? options.process_set.size() : 1);
  return with_gradient({tensor}, {std::move(result)},
                       [scale, name = name_of_gradient(handle), set = options.process_set](
                           const std::vector<at::Tensor>& gradients) -> std::vector<at::Tensor> {
                         return {allgather(gradients.front(), name, set) * scale};
                       })
      .front();
}

void barrier(const ProcessSet& set) {
  member_of(set).submit(request_of(Kind::barrier, "", {}), {})->wait();
}

int join() {
  const Handle handle = member_of({}).submit(request_of(Kind::join, "join", {}), {});
  handle->wait();
  state_of({}).number_anew(); // ranks have called different numbers of operations
  return handle->last_joined;
}

void broadcast_parameters(const std::vector<std::pair<std::string, at::Tensor>>& parameters, int root) {
  std::vector<Handle> handles;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.defined()) {
      handles.push_back(broadcast_async_(tensor, root, "broadcast." + name));
    }
  }
  for (const Handle& handle : handles) {
    handle->wait();
  }
}

std::string broadcast_bytes(const std::string& bytes, int root, const std::string& name) {
  const bool mine = rank() == root;
  const at::Tensor length = broadcast(at::full({1}, static_cast<int64_t>(mine ? bytes.size() : 0), at::kLong), root,
                                      name.empty() ? "" : "length of " + name);
  at::Tensor all = at::empty({length.item<int64_t>()}, at::kByte);
  if (mine) {
    std::copy(bytes.begin(), bytes.end(), all.mutable_data_ptr<uint8_t>());
  }
  broadcast_(all, root, name);
  return {reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()), static_cast<size_t>(all.numel())};
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root) {
  const std::string bytes = broadcast_bytes(rank() == root ? bytes_of(optimizer) : "", root, "the optimizer's state");
  if (rank() != root) {
    load_bytes(optimizer, bytes);
  }
}

} // namespace trireme::horovod
