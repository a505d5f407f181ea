#include <trireme/checkpoint/safetensors.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/safetensors_header.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_map>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

struct DtypeRow {
  const char* name;
  at::ScalarType type;
};

constexpr DtypeRow kDtypes[] = {
    {"F32", at::kFloat},           {"BF16", at::kBFloat16},    {"F16", at::kHalf},
    {"F64", at::kDouble},          {"I64", at::kLong},         {"I32", at::kInt},
    {"I16", at::kShort},           {"I8", at::kChar},          {"U8", at::kByte},
    {"BOOL", at::kBool},           {"U16", at::kUInt16},       {"U32", at::kUInt32},
    {"U64", at::kUInt64},          {"C64", at::kComplexFloat}, {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
};

// Touching a mapped page past the end of its file would end the program.
void refuse_if_cut(const char* data, uint64_t bytes, const std::string& where) {
#ifdef MADV_POPULATE_READ
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + bytes - 1) / page * page;
  if (::madvise(reinterpret_cast<void*>(last), page, MADV_POPULATE_READ) != 0 && errno == EFAULT) {
    throw InputError("safetensors", concat(where, " is missing: another program has cut the file since it was opened"),
                     "Write the file again, then start again.");
  }
#endif
}

} // namespace

struct Safetensors::File {
  /// The file in memory.
  class Mapping {
   public:
    explicit Mapping(const fs::path& file) {
      const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
      struct stat status{};
      if (fd < 0 || ::fstat(fd, &status) != 0) {
        fail(fd, file, std::strerror(errno));
      }
      if (!S_ISREG(status.st_mode)) {
        fail(fd, file, S_ISDIR(status.st_mode) ? "it is a folder" : "it is not a regular file");
      }
      size_ = static_cast<size_t>(status.st_size);
      if (size_ > 0) {
        // Private and writable: an in-place operation on a view copies the page instead of raising a signal.
        void* address = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
        if (address == MAP_FAILED) {
          fail(fd, file, std::strerror(errno));
        }
        address_ = static_cast<char*>(address);
      }
      ::close(fd);
    }
    ~Mapping() {
      if (address_ != nullptr) {
        ::munmap(address_, size_);
      }
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    char* data() const { return address_; }
    std::string_view text() const { return {address_, size_}; }

   private:
    [[noreturn]] static void fail(int fd, const fs::path& file, const std::string& reason) {
      if (fd >= 0) {
        ::close(fd);
      }
      throw InputError("safetensors", concat("cannot read ", file.string(), ": ", reason), "Check the path.");
    }

    char* address_ = nullptr;
    size_t size_ = 0;
  };

  explicit File(const fs::path& file) : path(file), mapping(file), header(parse_header(mapping.text(), file.string())) {
    for (size_t i = 0; i < header.tensors.size(); ++i) {
      if (!index.emplace(header.tensors[i].name, i).second) {
        throw InputError("safetensors",
                         concat(file.string(), ": tensor \"", header.tensors[i].name, "\" appears twice"));
      }
    }
  }

  fs::path path;
  Mapping mapping;
  Header header;
  std::unordered_map<std::string_view, size_t> index;
};

int64_t TensorInfo::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    product *= size;
  }
  return product;
}

Safetensors::Safetensors(std::shared_ptr<const File> file) : file_(std::move(file)) {}

Safetensors Safetensors::open(const fs::path& file) {
  return Safetensors(std::make_shared<const File>(file));
}

const fs::path& Safetensors::path() const {
  return file_->path;
}

uint64_t Safetensors::file_bytes() const {
  return file_->mapping.text().size();
}

const std::vector<TensorInfo>& Safetensors::tensors() const {
  return file_->header.tensors;
}

const std::map<std::string, std::string>& Safetensors::metadata() const {
  return file_->header.metadata;
}

bool Safetensors::has(std::string_view name) const {
  return file_->index.count(name) != 0;
}

const TensorInfo& Safetensors::info(std::string_view name) const {
  const auto found = file_->index.find(name);
  if (found == file_->index.end()) {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : tensors()) {
      names.push_back(tensor.name);
    }
    const std::string like = nearest(name, names);
    throw InputError("safetensors", concat(path().string(), " has no tensor \"", name, '"'),
                     like.empty() ? "List them with: trireme inspect FILE" : concat("Did you mean \"", like, "\"?"));
  }
  return tensors()[found->second];
}

at::Tensor Safetensors::tensor(std::string_view name) const {
  const TensorInfo& found = info(name);
  return range(name, 0, found.numel()).view(found.shape);
}

at::Tensor Safetensors::range(std::string_view name, int64_t begin, int64_t end) const {
  const TensorInfo& found = info(name);
  const std::string where = concat(path().string(), ": tensor \"", name, '"');
  if (begin < 0 || begin > end || end > found.numel()) {
    throw InputError("safetensors",
                     concat(where, " has ", found.numel(), " elements, [", begin, ", ", end, ") was asked for"));
  }
  const at::ScalarType type = scalar_type(found.dtype, where);
  if (begin == end) {
    return at::empty({0}, type);
  }
  const uint64_t element = dtype_bytes(found.dtype);
  char* data = file_->mapping.data() + file_->header.data_start + found.begin + static_cast<uint64_t>(begin) * element;
  const int64_t numel = end - begin;
  refuse_if_cut(data, static_cast<uint64_t>(numel) * element, where);
  if (type == at::kBool && std::any_of(data, data + numel, [](char byte) { return byte != 0 && byte != 1; })) {
    throw InputError("safetensors", concat(where, " is BOOL but has bytes other than 0 and 1"), "The file is damaged.");
  }
  if (reinterpret_cast<uintptr_t>(data) % element != 0) {
    at::Tensor copy = at::empty({numel}, type);
    std::memcpy(copy.data_ptr(), data, static_cast<uint64_t>(numel) * element);
    return copy;
  }
  return at::from_blob(data, {numel}, [file = file_](void*) {}, at::TensorOptions(type));
}

const char* dtype_name(at::ScalarType type) {
  for (const DtypeRow& row : kDtypes) {
    if (row.type == type) {
      return row.name;
    }
  }
  throw InputError("safetensors", concat("safetensors has no dtype for ", at::toString(type)),
                   "Convert the tensor before saving it.");
}

at::ScalarType scalar_type(std::string_view dtype, const std::string& where) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == dtype) {
      return row.type;
    }
  }
  throw InputError("safetensors", concat(where, " has dtype \"", dtype, "\", which is not supported"));
}

} // namespace trireme::checkpoint
