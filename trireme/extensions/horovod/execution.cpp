#include <trireme/extensions/horovod/execution.h>

#include <trireme/base/error.h>
#include <trireme/extensions/horovod/adasum.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace trireme::horovod {
namespace {

int64_t numel_of(const Shape& shape) {
  return c10::multiply_integers(shape);
}

int64_t numel_of(const Request& request) {
  return std::accumulate(request.shapes.begin(), request.shapes.end(), int64_t{0},
                         [](int64_t sum, const Shape& shape) { return sum + numel_of(shape); });
}

int64_t bytes_of(const Response& response) {
  return numel_of(response.any()) * static_cast<int64_t>(c10::elementSize(response.any().type));
}

comm::ReduceOp plain_op(Op op) {
  return op == Op::min ? comm::ReduceOp::min : op == Op::max ? comm::ReduceOp::max : comm::ReduceOp::sum;
}

// Tensors made in inference mode can only be changed in inference mode.
void write(at::Tensor output, const at::Tensor& values) {
  const c10::InferenceMode mode(output.is_inference());
  output.copy_(values);
}

int64_t contributors(const Response& response) {
  return std::count_if(response.of_rank.begin(), response.of_rank.end(),
                       [](const auto& request) { return request.has_value(); });
}

Shape with_rows(Shape shape, int64_t rows) {
  shape[0] = rows;
  return shape;
}

} // namespace

int64_t rows_of_rank(int64_t rows, int rank, int ranks) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

Execution::Execution(comm::Group group, int64_t fusion_bytes, at::Device device)
    : group_(std::move(group)), fusion_bytes_(fusion_bytes), last_device_(device) {}

bool Execution::fits(const Batch& batch, const Response& next) const {
  const Request& a = batch.front()->any();
  const Request& b = next.any();
  if (!next.error.empty() || b.kind != Kind::allreduce || a.type != b.type || a.op != b.op || a.op == Op::adasum ||
      a.prescale != b.prescale || a.postscale != b.postscale || a.on_device != b.on_device ||
      contributors(*batch.front()) != contributors(next)) {
    return false;
  }
  const int64_t bytes = std::accumulate(batch.begin(), batch.end(), int64_t{0},
                                        [](int64_t sum, const Response* one) { return sum + bytes_of(*one); });
  return bytes + bytes_of(next) <= fusion_bytes_;
}

at::Device Execution::device_of(const Request& request, const Operands* operands) {
  if (!request.on_device) {
    return at::kCPU;
  }
  if (operands != nullptr) {
    last_device_ = operands->inputs.front().device();
  }
  return last_device_;
}

void Execution::run(const std::vector<Response>& responses,
                    const std::function<Operands*(const Response&)>& operands_of,
                    const std::function<void(const Response&)>& finished) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < responses.size();) {
    const Response& first = responses[i];
    if (!first.error.empty() || first.any().kind != Kind::allreduce) {
      if (first.error.empty()) {
        run_one(first, operands_of(first));
      }
      finished(first);
      ++i;
      continue;
    }
    Batch batch;
    std::vector<Operands*> operands;
    do {
      batch.push_back(&responses[i]);
      operands.push_back(operands_of(responses[i]));
      ++i;
    } while (i < responses.size() && fits(batch, responses[i]));
    allreduce(batch, operands);
    for (const Response* const one : batch) {
      finished(*one);
    }
  }
}

void Execution::reduce(const at::Tensor& flat, const Request& request) {
  if (request.op == Op::adasum) {
    adasum(group_, flat);
  } else if (request.op == Op::product) {
    const at::Tensor all = group_.allocate(flat.numel() * group_.size(), flat.scalar_type(), flat.device());
    group_.all_gather(all, flat, request.name).wait();
    at::Tensor(flat).copy_(all.view({group_.size(), flat.numel()}).prod(0, false, flat.scalar_type()));
  } else {
    group_.all_reduce(flat, plain_op(request.op), request.name).wait();
  }
}

