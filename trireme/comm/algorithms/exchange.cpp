#include <trireme/comm/algorithms/exchange.h>

#include <trireme/comm/reduce.h>

#include <algorithm>

namespace trireme::comm {
namespace {

/// Separates these messages from a pipeline's in the same group.
constexpr int kTag = 32101;

} // namespace

Exchange::Exchange(const Group& group, const at::Tensor& tensor, ReduceOp op)
    : group_(group), element_(element_of(tensor.scalar_type(), "all_reduce", "messages")), combine_(combine_of(op)) {
  if (!tensor.device().is_cpu() || !tensor.is_contiguous()) {
    throw Error("comm",
                concat("all_reduce over messages in group \"", group.name(), "\" needs a contiguous CPU tensor."),
                "Pass tensor.cpu().contiguous().");
  }
  flat_ = tensor.detach().view(-1);
}

int64_t Exchange::segment(Arrival arrival, const Block& block) const {
  const auto elements = kSegmentBytes / static_cast<int64_t>(flat_.element_size());
  return arrival == Arrival::combine ? std::min(elements, block.count()) : block.count();
}

void Exchange::step(int to, Block out, int from, Block in, Arrival arrival) {
  if (to == kNobody && from == kNobody) {
    return;
  }
  ++traffic_.steps;
  std::vector<Work> sent;
  Work received;
  // The receive is posted first, so that an early message needs no buffer.
  if (from != kNobody && arrival == Arrival::replace && in.count() > 0) {
    received = group_.recv(flat_.narrow(0, in.begin, in.count()), from, kTag);
  }
  if (to != kNobody) {
    send(to, out, arrival, sent);
  }
  if (from != kNobody && arrival == Arrival::combine) {
    receive_and_combine(from, in);
  }
  received.wait();
  for (auto& work : sent) {
    work.wait();
  }
}

void Exchange::send(int to, Block block, Arrival arrival, std::vector<Work>& sent) {
  const int64_t step = segment(arrival, block);
  for (int64_t begin = block.begin; begin < block.end; begin += step) {
    const int64_t count = std::min(step, block.end - begin);
    sent.push_back(group_.send(flat_.narrow(0, begin, count), to, kTag));
    ++traffic_.messages;
    traffic_.bytes_sent += count * static_cast<int64_t>(flat_.element_size());
  }
}

void Exchange::receive_and_combine(int from, Block block) {
  const int64_t step = segment(Arrival::combine, block);
  const int64_t segments = step == 0 ? 0 : (block.count() + step - 1) / step;
  std::array<Work, 2> works;
  const auto post = [&](int64_t index) {
    auto& buffer = arrived_[index % 2];
    if (!buffer.defined() || buffer.numel() < step) {
      buffer = group_.allocate(step, flat_.scalar_type());
    }
    const int64_t begin = block.begin + index * step;
    works[index % 2] = group_.recv(buffer.narrow(0, 0, std::min(step, block.end - begin)), from, kTag);
  };
  if (segments > 0) {
    post(0);
  }
  for (int64_t index = 0; index < segments; ++index) {
    if (index + 1 < segments) {
      post(index + 1);
    }
    works[index % 2].wait();
    const int64_t begin = block.begin + index * step;
    combine({begin, std::min(begin + step, block.end)}, arrived_[index % 2]);
  }
}

void Exchange::combine(Block block, const at::Tensor& arrived) {
  auto* const mine =
      static_cast<std::byte*>(flat_.data_ptr()) + block.begin * static_cast<int64_t>(flat_.element_size());
  const std::array<const void*, 2> in = {mine, arrived.const_data_ptr()};
  void* const out = mine;
  kernels::CombineArgs args;
  args.in = in.data();
  args.inputs = 2;
  args.out = &out;
  args.outputs = 1;
  args.element = element_;
  args.combine = combine_;
  kernels::active_kernels().combine(args, 0, block.count());
}

} // namespace trireme::comm
