#include <trireme/launch/remote_place.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

namespace trireme::launch {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLook{500};
// A host behind a slow login; ssh gives up on one that is down after 10 s (see agent_command()).
constexpr seconds kConnect{20};
// To look up the address and open a socket.
constexpr seconds kListen{20};

} // namespace

RemotePlace::RemotePlace(AgentSetup setup, std::unique_ptr<AgentConnection> connection, Say say)
    : setup_(std::move(setup)), connection_(std::move(connection)), say_(std::move(say)), lease_(setup_.lease_seconds) {
  listener_.arrived = [this](std::string_view bytes) { read(bytes); };
  listener_.complained = [this](std::string_view line) {
    if (state_ != State::connecting) { // earlier ones explain why the connection fails
      say_(concat(setup_.host, ": ", line));
    }
  };
  listener_.ended = [this] { lose(""); };
  started_at_ = heard_at_ = looked_at_ = Clock::now();
  send(setup_.job);
}

void RemotePlace::send(const Message& order) {
  if (state_ != State::lost) {
    connection_->send(pack(order));
  }
}

void RemotePlace::listen(const std::string& address, int ranks) {
  ports_.reset();
  listen_at_ = Clock::now();
  send({{"do", "listen"}, {"address", to_text(address)}, {"ranks", ranks}});
}

void RemotePlace::start(const Share& share, PlaceEvents& events) {
  share_ = share;
  events_ = &events;
  held_ = kill_sent_ = false;
  send({{"do", "start"}, {"share", pack_share(share)}});
  if (state_ == State::ready) {
    state_ = State::running;
  }
}

void RemotePlace::signal(int number) {
  send({{"do", "signal"}, {"signal", number}});
}

void RemotePlace::stop(int number) {
  send({{"do", "stop"}, {"signal", number}});
}

void RemotePlace::kill() {
  if (!kill_sent_) {
    kill_sent_ = true;
    send({{"do", "kill"}});
  }
}

void RemotePlace::add_to(std::vector<pollfd>& polled) const {
  connection_->add_to(polled);
}

void RemotePlace::serve(const std::vector<pollfd>& polled) {
  connection_->serve(polled, listener_);
}

void RemotePlace::read(std::string_view bytes) {
  heard_at_ = Clock::now();
  try {
    reader_.add(bytes);
    while (state_ != State::lost) {
      const auto line = reader_.next();
      if (!line) {
        return;
      }
      if (line->message) {
        handle(*line->message);
      } else if (!line->text.empty()) {
        say_(concat(setup_.host, ": ", line->text));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    lose(concat("its agent sent an invalid message (", error.what(), ")"));
  } catch (const Error& error) {
    lose(error.what());
  }
}

bool RemotePlace::has(int rank) const {
  return rank >= share_.first_rank && rank < share_.first_rank + share_.local_ranks;
}

void RemotePlace::handle(const Message& event) {
  const std::string is = event.at("is");
  if ((is == "output" || is == "ended") && events_ != nullptr) {
    const int rank = whole(event, "rank");
    if (!has(rank)) {
      lose(concat("its agent reported rank ", rank, ", which does not run there"));
    } else if (is == "output") {
      events_->output(rank, whole(event, "stream") == 0 ? 0 : 1, to_bytes(event.at("text")));
    } else {
      events_->ended(rank, unpack_end(event));
    }
  } else if (is == "say" && events_ != nullptr) {
    events_->say(concat(setup_.host, ": ", to_bytes(event.at("text"))));
  } else if (is == "ready") {
    if (event.at("protocol") != kProtocol) {
      lose(concat("its agent is of another version of Trireme (it has protocol ", event.at("protocol").dump(),
                  ", this one ", kProtocol, ")"));
    } else {
      state_ = State::ready;
      answer(event);
    }
  } else if (is == "beat") {
    answer(event);
  } else if (is == "over") {
    state_ = State::ready;
  } else if (is == "gone") {
    gone_ = true;
  } else if (is == "listening") {
    ports_ = Ports{whole(event, "port"), whole(event, "program_port")};
    listen_at_.reset();
  } else if (is == "refused") {
    const std::string text = concat("on host ", setup_.host, ": ", to_bytes(event.at("text")));
    const bool input = event.at("input");
    refusal_ =
        input ? std::make_exception_ptr(InputError("launch", text)) : std::make_exception_ptr(Error("launch", text));
  }
}

void RemotePlace::answer(const Message& event) {
  if (event.contains("asked")) {
    lease_.answered(Clock::now());
    send({{"do", "beat"}, {"asked", event.at("asked").get<int64_t>()}});
  }
}

void RemotePlace::advance() {
  if (state_ == State::lost) {
    return;
  }
  const auto now = Clock::now();
  if (now - looked_at_ > seconds(1)) { // the silence is due to this process: it was stopped or its machine slept
    heard_at_ = started_at_ = now;
    listen_at_ = listen_at_ ? std::optional(now) : std::nullopt;
  }
  looked_at_ = now;
  if (state_ == State::connecting) {
    if (now - started_at_ > kConnect) {
      lose(concat("its agent did not answer within ", format_seconds(duration<double>(kConnect).count())));
    }
  } else if (duration<double>(now - heard_at_).count() > setup_.heartbeat_timeout) {
    lose(concat("it has sent nothing for ", format_seconds(setup_.heartbeat_timeout),
                ": the machine or its network is down, or its agent is stopped"));
  } else if (listen_at_ && now - *listen_at_ > kListen) {
    lose(concat("it has not opened a socket for its ranks within ", format_seconds(duration<double>(kListen).count())));
  }
  if (state_ == State::running && events_ != nullptr) {
    bool hold = false;
    for (int rank = share_.first_rank; rank < share_.first_rank + share_.local_ranks; ++rank) {
      hold = hold || !events_->wants(rank, 0) || !events_->wants(rank, 1);
    }
    if (hold != held_) {
      held_ = hold;
      send({{"do", "hold"}, {"on", hold}});
    }
  }
  if (refusal_) {
    std::rethrow_exception(std::exchange(refusal_, nullptr));
  }
}

std::optional<Clock::time_point> RemotePlace::wake() const {
  return state_ == State::lost ? std::nullopt : std::optional(looked_at_ + kLook);
}

void RemotePlace::lose(const std::string& why) {
  if (state_ == State::lost) {
    return;
  }
  const bool connecting = state_ == State::connecting;
  may_run_ = state_ == State::running && !gone_;
  state_ = State::lost;
  if (why.empty()) {
    why_lost_ = concat(connecting ? "it cannot be reached: " : "the connection to its agent ended: ",
                       connection_->last_words(listener_));
  } else {
    why_lost_ = why;
    connection_->cut();
  }
}

} // namespace trireme::launch
