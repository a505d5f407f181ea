#include <trireme/parallel/pipeline/message.h>

#include <trireme/base/error.h>

#include <torch/utils.h>

#include <cstring>

namespace trireme::pipeline {
namespace {

int64_t numel(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    product *= size;
  }
  return product;
}

void place(Layout& layout) {
  layout.bytes = kHeaderBytes;
  for (Layout::Entry& entry : layout.entries) {
    entry.offset = layout.bytes;
    if (entry.defined) {
      layout.bytes = aligned(layout.bytes + numel(entry.sizes) * static_cast<int64_t>(c10::elementSize(entry.type)));
    }
  }
}

} // namespace

Layout Layout::of(const Tensors& tensors) {
  if (static_cast<int64_t>(tensors.size()) > kMaxTensors) {
    throw InputError("pipeline",
                     concat("a layer sends ", tensors.size(), " tensors to the next stage, more than ", kMaxTensors),
                     "Stack some of them into one tensor.");
  }
  Layout layout;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      layout.entries.push_back({true, tensor.scalar_type(), tensor.sizes().vec(), 0});
    } else {
      layout.entries.emplace_back();
    }
  }
  place(layout);
  return layout;
}

void Layout::write(uint8_t* announcement) const {
  uint8_t* at = announcement + kHeaderBytes;
  const uint8_t* const end = announcement + kAnnouncementBytes;
  for (const Entry& entry : entries) {
    const auto dims = static_cast<int64_t>(entry.sizes.size());
    if (at + 16 + 8 * dims > end) {
      throw InputError("pipeline",
                       concat("the shapes of the tensors between two stages do not fit into ", kAnnouncementBytes,
                              " bytes: ", describe()),
                       "Stack some of the tensors into one.");
    }
    const int64_t head[2] = {(entry.defined ? 256 : 0) + static_cast<int64_t>(entry.type), dims};
    std::memcpy(at, head, sizeof(head));
    if (dims > 0) { // a tensor without dims has no pointer for memcpy
      std::memcpy(at + sizeof(head), entry.sizes.data(), 8 * dims);
    }
    at += 16 + 8 * dims;
  }
}

Layout Layout::read(const uint8_t* announcement, int64_t count) {
  Layout layout;
  const uint8_t* at = announcement + kHeaderBytes;
  for (int64_t i = 0; i < count; ++i) {
    int64_t head[2];
    std::memcpy(head, at, sizeof(head));
    Entry entry;
    entry.defined = (head[0] & 256) != 0;
    entry.type = static_cast<at::ScalarType>(head[0] & 255);
    entry.sizes.resize(head[1]);
    if (head[1] > 0) {
      std::memcpy(entry.sizes.data(), at + sizeof(head), 8 * head[1]);
    }
    at += 16 + 8 * head[1];
    layout.entries.push_back(std::move(entry));
  }
  place(layout);
  return layout;
}

Tensors Layout::views(const at::Tensor& buffer) const {
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking; // plain tensors: they may become leaves
  Tensors tensors;
  for (const Entry& entry : entries) {
    if (!entry.defined) {
      tensors.emplace_back();
      continue;
    }
    const int64_t bytes = numel(entry.sizes) * static_cast<int64_t>(c10::elementSize(entry.type));
    tensors.push_back(buffer.slice(0, entry.offset, entry.offset + bytes).view(entry.type).view(entry.sizes));
  }
  return tensors;
}

std::string Layout::describe() const {
  std::string text;
  for (const Entry& entry : entries) {
    text += text.empty() ? "" : ", ";
    text += entry.defined ? concat(at::IntArrayRef(entry.sizes), ' ', c10::toString(entry.type)) : "nothing";
  }
  return text.empty() ? "no tensor" : text;
}

std::string describe(const Tensors& tensors) {
  return Layout::of(tensors).describe();
}

} // namespace trireme::pipeline
