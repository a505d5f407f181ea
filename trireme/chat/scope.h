#pragma once

#include <trireme/chat/value.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::chat {

/// The variables of a block; those around it are seen from it.
class Scope {
 public:
  explicit Scope(std::shared_ptr<const Scope> around = nullptr)
      : around_(std::move(around)), depth_(around_ ? around_->depth_ + 1 : 0) {}

  /// Here, or in the nearest scope around. nullptr: nowhere.
  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->around_.get()) {
      if (const auto found = scope->values_.find(name); found != scope->values_.end()) {
        return &found->second;
      }
    }
    return nullptr;
  }

  void set(const std::string& name, Value value) { values_[name] = std::move(value); }
  /// How many scopes lie around it.
  size_t depth() const { return depth_; }
  void clear() { values_.clear(); }

 private:
  std::shared_ptr<const Scope> around_;
  size_t depth_;
  std::map<std::string, Value, std::less<>> values_;
};

using ScopePtr = std::shared_ptr<Scope>;

} // namespace trireme::chat