void Execution::allreduce(const Batch& batch, const std::vector<Operands*>& operands) {
  const Request& request = batch.front()->any();
  const auto there = std::find_if(operands.begin(), operands.end(), [](const Operands* one) { return one != nullptr; });
  const at::Device device = device_of(request, there == operands.end() ? nullptr : *there);
  const c10::Stream stream = streams_.on(device);
  const device::OnStream on(stream);
  const int64_t numel = std::accumulate(batch.begin(), batch.end(), int64_t{0},
                                        [](int64_t sum, const Response* one) { return sum + numel_of(one->any()); });
  at::Tensor flat = group_.allocate(numel, request.type, device);
  int64_t begin = 0;
  const auto for_each = [&](const auto& f) { // f(operands, index of the tensor, its part of `flat`)
    begin = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      const std::vector<Shape>& shapes = batch[i]->any().shapes;
      for (size_t t = 0; t < shapes.size(); ++t) {
        const at::Tensor place = flat.slice(0, begin, begin + numel_of(shapes[t])).view(shapes[t]);
        begin += place.numel();
        f(operands[i], t, place);
      }
    }
  };
  for (Operands* const one : operands) {
    if (one != nullptr) {
      one->ready.block(stream);
    }
  }
  for_each([&](Operands* mine, size_t t, const at::Tensor& place) {
    if (mine != nullptr) {
      at::Tensor(place).copy_(mine->inputs[t]);
    } else {
      at::Tensor(place).zero_();
    }
  });
  if (request.prescale != 1) {
    flat.mul_(request.prescale);
  }
  if (request.op == Op::adasum) { // each tensor has its own direction
    for_each([&](Operands*, size_t, const at::Tensor& place) { reduce(place, request); });
  } else {
    reduce(flat, request);
  }
  const double scale =
      request.postscale / (request.op == Op::average ? static_cast<double>(contributors(*batch.front())) : 1.0);
  if (scale != 1) {
    flat.mul_(scale);
  }
  for_each([&](Operands* mine, size_t t, const at::Tensor& place) {
    if (mine == nullptr) {
      return;
    }
    if (mine->outputs.size() <= t) {
      mine->outputs.push_back(at::empty(place.sizes(), mine->output_options(place)));
    }
    write(mine->outputs[t], place);
    device::record_stream(mine->inputs[t], stream);
    device::record_stream(mine->outputs[t], stream);
  });
  for (Operands* const one : operands) {
    if (one != nullptr) {
      one->done = device::Event(device.type());
      one->done.record(stream);
    }
  }
}

void Execution::run_one(const Response& response, Operands* operands) {
  const Request& request = response.any();
  if (request.kind == Kind::barrier || request.kind == Kind::join) { // done once all ranks have requested it
    return;
  }
  const at::Device device = device_of(request, operands);
  const c10::Stream stream = streams_.on(device);
  const device::OnStream on(stream);
  operands->ready.block(stream);
  if (request.kind == Kind::broadcast) {
    const at::Tensor& input = operands->inputs.front();
    at::Tensor moved = group_.allocate(input.numel(), input.scalar_type(), device);
    if (group_.rank() == request.root) {
      moved.copy_(input.reshape(-1));
    }
    group_.broadcast(moved, request.root, request.name).wait();
    if (operands->outputs.empty()) {
      operands->outputs.push_back(at::empty(input.sizes(), input.options()));
    }
    write(operands->outputs.front(), moved.view(input.sizes()));
  } else if (request.kind == Kind::allgather) {
    allgather(response, *operands);
  } else if (request.kind == Kind::alltoall) {
    alltoall(response, *operands);
  } else {
    reducescatter(response, *operands);
  }
  for (const auto* const tensors : {&operands->inputs, &operands->outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      device::record_stream(tensor, stream);
    }
  }
  operands->done = device::Event(device.type());
  operands->done.record(stream);
}

