#pragma once

#include <trireme/comm/environment.h>
#include <trireme/store/meeting.h>

#include <string>

namespace trireme::comm {

/// The environment of a world of a round's members, connected through the store of their meeting. `source`: their name
/// in messages.
inline Environment environment_of(const store::Round& round, const store::MeetingOptions& meeting,
                                  const std::string& source) {
  Environment environment;
  environment.rank = round.rank;
  environment.size = round.size;
  environment.host = meeting.store.host;
  environment.port = meeting.store.port;
  environment.store_elsewhere = true;
  environment.key_prefix =
      concat(meeting.training == 1 ? "" : concat("training ", meeting.training, "/"), "round ", round.number, "/");
  environment.job = meeting.job;
  environment.source = source;
  return environment;
}

} // namespace trireme::comm
