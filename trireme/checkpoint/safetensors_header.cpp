#include <trireme/checkpoint/safetensors_header.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/checkpoint/region.h>
#include <trireme/checkpoint/strict_json.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

namespace trireme::checkpoint {
namespace {

constexpr size_t kMaxDims = 64;

// Parses {"name": {"dtype": "F32", "shape": [..], "data_offsets": [b, e]}} event by event: a hostile header is refused
// at its first unexpected token, before a tree is built.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& path, Header& header) : path_(path), header_(header) {}

  bool null() override { return odd("null"); }
  bool boolean(bool) override { return odd("true or false"); }
  bool number_integer(number_integer_t value) override { return odd(concat("the number ", value)); }
  bool number_float(number_float_t, const string_t& text) override { return odd(concat("the number ", text)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) {
      return odd(concat("the number ", value));
    }
    if (field_ == Field::shape) {
      if (tensor_.shape.size() >= kMaxDims || value > static_cast<uint64_t>(INT64_MAX)) {
        fail("has a shape that is too large");
      }
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (num_offsets_ >= 2) {
      fail("has more than two data_offsets");
    }
    (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    return true;
  }
  bool string(string_t& value) override {
    if (in_metadata_ && depth_ == 2) {
      header_.metadata[metadata_key_] = std::move(value);
      return true;
    }
    if (depth_ != 2 || in_array_ || field_ != Field::dtype) {
      return odd("a string");
    }
    tensor_.dtype = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override {
    if (depth_ >= 2 || in_array_) {
      return odd("an object");
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      if (seen_ != 7 || num_offsets_ != 2) {
        fail("lacks one of dtype, shape and two data_offsets");
      }
      header_.tensors.push_back(std::move(tensor_));
    }
    in_metadata_ = false;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == Field::dtype) {
      return odd("an array");
    }
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      if (in_metadata_ && std::exchange(had_metadata_, true)) {
        throw InputError("safetensors", concat(path_, ": \"__metadata__\" appears twice"));
      }
      tensor_ = TensorInfo{std::move(name), "", {}, 0, 0};
      num_offsets_ = 0;
      seen_ = 0;
      return true;
    }
    if (in_metadata_) {
      if (header_.metadata.count(name) != 0) {
        throw InputError("safetensors", concat(path_, ": the metadata key \"", name, "\" appears twice"));
      }
      metadata_key_ = std::move(name);
      return true;
    }
    field_ = name == "dtype" ? Field::dtype : name == "shape" ? Field::shape : Field::data_offsets;
    if (field_ == Field::data_offsets && name != "data_offsets") {
      fail(concat("has the unknown field \"", name, '"'));
    }
    const int bit = 1 << static_cast<int>(field_);
    if ((seen_ & bit) != 0) {
      fail(concat("has \"", name, "\" twice"));
    }
    seen_ |= bit;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    throw InputError("safetensors",
                     concat(path_, ": the header is not valid JSON at byte ", position, ": ", json_reason(error)),
                     "The file is damaged or not a safetensors file; fetch or convert it again.");
  }

 private:
  enum class Field { dtype, shape, data_offsets };

  [[noreturn]] void fail(const std::string& happened) const {
    throw InputError("safetensors", concat(path_, ": tensor \"", tensor_.name, "\" ", happened));
  }
  bool odd(const std::string& what) const {
    if (in_metadata_) {
      throw InputError("safetensors", concat(path_, ": \"__metadata__\" must map text to text, found ", what));
    }
    if (depth_ == 0) {
      throw InputError("safetensors", concat(path_, ": the header must be an object, found ", what));
    }
    fail(concat("has ", what, " where it does not belong"));
  }

  const std::string& path_;
  Header& header_;
  TensorInfo tensor_;
  std::string metadata_key_;
  Field field_ = Field::dtype;
  int depth_ = 0;
  int num_offsets_ = 0;
  int seen_ = 0;
  bool in_array_ = false;
  bool in_metadata_ = false;
  bool had_metadata_ = false;
};

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

void check_tensors(std::vector<TensorInfo>& tensors, uint64_t data_bytes, const std::string& path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t expected = 0;
  for (const TensorInfo& tensor : tensors) {
    const auto fail = [&](const std::string& happened) {
      throw InputError("safetensors", concat(path, ": tensor \"", tensor.name, "\" ", happened),
                       "The file is damaged; fetch or write it again.");
    };
    const uint64_t element = dtype_bytes(tensor.dtype);
    if (element == 0) {
      throw InputError("safetensors", concat(path, ": tensor \"", tensor.name, "\" has dtype \"", tensor.dtype,
                                             "\", which is not supported"));
    }
    if (tensor.begin != expected || tensor.end < tensor.begin) {
      fail(concat("has data_offsets [", tensor.begin, ", ", tensor.end, "], they must start at ", expected,
                  " (no holes, no overlaps)"));
    }
    if (tensor.end > data_bytes) {
      fail(concat("ends at byte ", tensor.end, " of the data, but the file has only ", data_bytes, " (truncated?)"));
    }
    const auto numel = checked_numel(tensor.shape);
    if (!numel || static_cast<uint64_t>(*numel) > UINT64_MAX / element) {
      fail("has a shape whose size overflows");
    }
    if (static_cast<uint64_t>(*numel) * element != tensor.end - tensor.begin) {
      fail(concat("has ", tensor.end - tensor.begin, " bytes, its dtype and shape need ",
                  static_cast<uint64_t>(*numel) * element));
    }
    expected = tensor.end;
  }
  if (expected != data_bytes) {
    throw InputError("safetensors",
                     concat(path, ": the file has ", data_bytes, " bytes of data, its tensors account for ", expected),
                     "The file is damaged; fetch or write it again.");
  }
}

} // namespace

uint64_t dtype_bytes(std::string_view dtype) {
  static const std::map<std::string_view, uint64_t> bytes = {
      {"F64", 8},  {"I64", 8}, {"U64", 8}, {"C64", 8}, {"F32", 4}, {"I32", 4},     {"U32", 4},     {"F16", 2},
      {"BF16", 2}, {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
  const auto found = bytes.find(dtype);
  return found == bytes.end() ? 0 : found->second;
}

Header parse_header(std::string_view file, const std::string& path) {
  const char* const again = "The file is damaged or not a safetensors file; fetch or convert it again.";
  if (file.size() < 8) {
    throw InputError("safetensors", concat(path, " has ", file.size(), " bytes, a safetensors file has at least 8"),
                     again);
  }
  if (file.starts_with("version https://git-lfs")) {
    throw InputError("safetensors", concat(path, " is a pointer of Git LFS, not the weights"),
                     "Type git lfs pull in its folder, or download the file.");
  }
  const uint64_t length = little_endian(file);
  if (length > kMaxHeaderBytes) {
    throw InputError(
        "safetensors",
        concat(path, " has a header length of ", length, " bytes, at most ", kMaxHeaderBytes, " are allowed"), again);
  }
  if (length > file.size() - 8) {
    throw InputError(
        "safetensors",
        concat(path, " has a header length of ", length, " bytes, only ", file.size() - 8, " follow (truncated?)"),
        again);
  }
  const std::string_view text = file.substr(8, length);
  if (text.empty() || text.front() != '{') {
    throw InputError("safetensors", concat(path, ": the header must start with '{'"), again);
  }
  // nlohmann stops at a zero byte and would ignore the rest.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw InputError("safetensors", concat(path, ": the header is not valid JSON at byte ", zero + 1, ": a zero byte"),
                     again);
  }
  Header header;
  header.data_start = 8 + length;
  HeaderReader reader(path, header);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  check_tensors(header.tensors, file.size() - header.data_start, path);
  return header;
}

std::string header_text(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata,
                        uint64_t alignment) {
  const auto quoted = [](const std::string& text) {
    try {
      return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
      throw InputError("safetensors", "a tensor name or a metadata text is not UTF-8");
    }
  };
  const auto list = [](const auto& numbers) {
    std::string text = "[";
    for (const auto number : numbers) {
      text += concat(text.size() > 1 ? "," : "", number);
    }
    return text + "]";
  };
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    const char* separator = "";
    for (const auto& [key, value] : metadata) {
      json += concat(std::exchange(separator, ","), quoted(key), ":", quoted(value));
    }
    json += "}";
  }
  for (const TensorInfo& tensor : tensors) {
    json += concat(json.size() > 1 ? "," : "", quoted(tensor.name), ":{\"dtype\":\"", tensor.dtype,
                   "\",\"shape\":", list(tensor.shape),
                   ",\"data_offsets\":", list(std::vector<uint64_t>{tensor.begin, tensor.end}), "}");
  }
  json += "}";
  json.resize((8 + json.size() + alignment - 1) / alignment * alignment - 8, ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw InputError("safetensors", concat("the header of ", tensors.size(), " tensors would have ", json.size(),
                                           " bytes, at most ", kMaxHeaderBytes, " are allowed"));
  }
  std::string length;
  for (size_t i = 0; i < 8; ++i) {
    length += static_cast<char>(json.size() >> (8 * i) & 0xff);
  }
  return length + json;
}

} // namespace trireme::checkpoint
