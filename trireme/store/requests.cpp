#include <trireme/store/requests.h>

#include <trireme/base/error.h>
#include <trireme/store/messages.h>

#include <algorithm>

namespace trireme::store {
namespace {

MessageWriter reply() {
  return MessageWriter(Status::done);
}

std::string refuse(const std::string& why) {
  return MessageWriter(Status::refused).add(std::string_view(why)).finish();
}

Outcome find(const Table& table, MessageReader& request) {
  auto values = reply();
  size_t bytes = 0;
  for (const auto& key : request.texts()) {
    const std::string* value = table.find(key);
    values.add(value != nullptr);
    values.add(value == nullptr ? std::string_view() : std::string_view(*value));
    bytes += value == nullptr ? 0 : value->size();
    if (bytes > kLongestMessage / 2) {
      return refuse("the requested values are too long for one message");
    }
  }
  return values.finish();
}

Outcome wait(Table& table, uint64_t waiter, MessageReader& request) {
  const auto keys = request.texts();
  // Limits the wait to a year, so that adding it to a point in time cannot overflow.
  const auto timeout = std::clamp<int64_t>(request.number(), 0, 365LL * 24 * 3600 * 1000);
  request.end();
  if (table.wait(waiter, keys)) {
    return waited(true);
  }
  return Parked{std::chrono::milliseconds(timeout)};
}

Outcome take_number(Table& table, MessageReader& request) {
  const std::string counter(request.text());
  LastWill will{std::string(request.text()), std::string(request.text()), std::string(request.text()), ""};
  request.end();
  const auto number = table.add(counter, 1);
  if (!number) {
    return refuse(concat("the value of \"", counter, "\" is not a number to which 1 can be added"));
  }
  will.key += std::to_string(*number);
  will.reply = reply().add(*number).finish();
  return will;
}

Outcome append(Table& table, MessageReader& request) {
  const std::string key(request.text());
  const auto value = request.text();
  const std::string* now = table.find(key);
  if (now != nullptr && now->size() + value.size() > kLongestMessage / 2) {
    return refuse("the value would be too long for one message");
  }
  table.append(key, value);
  return done();
}

} // namespace

std::string waited(bool all_there) {
  return reply().add(all_there).finish();
}

std::string done() {
  return reply().finish();
}

Outcome carry_out(Table& table, uint64_t waiter, std::string_view bytes) {
  MessageReader request(bytes);
  const auto op = static_cast<Op>(request.byte());
  switch (op) {
    case Op::set: {
      const std::string key(request.text());
      const auto value = request.text();
      request.end();
      table.set(key, value);
      return done();
    }
    case Op::find:
      return find(table, request);
    case Op::add: {
      const std::string key(request.text());
      const int64_t delta = request.number();
      request.end();
      const auto sum = table.add(key, delta);
      return sum ? reply().add(*sum).finish()
                 : refuse(concat("the value of \"", key, "\" is not a number to which ", delta, " can be added"));
    }
    case Op::wait:
      return wait(table, waiter, request);
    case Op::compare_set: {
      const std::string key(request.text());
      const auto expected = request.text();
      const auto desired = request.text();
      request.end();
      return reply().add(std::string_view(table.compare_set(key, expected, desired))).finish();
    }
    case Op::remove:
      return reply().add(table.remove(std::string(request.text()))).finish();
    case Op::check:
      return reply().add(table.has_all(request.texts())).finish();
    case Op::count:
      request.end();
      return reply().add(static_cast<int64_t>(table.size())).finish();
    case Op::append:
      return append(table, request);
    case Op::last_will: {
      LastWill will{std::string(request.text()), std::string(request.text()), std::string(request.text()), done()};
      request.end();
      return will;
    }
    case Op::take_number:
      return take_number(table, request);
  }
  throw BadMessage(concat("operation ", static_cast<int>(op), " is unknown"));
}

} // namespace trireme::store
