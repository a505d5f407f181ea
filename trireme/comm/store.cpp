#include <trireme/comm/store.h>
#include <trireme/comm/store_handle.h>

#include <trireme/base/error.h>

namespace trireme::comm {
namespace {

template <typename Call>
auto reach(const char* what, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw PeerError(
        "comm", concat("the rendezvous of the ranks cannot be reached any more (", what, ": ", plain_text(error), ")."),
        "The process that hosts it (rank 0, or the torchrun agent) has ended or is stopped: look at its output and its "
        "state.");
  }
}

} // namespace

Store::Store(std::shared_ptr<Handle> handle, std::string prefix)
    : handle_(std::move(handle)), prefix_(std::move(prefix)) {}

void Store::set(const std::string& key, const std::string& value) {
  reach("set", [&] { handle_->set(prefix_ + key, value); });
}

std::optional<std::string> Store::find(const std::string& key) {
  return find_all({key}).front();
}

std::vector<std::optional<std::string>> Store::find_all(const std::vector<std::string>& keys) {
  return reach("get", [&] { return handle_->find_all(full(keys)); });
}

int64_t Store::add(const std::string& key, int64_t delta) {
  return reach("add", [&] { return handle_->add(prefix_ + key, delta); });
}

bool Store::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  return reach("wait", [&] { return handle_->wait(full(keys), timeout); });
}

bool Store::last_will(const std::string& key, const std::string& value, const std::string& counter) {
  return reach("last will", [&] {
    return handle_->last_will(key.empty() ? "" : prefix_ + key, value, counter.empty() ? "" : prefix_ + counter);
  });
}

Store Store::scoped(const std::string& prefix) const {
  return Store(handle_, prefix_ + prefix);
}

std::vector<std::string> Store::full(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  for (const auto& key : keys) {
    names.push_back(prefix_ + key);
  }
  return names;
}

} // namespace trireme::comm
