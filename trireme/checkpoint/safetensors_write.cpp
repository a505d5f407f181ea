#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/checkpoint/file_layout.h>
#include <trireme/checkpoint/new_file.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/safetensors_header.h>
#include <trireme/checkpoint/share_blocks.h>
#include <trireme/checkpoint/size_signal.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDevicePieceBytes = int64_t{64} << 20;

void write_tensor(NewFile& out, const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  const auto element = static_cast<int64_t>(tensor.element_size());
  const at::Tensor flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view({-1});
  const int64_t piece = tensor.device().is_cpu() ? flat.numel() : std::max<int64_t>(1, kDevicePieceBytes / element);
  for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
    const at::Tensor part = flat.narrow(0, begin, std::min(piece, flat.numel() - begin)).cpu();
    out.write(static_cast<const char*>(part.data_ptr()), static_cast<size_t>(part.numel() * element));
  }
}

/// Writes the items of a layout, from the first to the last.
class ItemWriter {
 public:
  ItemWriter(NewFile& out, const FileLayout& layout, uint64_t data_start)
      : out_(out), layout_(layout), data_start_(data_start) {}

  // Shares the blocks of the runs. False if the first one could not be shared, and so none.
  bool share() {
    for (size_t r = 0; r < layout_.runs.size(); ++r) {
      if (!share_run(layout_.runs[r]) && r == 0) {
        return false;
      }
    }
    return true;
  }

  // Lent values were checked by their store; shared blocks were not, so they are compared.
  void write() { stream(0, layout_.items.size()); }

 private:
  // Shares the full blocks of a run.
  bool share_run(const FileLayout::Run& run) const {
    const uint64_t first = data_start_ + run.begin;
    const uint64_t block = layout_.alignment;
    const uint64_t begin = (first + block - 1) / block * block;
    const uint64_t end = (first + static_cast<uint64_t>(run.source.bytes)) / block * block;
    const Descriptor source(::open(run.source.file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!source || !share_blocks(source.get(), run.source.offset + static_cast<int64_t>(begin - first),
                                 out_.descriptor(), static_cast<int64_t>(begin), static_cast<int64_t>(end - begin))) {
      return false;
    }
    out_.expect_there(begin, end);
    return true;
  }

  // Writes the items [first, last) of one lender during its lend(), in order.
  void stream(size_t first, size_t last) {
    while (first < last) {
      const Lent& lent = layout_.items[first].tensor->lent;
      if (!lent.by) {
        write_item(first, layout_.items[first].tensor->tensor);
        ++first;
        continue;
      }
      size_t next = first;
      bool is_first = true;
      lent.by->lend([&](int64_t i, const at::Tensor& values) {
        if (std::exchange(is_first, false)) {
          expect_next(first, last);
        }
        for (; next < last && layout_.items[next].tensor->lent.by == lent.by && layout_.items[next].tensor->lent.i == i;
             ++next) {
          write_item(next, lent_part(*layout_.items[next].tensor, values));
        }
      });
      if (next == first) {
        throw Error("checkpoint", concat("no values were lent for \"", layout_.items[first].tensor->name, '"'));
      }
      first = next;
    }
  }

  void write_item(size_t item, const at::Tensor& values) {
    out_.pad(layout_.items[item].padding);
    write_tensor(out_, values);
  }

  static at::Tensor lent_part(const NamedTensor& tensor, const at::Tensor& values) {
    const int64_t numel = tensor.tensor.numel();
    if (values.scalar_type() != tensor.tensor.scalar_type() || values.numel() < tensor.lent.first + numel) {
      throw Error("checkpoint", concat("\"", tensor.name, "\" must be ", numel, ' ', tensor.tensor.scalar_type(),
                                       " from element ", tensor.lent.first, " of the lent tensor, which has ",
                                       values.numel(), ' ', values.scalar_type()));
    }
    return values.reshape({-1}).narrow(0, tensor.lent.first, numel);
  }

  // Announces to the next lender that it is next.
  void expect_next(size_t item, size_t last) const {
    const auto& by = layout_.items[item].tensor->lent.by;
    for (; item < last; ++item) {
      const auto& other = layout_.items[item].tensor->lent.by;
      if (other && other != by) {
        other->expect();
        return;
      }
    }
  }

  NewFile& out_;
  const FileLayout& layout_;
  uint64_t data_start_;
};

WrittenFile write(const fs::path& file, const FileLayout& layout, const std::map<std::string, std::string>& metadata) {
  const std::string header = header_text(layout.infos, metadata, layout.alignment);
  NewFile out(file, header.size() + layout.bytes);
  ItemWriter items(out, layout, header.size());
  // Shared blocks are copied when their owner writes, so there must be room for a copy.
  if (!layout.runs.empty() && !(out.has_room() && items.share())) {
    return {};
  }
  out.reserve();
  out.write(header.data(), header.size());
  items.write();
  if (out.replaced_bytes() > 0) {
    log::warning("[safetensors] the disk has changed bytes of ", layout.runs.front().source.file.string(),
                 " and of others that ", file.string(), " shares: ", format_bytes(out.replaced_bytes()),
                 " were rewritten correctly; check the disk");
  }
  return {header.size() + layout.bytes, out.commit(), out.bytes_there()};
}

} // namespace

WrittenFile write_safetensors(const fs::path& file, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  const SizeSignalBlock block;
  const Descriptor folder(
      ::open(file.has_parent_path() ? file.parent_path().c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const FileLayout layout = layout_to_share(tensors, file.string(), block_bytes(folder.get()));
  const WrittenFile written = write(file, layout, metadata);
  return written.bytes > 0 ? written : write(file, plain_layout(tensors, file.string()), metadata);
}

} // namespace trireme::checkpoint
