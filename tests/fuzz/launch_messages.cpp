// What an agent and the launcher say to each other, and what a remote shell says in between.
#include "fuzz.h"

#include <trireme/launch/messages.h>

#include <nlohmann/json.hpp>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = text_of(data, size);
  require(launch::to_bytes(launch::to_text(bytes)) == bytes, "any bytes survive as text");
  launch::MessageReader reader;
  // In two reads, cut anywhere: the first byte says where.
  const size_t cut = size == 0 ? 0 : data[0] % size;
  for (const std::string_view part : {bytes.substr(0, cut), bytes.substr(cut)}) {
    reader.add(part);
    while (const auto line = reader.next()) {
      if (!line->message) {
        continue;
      }
      require(!launch::pack(*line->message).empty(), "a message can be sent on");
      try {
        static_cast<void>(launch::unpack_share(*line->message));
      } catch (const nlohmann::json::exception&) { // how both sides refuse
      } catch (const Error&) {
      }
      try {
        static_cast<void>(launch::unpack_variables(line->message->value("env", nlohmann::json())));
      } catch (const nlohmann::json::exception&) {
      }
    }
  }
  return 0;
}
