#include <trireme/comm/store.h>
#include <trireme/comm/store_handle.h>

#include <trireme/base/error.h>

#include <c10/util/Exception.h>

namespace trireme::comm {
namespace {

template <typename Call>
auto reach(const char* what, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw PeerError("comm", concat("the meeting point of the ranks cannot be reached any more (", what, ": ", plain_text(error), ")."),
                    "The process that hosts it (rank 0, or the torchrun agent) has probably ended: look at its output.");
  }
}

} // namespace

std::string plain_text(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find("\nException raised from"));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '.')) {
    text.pop_back();
  }
  return text;
}

Store::Store(std::shared_ptr<Handle> handle, std::string prefix) : handle_(std::move(handle)), prefix_(std::move(prefix)) {}

void Store::set(const std::string& key, const std::string& value) {
  reach("set", [&] { handle_->store->set(prefix_ + key, std::vector<uint8_t>(value.begin(), value.end())); });
}

std::optional<std::string> Store::find(const std::string& key) {
  return reach("get", [&]() -> std::optional<std::string> {
    if (!handle_->store->check({prefix_ + key})) {
      return std::nullopt;
    }
    const auto bytes = handle_->store->get(prefix_ + key);
    return std::string(bytes.begin(), bytes.end());
  });
}

int64_t Store::add(const std::string& key, int64_t delta) {
  return reach("add", [&] { return handle_->store->add(prefix_ + key, delta); });
}

bool Store::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  std::vector<std::string> full;
  for (const auto& key : keys) {
    full.push_back(prefix_ + key);
  }
  try {
    handle_->store->wait(full, timeout);
    return true;
  } catch (const std::exception&) {
    // Either the deadline or a dead store: the answer to check() tells which.
    return reach("wait", [&] { return handle_->store->check(full); });
  }
}

Store Store::scoped(const std::string& prefix) const {
  return Store(handle_, prefix_ + prefix);
}

} // namespace trireme::comm
