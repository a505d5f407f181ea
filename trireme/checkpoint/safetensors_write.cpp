#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/file_layout.h>
#include <trireme/checkpoint/new_file.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/safetensors_header.h>
#include <trireme/checkpoint/share_blocks.h>
#include <trireme/checkpoint/size_signal.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

void write_padding(NewFile& out, uint64_t bytes) {
  const std::string zeros(bytes, '\0');
  out.write(zeros.data(), zeros.size());
}

/// Writes the items of a layout, from the first to the last.
class ItemWriter {
 public:
  ItemWriter(NewFile& out, const FileLayout& layout, uint64_t data_start) : out_(out), layout_(layout), data_start_(data_start), is_shared_(layout.runs.size()) {}

  // Shares the blocks of the runs. False: not those of the first one, so of none.
  bool share() {
    for (size_t r = 0; r < layout_.runs.size(); ++r) {
      is_shared_[r] = share_run(layout_.runs[r]);
      if (r == 0 && !is_shared_[r]) {
        return false;
      }
    }
    return true;
  }

  uint64_t write() {
    uint64_t shared = 0;
    size_t next = 0;
    for (size_t r = 0; r < layout_.runs.size(); ++r) {
      const FileLayout::Run& run = layout_.runs[r];
      if (is_shared_[r]) {
        stream(next, run.first);
        write_padding(out_, layout_.items[run.first].padding);
        shared += finish_run(run);
        next = run.last;
      }
    }
    stream(next, layout_.items.size());
    return shared;
  }

 private:
  struct Blocks {
    uint64_t begin;
    uint64_t end;
  };
  // The whole blocks of a run, as places in the file.
  Blocks blocks_of(const FileLayout::Run& run) const {
    const uint64_t begin = data_start_ + run.begin;
    const uint64_t block = layout_.alignment;
    return {(begin + block - 1) / block * block, (begin + static_cast<uint64_t>(run.source.bytes)) / block * block};
  }

  bool share_run(const FileLayout::Run& run) const {
    const Descriptor source(::open(run.source.file.c_str(), O_RDONLY | O_CLOEXEC));
    const auto [begin, end] = blocks_of(run);
    const auto from = run.source.offset + static_cast<int64_t>(begin - data_start_ - run.begin);
    return source && share_blocks(source.get(), from, out_.descriptor(), static_cast<int64_t>(begin), static_cast<int64_t>(end - begin));
  }

  // Copies what is in front of the first shared block and behind the last one, and reads those between. Returns their bytes.
  uint64_t finish_run(const FileLayout::Run& run) const {
    const auto [begin, end] = blocks_of(run);
    const uint64_t front = begin - data_start_ - run.begin;
    const uint64_t behind = front + (end - begin);
    copy(run.source, 0, front);
    out_.skip(end - begin);
    copy(run.source, behind, static_cast<uint64_t>(run.source.bytes));
    return end - begin;
  }

  void copy(const bucket::Extent& source, uint64_t begin, uint64_t end) const {
    std::string bytes(end - begin, '\0');
    const Descriptor file(::open(source.file.c_str(), O_RDONLY | O_CLOEXEC));
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::pread(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(source.offset + static_cast<int64_t>(begin + done)));
      if (n == 0 || (n < 0 && errno != EINTR)) {
        throw Error("checkpoint", concat("cannot read ", source.file.string(), ": ", n == 0 ? "it is too short" : std::strerror(errno)));
      }
      done += n > 0 ? static_cast<size_t>(n) : 0;
    }
    out_.write(bytes.data(), bytes.size());
  }

  // The items [first, last): those of one lender, one behind the other, while it lends them.
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
        for (; next < last && layout_.items[next].tensor->lent.by == lent.by && layout_.items[next].tensor->lent.i == i; ++next) {
          write_item(next, lent_part(*layout_.items[next].tensor, values));
        }
      });
      if (next == first) {
        throw Error("checkpoint", concat("nobody lent the values of \"", layout_.items[first].tensor->name, '"'));
      }
      first = next;
    }
  }

  void write_item(size_t item, const at::Tensor& values) {
    write_padding(out_, layout_.items[item].padding);
    write_tensor(out_, values);
  }

  static at::Tensor lent_part(const NamedTensor& tensor, const at::Tensor& values) {
    const int64_t numel = tensor.tensor.numel();
    if (values.scalar_type() != tensor.tensor.scalar_type() || values.numel() < tensor.lent.first + numel) {
      throw Error("checkpoint", concat("\"", tensor.name, "\" was said to be ", numel, ' ', tensor.tensor.scalar_type(), " from element ", tensor.lent.first, " of what was lent, ",
                                       values.numel(), ' ', values.scalar_type()));
    }
    return values.reshape({-1}).narrow(0, tensor.lent.first, numel);
  }

  // Tells the lender after this one that it is next.
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
  std::vector<bool> is_shared_;
};

WrittenFile write(const fs::path& file, const FileLayout& layout, const std::map<std::string, std::string>& metadata) {
  const std::string header = header_text(layout.infos, metadata, layout.alignment);
  NewFile out(file, header.size() + layout.bytes);
  ItemWriter items(out, layout, header.size());
  // Blocks that are shared need new places once their owner writes: then there must be room for a copy of them.
  if (!layout.runs.empty() && !(out.has_room() && items.share())) {
    return {};
  }
  out.reserve();
  out.write(header.data(), header.size());
  const uint64_t shared = items.write();
  return {header.size() + layout.bytes, out.commit(), shared};
}

} // namespace

WrittenFile write_safetensors(const fs::path& file, const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  const SizeSignalBlock block;
  const Descriptor folder(::open(file.has_parent_path() ? file.parent_path().c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const FileLayout layout = layout_to_share(tensors, file.string(), block_bytes(folder.get()));
  const WrittenFile written = write(file, layout, metadata);
  return written.bytes > 0 ? written : write(file, plain_layout(tensors, file.string()), metadata);
}

} // namespace trireme::checkpoint
