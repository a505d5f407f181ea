#include <trireme/checkpoint/strict_json.h>

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(const std::string& source) : source_(source) {}

  nlohmann::json root;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(nlohmann::json::object()); }
  bool start_array(size_t) override { return open(nlohmann::json::array()); }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    const auto [at, is_new] = open_.back()->get_ref<nlohmann::json::object_t&>().emplace(name, nullptr);
    if (!is_new) {
      throw InputError("checkpoint", concat(source_, ": the key \"", name, "\" appears twice in one object"));
    }
    slot_ = &at->second;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    throw InputError("checkpoint", concat(source_, " is not valid JSON at byte ", position, ": ", json_reason(error)));
  }

 private:
  nlohmann::json* place(nlohmann::json value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<nlohmann::json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool add(nlohmann::json value) {
    place(std::move(value));
    return true;
  }
  bool open(nlohmann::json value) {
    if (open_.size() >= kMaxDepth) {
      throw InputError("checkpoint", concat(source_, ": nested deeper than ", kMaxDepth, " levels"));
    }
    open_.push_back(place(std::move(value)));
    return true;
  }

  const std::string& source_;
  // Pointers stay valid: siblings are appended only after the innermost value is closed.
  std::vector<nlohmann::json*> open_;
  nlohmann::json* slot_ = nullptr;
};

} // namespace

nlohmann::json parse_strict_json(std::string_view text, const std::string& source) {
  // nlohmann stops at a zero byte and would ignore the rest.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw InputError("checkpoint", concat(source, " is not valid JSON at byte ", zero + 1, ": a zero byte"));
  }
  Builder builder(source);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.root);
}

std::string json_reason(const nlohmann::json::exception& error) {
  std::string reason = error.what(); // "[json.exception.parse_error.101] parse error at line 1, column 2: reason"
  if (const size_t bracket = reason.find("] "); bracket != std::string::npos) {
    reason = reason.substr(bracket + 2);
  }
  if (const size_t colon = reason.find(": "); reason.rfind("parse error", 0) == 0 && colon != std::string::npos) {
    reason = reason.substr(colon + 2);
  }
  return reason;
}

} // namespace trireme::checkpoint
