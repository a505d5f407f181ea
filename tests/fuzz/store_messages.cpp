// What a stranger and a client may send to the store of a job.
#include "fuzz.h"

#include <trireme/store/handshake.h>
#include <trireme/store/messages.h>
#include <trireme/store/requests.h>
#include <trireme/store/table.h>

#include <algorithm>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

void greet(std::string_view bytes) {
  static const store::Secret secret(std::string(store::Secret::kBytes, 's'));
  store::Greeting greeting{};
  store::Answer answer{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), greeting.size()), greeting.begin());
  std::copy_n(bytes.begin(), std::min(bytes.size(), answer.size()), answer.begin());
  static_cast<void>(store::judge_greeting(greeting, "job"));
  static_cast<void>(store::may_become_answer(bytes.substr(0, store::kAnswerBytes)));
  require(!store::verify_answer(secret, store::make_greeting("job"), answer),
          "nobody is let in who does not know the secret");
}

/// The server closes the connection for BadMessage, and for nothing else.
void serve(std::string_view bytes) {
  store::Table table;
  uint64_t waiter = 0;
  try {
    while (bytes.size() >= store::kLengthBytes) {
      const size_t length = store::message_length(bytes);
      bytes.remove_prefix(store::kLengthBytes);
      const store::Outcome outcome = store::carry_out(table, ++waiter, bytes.substr(0, length));
      if (const auto* reply = std::get_if<std::string>(&outcome)) {
        require(store::message_length(*reply) + store::kLengthBytes == reply->size(),
                "a reply has the length that it says");
      }
      bytes.remove_prefix(std::min(length, bytes.size()));
      static_cast<void>(table.take_ready());
    }
  } catch (const store::BadMessage&) {
  }
  while (waiter > 0) {
    table.forget(waiter--);
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  greet(text_of(data, size));
  serve(text_of(data, size));
  return 0;
}
