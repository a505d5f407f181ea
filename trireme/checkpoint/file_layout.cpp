#include <trireme/checkpoint/file_layout.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <optional>
#include <set>

namespace trireme::checkpoint {
namespace {

using bucket::Extent;

constexpr int64_t kLeastBlocks = 16; // less is copied as fast as it is shared

std::vector<FileLayout::Item> ordered(const std::vector<NamedTensor>& tensors, const std::string& file) {
  std::vector<FileLayout::Item> items;
  std::set<std::string_view> names{"__metadata__"};
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw InputError("safetensors",
                       concat("cannot write ", file, ": the name \"", tensor.name, "\" is used twice or reserved"));
    }
    if (!tensor.tensor.defined() || tensor.tensor.is_meta() != (tensor.lent.by != nullptr)) {
      throw InputError("safetensors", concat("cannot write ", file, ": tensor \"", tensor.name,
                                             tensor.tensor.defined() ? "\" has no values" : "\" is undefined"));
    }
    items.push_back({&tensor, 0});
  }
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
    return a.tensor->tensor.element_size() > b.tensor->tensor.element_size();
  });
  return items;
}

// Counts the bytes, now that the paddings are known.
void place(FileLayout& layout) {
  std::set<std::string_view> names;
  for (const FileLayout::Item& item : layout.items) {
    names.insert(item.tensor->name);
  }
  for (const FileLayout::Item& item : layout.items) {
    if (item.padding > 0) {
      std::string name = concat("padding@", layout.bytes);
      while (names.count(name) != 0) {
        name += '\'';
      }
      layout.infos.push_back(
          {name, "U8", {static_cast<int64_t>(item.padding)}, layout.bytes, layout.bytes + item.padding});
      layout.bytes += item.padding;
    }
    const at::Tensor& tensor = item.tensor->tensor;
    const uint64_t end = layout.bytes + static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    layout.infos.push_back(
        {item.tensor->name, dtype_name(tensor.scalar_type()), tensor.sizes().vec(), layout.bytes, end});
    layout.bytes = end;
  }
}

// The item's extent in a file, if it can be shared.
std::optional<Extent> extent_of(const NamedTensor& tensor) {
  std::optional<Extent> extent = tensor.lent.by ? tensor.lent.by->extent(tensor.lent.i) : std::nullopt;
  if (!extent) {
    return std::nullopt;
  }
  const auto element = static_cast<int64_t>(tensor.tensor.element_size());
  const int64_t bytes = tensor.tensor.numel() * element;
  if (extent->offset % element != 0 || extent->bytes < tensor.lent.first * element + bytes) {
    return std::nullopt;
  }
  return Extent{std::move(extent->file), extent->offset + tensor.lent.first * element, bytes};
}

} // namespace

FileLayout plain_layout(const std::vector<NamedTensor>& tensors, const std::string& file) {
  FileLayout layout;
  layout.items = ordered(tensors, file);
  place(layout);
  return layout;
}

FileLayout layout_to_share(const std::vector<NamedTensor>& tensors, const std::string& file, int64_t block) {
  FileLayout layout;
  layout.items = ordered(tensors, file);
  uint64_t at = 0;
  for (size_t first = 0, last = 0; first < layout.items.size(); first = last) {
    std::optional<Extent> whole = extent_of(*layout.items[first].tensor);
    last = first + 1;
    int64_t end = whole ? whole->offset + whole->bytes : 0;
    for (; whole && last < layout.items.size(); ++last) {
      const std::optional<Extent> next = extent_of(*layout.items[last].tensor);
      if (!next || next->file != whole->file || next->offset < end || next->offset - end >= block) {
        break;
      }
      layout.items[last].padding = static_cast<uint64_t>(next->offset - end);
      end = next->offset + next->bytes;
    }
    if (whole) {
      whole->bytes = end - whole->offset;
    }
    if (!whole || whole->bytes < kLeastBlocks * block) {
      for (size_t i = first; i < last; ++i) {
        layout.items[i].padding = 0;
        at += static_cast<uint64_t>(layout.items[i].tensor->tensor.numel()) *
              layout.items[i].tensor->tensor.element_size();
      }
      continue;
    }
    const uint64_t past = at % static_cast<uint64_t>(block);
    const uint64_t wanted = static_cast<uint64_t>(whole->offset % block);
    layout.items[first].padding = (wanted + static_cast<uint64_t>(block) - past) % static_cast<uint64_t>(block);
    at += layout.items[first].padding;
    layout.runs.push_back({first, last, *whole, at});
    at += static_cast<uint64_t>(whole->bytes);
    layout.alignment = static_cast<uint64_t>(block);
  }
  place(layout);
  return layout;
}

} // namespace trireme::checkpoint
