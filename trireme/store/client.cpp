#include <trireme/store/client.h>

#include <trireme/store/messages.h>

#include <algorithm>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;

/// Time for a reply to arrive, after the time that a wait() may take on the server.
constexpr milliseconds kAnswer{2000};
constexpr milliseconds kLongestCall{std::chrono::hours(24 * 365)};

} // namespace

std::shared_ptr<Client> Client::connect(const Endpoint& endpoint, const SecretSource& source, const std::string& job,
                                        Clock::time_point deadline, milliseconds patience) {
  return std::make_shared<Client>(make_socket_channel(connect_and_prove(endpoint, source, job, deadline)), patience);
}

std::string Client::call(const std::string& request, milliseconds busy) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) {
    throw LostError(broken_);
  }
  const milliseconds patience = std::max(patience_, std::clamp(busy, milliseconds(0), kLongestCall) + kAnswer);
  std::string reply;
  try {
    reply = channel_->exchange(request, patience);
  } catch (const LostError& problem) { // a late reply would be read as that of the next call
    broken_ = problem.happened;
    throw;
  }
  MessageReader reader(reply);
  if (static_cast<Status>(reader.byte()) != Status::done) {
    throw Error("store", concat("the store refuses the request: ", reader.text(), "."));
  }
  return reply.substr(1);
}

void Client::set(const std::string& key, std::string_view value) {
  call(MessageWriter(Op::set).add(std::string_view(key)).add(value).finish());
}

std::optional<std::string> Client::find(const std::string& key) {
  return find_all({key}).front();
}

std::vector<std::optional<std::string>> Client::find_all(const std::vector<std::string>& keys) {
  const std::string reply = call(MessageWriter(Op::find).add(keys).finish());
  MessageReader reader(reply);
  std::vector<std::optional<std::string>> values;
  for (size_t place = 0; place < keys.size(); ++place) {
    const bool there = reader.truth();
    const auto value = reader.text();
    values.push_back(there ? std::optional(std::string(value)) : std::nullopt);
  }
  return values;
}

int64_t Client::add(const std::string& key, int64_t delta) {
  return MessageReader(call(MessageWriter(Op::add).add(std::string_view(key)).add(delta).finish())).number();
}

bool Client::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  return MessageReader(
             call(MessageWriter(Op::wait).add(keys).add(static_cast<int64_t>(timeout.count())).finish(), timeout))
      .truth();
}

std::string Client::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
  const std::string reply =
      call(MessageWriter(Op::compare_set).add(std::string_view(key)).add(expected).add(desired).finish());
  return std::string(MessageReader(reply).text());
}

bool Client::remove(const std::string& key) {
  return MessageReader(call(MessageWriter(Op::remove).add(std::string_view(key)).finish())).truth();
}

bool Client::has_all(const std::vector<std::string>& keys) {
  return MessageReader(call(MessageWriter(Op::check).add(keys).finish())).truth();
}

int64_t Client::count() {
  return MessageReader(call(MessageWriter(Op::count).finish())).number();
}

void Client::append(const std::string& key, std::string_view value) {
  call(MessageWriter(Op::append).add(std::string_view(key)).add(value).finish());
}

void Client::last_will(const std::string& key, std::string_view value, const std::string& counter) {
  call(MessageWriter(Op::last_will).add(std::string_view(key)).add(value).add(std::string_view(counter)).finish());
}

int64_t Client::take_number(const std::string& numbers, const std::string& key, std::string_view value,
                            const std::string& counter) {
  const auto request = MessageWriter(Op::take_number)
                           .add(std::string_view(numbers))
                           .add(std::string_view(key))
                           .add(value)
                           .add(std::string_view(counter))
                           .finish();
  return MessageReader(call(request)).number();
}

} // namespace trireme::store
