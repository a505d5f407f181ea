#include <trireme/extensions/horovod/elastic/run.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/comm/round_environment.h>
#include <trireme/extensions/horovod/elastic/round.h>
#include <trireme/extensions/horovod/horovod.h>
#include <trireme/store/meeting.h>

#include <ATen/ATen.h>

#include <charconv>
#include <optional>

namespace trireme::horovod::elastic {
namespace {

store::Meeting* open_meeting = nullptr; // during run(); only its thread uses it
/// A rank that is this late for an operation is left out of the next round, even if it is alive, unless TRIREME_TIMEOUT
/// says otherwise.
constexpr std::chrono::milliseconds kLateRank{60'000};
int finished_trainings = 0; // in this process; run() finishes them in the same order on all processes

int number_of(std::string_view text, const char* variable) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    throw InputError("elastic", concat(variable, ": expected a whole number >= 1, got \"", text, "\""),
                     "Correct or unset it.");
  }
  return number;
}

store::Endpoint endpoint_of(const std::string& place) {
  const size_t colon = place.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    throw InputError("elastic", concat("the store of an elastic run is \"", place, "\", which is not HOST:PORT"),
                     "Give HOST:PORT of \"trireme store\".");
  }
  return {place.substr(0, colon), number_of(std::string_view(place).substr(colon + 1), "TRIREME_ELASTIC")};
}

store::MeetingOptions meeting_options(const std::string& place, const RunOptions& options) {
  store::MeetingOptions meeting;
  meeting.store = endpoint_of(place);
  meeting.secret = store::Secret::from_environment();
  if (meeting.secret.empty()) {
    throw InputError(
        "elastic", "an elastic run has no secret, so anybody could join it",
        "Set TRIREME_SECRET_FILE, for \"trireme store\" and all ranks, to a file of 32 random bytes with mode 0600.");
  }
  meeting.job = env::text("TRIREME_RUN_ID").value_or("");
  const std::string ranks = env::text("TRIREME_ELASTIC_RANKS").value_or("1");
  const size_t colon = ranks.find(':');
  meeting.min_ranks = options.min_ranks != 0
                          ? options.min_ranks
                          : number_of(std::string_view(ranks).substr(0, colon), "TRIREME_ELASTIC_RANKS");
  meeting.max_ranks = options.max_ranks != 0 ? options.max_ranks
                      : colon == std::string::npos
                          ? 0
                          : number_of(std::string_view(ranks).substr(colon + 1), "TRIREME_ELASTIC_RANKS");
  if (const auto seconds = env::text("TRIREME_ELASTIC_TIMEOUT")) {
    meeting.patience = std::chrono::seconds(number_of(*seconds, "TRIREME_ELASTIC_TIMEOUT"));
  }
  return meeting;
}

enum class End { done, lost, changed };

/// Trains one round. Its world must be closed outside of an exception, which would tell the others that this rank has
/// failed.
End train_round(State& state, const std::function<void(comm::World&)>& train, comm::World& world, bool again) {
  End end = End::done;
  try {
    init(world);
    state.sync();
    open_meeting->settle();
    if (again) {
      state.on_reset();
    }
    train(world);
    barrier(); // every rank notices one that is lost before all are done
  } catch (const PeerError& error) {
    log::warning("elastic: ", error.what());
    end = End::lost;
  } catch (const MembersChanged&) {
    end = End::changed;
  }
  shutdown();
  return end;
}

/// Whether the training ends with this round. False: the others were without this process for so long that they have
/// begun another training.
bool finish(store::Meeting& meeting) {
  try {
    return meeting.finish();
  } catch (const store::LostError& error) {
    log::warning("elastic: the store was lost at the end of the training: ", error.happened);
    return true;
  }
}

/// Shuts Horovod down whatever train() throws.
class Shutdown {
 public:
  Shutdown() = default;
  ~Shutdown() {
    shutdown();
    open_meeting = nullptr;
  }
  Shutdown(const Shutdown&) = delete;
  Shutdown& operator=(const Shutdown&) = delete;
};

} // namespace

void end_round_if_changed() {
  if (open_meeting == nullptr) {
    return;
  }
  const int64_t changed = rank() == 0 && open_meeting->changed() ? 1 : 0;
  if (broadcast(at::full({1}, changed, at::kLong), 0, "elastic: have processes come or gone").item<int64_t>() != 0) {
    throw MembersChanged();
  }
}

bool run(State& state, const std::function<void(comm::World&)>& train, const RunOptions& options) {
  if (is_initialized()) {
    throw InputError("elastic", "elastic::run() after init()", "Remove init() and shutdown(): run() calls them.");
  }
  const std::string place = options.store.empty() ? env::text("TRIREME_ELASTIC").value_or("") : options.store;
  if (place.empty()) {
    comm::World world = comm::World::connect(options.world);
    const Shutdown at_end;
    init(world);
    state.sync();
    train(world);
    return true;
  }
  store::MeetingOptions meeting_place = meeting_options(place, options);
  meeting_place.training = finished_trainings + 1;
  store::Meeting meeting(meeting_place);
  state.save(); // restored if a rank is lost in the first round
  for (int lost = 0, rounds = 0;; ++rounds) {
    store::Round round;
    try {
      round = meeting.next_round();
    } catch (const store::FinishedError& finished) {
      log::warning(finished.what());
      ++finished_trainings;
      return false;
    }
    End end = End::lost;
    try {
      comm::World world = comm::World::connect(comm::environment_of(round, meeting_place, "an elastic run"),
                                               comm::with_timeout(options.world, kLateRank));
      const Shutdown at_end;
      if (round.rank == 0) {
        log::info("elastic: round ", round.number, " has ", round.size, round.size == 1 ? " rank" : " ranks");
      }
      open_meeting = &meeting;
      end = train_round(state, train, world, rounds > 0);
    } catch (const PeerError& error) { // a rank was lost before all were connected
      log::warning("elastic: ", error.what());
    }
    if (end == End::done && finish(meeting)) {
      ++finished_trainings;
      return true;
    }
    if (end == End::lost) {
      state.restore();
      if (options.reset_limit > 0 && ++lost > options.reset_limit) {
        throw PeerError("elastic", concat("ranks were lost ", lost, " times, and reset_limit is ", options.reset_limit),
                        "Look at the output of the lost ranks.");
      }
    }
  }
}

} // namespace trireme::horovod::elastic
