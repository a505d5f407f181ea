#pragma once

#include <trireme/config/key_check.h>

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace trireme::config {

/// One list of an options struct's keys, by which they are read and written:
///
///   void fields(const auto& each, optim::RmspropOptions& o) {
///     each("alpha", o.alpha);
///     each("eps", o.eps);
///   }
///
/// Reads: a key that is absent leaves its member as it is, or makes it nullopt.
class ReadFields {
 public:
  explicit ReadFields(const Values& values) : values_(values) {}

  template <class T>
  void operator()(const char* key, T& member) const {
    member = values_.get(key, member);
  }
  template <class T>
  void operator()(const char* key, std::optional<T>& member) const {
    member = values_.maybe<T>(key);
  }
  /// 0 is written as null.
  void or_null(const char* key, int64_t& member) const { (*this)(key, member); }
  /// Nullopt is "auto".
  void or_auto(const char* key, std::optional<int64_t>& member) const {
    const JsonNode* const found = values_.find(key);
    const bool is_auto = found != nullptr && found->kind() == JsonNode::Kind::string;
    member = is_auto ? std::nullopt : std::optional(values_.get<int64_t>(key, *member));
  }
  /// A list of two numbers. Errors: InputError for a list of another length.
  void pair(const char* key, double& first, double& second) const {
    const auto both = values_.get(key, std::vector<double>{first, second});
    if (both.size() != 2) {
      values_.find(key)->fail(concat("must be two numbers, found ", both.size()),
                              concat("Write [", first, ", ", second, "]."));
    }
    first = both[0];
    second = both[1];
  }
  /// By functions of its own: read(node) and write(member).
  template <class T, class Read, class Write>
  void by(const char* key, T& member, const Read& read, const Write&) const {
    if (const JsonNode* const found = values_.find(key)) {
      member = read(*found);
    }
  }

 private:
  const Values& values_;
};

/// Adds the members to an object, in the order of the list.
class WriteFields {
 public:
  explicit WriteFields(nlohmann::ordered_json& out) : out_(out) {}

  template <class T>
  void operator()(const char* key, const T& member) const {
    out_[key] = member;
  }
  template <class T>
  void operator()(const char* key, const std::optional<T>& member) const {
    out_[key] = member ? nlohmann::ordered_json(*member) : nlohmann::ordered_json(nullptr);
  }
  void or_null(const char* key, int64_t member) const {
    out_[key] = member == 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(member);
  }
  void or_auto(const char* key, const std::optional<int64_t>& member) const {
    out_[key] = member ? nlohmann::ordered_json(*member) : nlohmann::ordered_json("auto");
  }
  void pair(const char* key, double first, double second) const {
    out_[key] = nlohmann::ordered_json::array({first, second});
  }
  template <class T, class Read, class Write>
  void by(const char* key, const T& member, const Read&, const Write& write) const {
    out_[key] = write(member);
  }

 private:
  nlohmann::ordered_json& out_;
};

} // namespace trireme::config