// Ranks may have different numbers of rows; each sends as many as the largest.
void Execution::allgather(const Response& response, Operands& operands) {
  const at::Tensor& input = operands.inputs.front();
  int64_t most = 0;
  for (const auto& request : response.of_rank) {
    most = std::max(most, request->shapes.front()[0]);
  }
  const int64_t row = input.dim() == 0 ? 1 : c10::multiply_integers(input.sizes().slice(1));
  const at::Tensor mine = group_.allocate(most * row, input.scalar_type(), input.device());
  const at::Tensor all = group_.allocate(most * row * group_.size(), input.scalar_type(), input.device());
  mine.slice(0, 0, input.numel()).copy_(input.reshape(-1));
  mine.slice(0, input.numel()).zero_();
  group_.all_gather(all, mine, response.name).wait();
  std::vector<at::Tensor> parts;
  operands.received.clear();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Shape& shape = response.of_rank[static_cast<size_t>(rank)]->shapes.front();
    parts.push_back(all.slice(0, rank * most * row, rank * most * row + numel_of(shape)).view(shape));
    operands.received.push_back(shape[0]);
  }
  operands.outputs = {at::cat(parts)};
}

void Execution::alltoall(const Response& response, Operands& operands) {
  const at::Tensor& input = operands.inputs.front();
  const auto splits_of = [&](int rank) -> const std::vector<int64_t>& {
    return response.of_rank[static_cast<size_t>(rank)]->splits;
  };
  int64_t most = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    most = std::max(most, *std::max_element(splits_of(rank).begin(), splits_of(rank).end()));
  }
  const int64_t row = c10::multiply_integers(input.sizes().slice(1));
  const at::Tensor sent = group_.allocate(most * row * group_.size(), input.scalar_type(), input.device()).zero_();
  const at::Tensor got = group_.allocate(most * row * group_.size(), input.scalar_type(), input.device());
  const at::Tensor rows = input.reshape({input.size(0), row});
  int64_t begin = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t count = splits_of(group_.rank())[static_cast<size_t>(rank)];
    sent.slice(0, rank * most * row, (rank * most + count) * row)
        .copy_(rows.slice(0, begin, begin + count).reshape(-1));
    begin += count;
  }
  group_.all_to_all(got, sent, response.name).wait();
  std::vector<at::Tensor> parts;
  operands.received.clear();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t count = splits_of(rank)[static_cast<size_t>(group_.rank())];
    operands.received.push_back(count);
    parts.push_back(
        got.slice(0, rank * most * row, (rank * most + count) * row).view(with_rows(input.sizes().vec(), count)));
  }
  operands.outputs = {at::cat(parts)};
}

void Execution::reducescatter(const Response& response, Operands& operands) {
  const Request& request = response.any();
  const at::Tensor& input = operands.inputs.front();
  const int ranks = group_.size();
  const int64_t most = rows_of_rank(input.size(0), 0, ranks);
  const int64_t row = c10::multiply_integers(input.sizes().slice(1));
  const at::Tensor whole = group_.allocate(most * row * ranks, input.scalar_type(), input.device()).zero_();
  at::Tensor mine = group_.allocate(most * row, input.scalar_type(), input.device());
  int64_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t count = rows_of_rank(input.size(0), rank, ranks);
    whole.slice(0, rank * most * row, (rank * most + count) * row)
        .copy_(input.slice(0, begin, begin + count).reshape(-1));
    begin += count;
  }
  if (request.prescale != 1) {
    at::Tensor(whole).mul_(request.prescale);
  }
  group_.reduce_scatter(mine, whole, plain_op(request.op), request.name).wait();
  const double scale = request.postscale / (request.op == Op::average ? ranks : 1);
  if (scale != 1) {
    mine.mul_(scale);
  }
  const int64_t count = rows_of_rank(input.size(0), group_.rank(), ranks);
  operands.outputs = {mine.slice(0, 0, count * row).view(with_rows(input.sizes().vec(), count)).clone()};
}

} // namespace trireme::horovod
