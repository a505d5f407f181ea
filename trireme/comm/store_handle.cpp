#include <trireme/comm/store_handle.h>

#include <c10/util/Exception.h>

#include <utility>

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;

std::string_view view(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

/// Our store as c10d sees it: get() and multiGet() wait for their keys.
class ClientStore : public c10d::Store {
 public:
  explicit ClientStore(std::shared_ptr<store::Client> client) : client_(std::move(client)) {}

  // Pure virtual in newer versions of libtorch, unknown to older ones: no `override`.
  virtual c10::intrusive_ptr<c10d::Store> clone() {
    auto copy = c10::make_intrusive<ClientStore>(client_);
    copy->timeout_ = timeout_;
    return copy;
  }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override { client_->set(key, view(value)); }
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    return bytes_of(client_->compare_set(key, view(expected), view(desired)));
  }
  std::vector<uint8_t> get(const std::string& key) override { return multiGet({key}).front(); }
  int64_t add(const std::string& key, int64_t value) override { return client_->add(key, value); }
  bool deleteKey(const std::string& key) override { return client_->remove(key); }
  bool check(const std::vector<std::string>& keys) override { return client_->has_all(keys); }
  int64_t getNumKeys() override { return client_->count(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    // c10d's "no timeout" is zero.
    const auto patience = timeout == kNoTimeout ? milliseconds(std::chrono::hours(24 * 365)) : timeout;
    if (!client_->wait(keys, patience)) {
      C10_THROW_ERROR(DistStoreError, concat("wait timeout after ", timeout.count(), " ms for ", keys.size(),
                                             " keys, the first of them ", keys.front()));
    }
  }
  void append(const std::string& key, const std::vector<uint8_t>& value) override { client_->append(key, view(value)); }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    auto found = client_->find_all(keys);
    for (const auto& value : found) {
      if (!value) {
        wait(keys);
        found = client_->find_all(keys);
        break;
      }
    }
    std::vector<std::vector<uint8_t>> values;
    for (const auto& value : found) {
      values.push_back(bytes_of(value.value_or("")));
    }
    return values;
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override {
    for (size_t place = 0; place < keys.size(); ++place) {
      set(keys[place], values.at(place));
    }
  }
  bool hasExtendedApi() const override { return true; }

 private:
  std::shared_ptr<store::Client> client_;
};

class OwnHandle : public Store::Handle {
 public:
  explicit OwnHandle(std::shared_ptr<store::Client> client) : client_(std::move(client)) {}

  void set(const std::string& key, const std::string& value) override { client_->set(key, value); }
  std::vector<std::optional<std::string>> find_all(const std::vector<std::string>& keys) override {
    return client_->find_all(keys);
  }
  int64_t add(const std::string& key, int64_t delta) override { return client_->add(key, delta); }
  bool wait(const std::vector<std::string>& keys, milliseconds timeout) override {
    return client_->wait(keys, timeout);
  }
  bool last_will(const std::string& key, const std::string& value, const std::string& counter) override {
    client_->last_will(key, value, counter);
    return true;
  }
  c10::intrusive_ptr<c10d::Store> for_c10d() override { return c10::make_intrusive<ClientStore>(client_); }

 private:
  std::shared_ptr<store::Client> client_;
};

class AgentHandle : public Store::Handle {
 public:
  explicit AgentHandle(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, bytes_of(value)); }
  std::vector<std::optional<std::string>> find_all(const std::vector<std::string>& keys) override {
    std::vector<std::optional<std::string>> values;
    for (const auto& key : keys) {
      values.push_back(store_->check({key}) ? std::optional(std::string(view(store_->get(key)))) : std::nullopt);
    }
    return values;
  }
  int64_t add(const std::string& key, int64_t delta) override { return store_->add(key, delta); }
  bool wait(const std::vector<std::string>& keys, milliseconds timeout) override {
    try {
      store_->wait(keys, timeout);
      return true;
    } catch (const std::exception&) {
      // Either the deadline or a dead store: check() tells which.
      return store_->check(keys);
    }
  }
  bool last_will(const std::string&, const std::string&, const std::string&) override { return false; }
  c10::intrusive_ptr<c10d::Store> for_c10d() override { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

} // namespace

std::shared_ptr<Store::Handle> handle_of(std::shared_ptr<store::Client> client) {
  return std::make_shared<OwnHandle>(std::move(client));
}

std::shared_ptr<Store::Handle> handle_of(c10::intrusive_ptr<c10d::Store> store) {
  return std::make_shared<AgentHandle>(std::move(store));
}

std::string plain_text(const std::exception& error) {
  if (const auto* lost = dynamic_cast<const store::LostError*>(&error)) {
    return lost->happened;
  }
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find("\nException raised from"));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '.')) {
    text.pop_back();
  }
  return text;
}

} // namespace trireme::comm
