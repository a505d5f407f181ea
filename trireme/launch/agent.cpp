#include <trireme/launch/agent.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/launch/lease.h>
#include <trireme/launch/local_place.h>
#include <trireme/launch/messages.h>
#include <trireme/launch/screen.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

namespace trireme::launch {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

constexpr milliseconds kBeat{500};
// Lease until the first order sets its length.
constexpr std::chrono::seconds kFirstOrder{60};

Lease of_first_order() {
  Lease lease{kFirstOrder};
  lease.granted(host_time());
  return lease;
}

// The connection is moved from 0 and 1, so that stray reads and prints do not disturb it.
Descriptor take_over(int fd, int instead) {
  Descriptor moved(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  ::dup2(instead, fd);
  return moved;
}

class Agent : private PlaceEvents {
 public:
  Agent() : orders_(take_over(0, open_null().get())), events_fd_(take_over(1, 2)), events_(events_fd_.get()) {
    set_nonblocking(orders_.get());
  }

  int run() {
    while (!over_) {
      wait();
      const auto now = Clock::now();
      if (now - beat_at_ >= kBeat) {
        beat_at_ = now;
        tell({{"is", "beat"}, {"asked", host_time().count()}});
      }
      if (!over_ && !lease_.held(host_time())) {
        over_ = true;
        tell({{"is", "say"},
              {"text",
               concat("no answer from the launcher for ", format_seconds(duration<double>(lease_.length()).count()),
                      "; the agent ends its ranks")}});
      }
      advance();
    }
    while (place_ && place_->state() == Place::State::running) {
      beat_at_ = Clock::now(); // otherwise wait() would return at once
      place_->kill();
      advance();
      wait();
    }
    if (!place_ || !place_->left_process()) {
      tell({{"is", "gone"}});
    }
    return stop_requested_ ? 1 : 0;
  }

 private:
  void tell(const Message& event) { events_.write(pack(event)); }

  void wait() {
    std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
    if (!over_) {
      polled.push_back({orders_.get(), POLLIN, 0});
    }
    if (events_.pending()) {
      polled.push_back({events_.fd(), POLLOUT, 0});
    }
    auto wake = beat_at_ + kBeat;
    if (place_) {
      place_->add_to(polled);
      wake = std::min(wake, place_->wake().value_or(wake));
    }
    double left = duration<double, std::milli>(wake - Clock::now()).count();
    if (!over_) {
      left = std::min(left, duration<double, std::milli>(lease_.until() - host_time()).count());
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp(std::ceil(left), 0.0, 1000.0)));
    events_.flush();
    if (place_) {
      place_->serve(polled);
    }
    while (const std::optional<int> number = signals_.next()) {
      if (*number == SIGINT || *number == SIGTERM || *number == SIGHUP) {
        over_ = stop_requested_ = true;
      }
    }
    if (!over_ && polled[1].revents != 0) {
      read_orders();
    }
  }

  void read_orders() {
    char buffer[64 * 1024];
    ssize_t got = 0;
    while ((got = ::read(orders_.get(), buffer, sizeof(buffer))) > 0) {
      reader_.add(std::string_view(buffer, static_cast<size_t>(got)));
      while (const auto line = reader_.next()) {
        if (!line->message) {
          throw InputError("agent", "unexpected message from the launcher",
                           "Are both of the same version? trireme starts its agents itself, see docs/launching.md.");
        }
        try {
          obey(*line->message);
        } catch (const nlohmann::json::exception& error) {
          refuse(Error("agent", concat("invalid order from the launcher: ", error.what())));
        } catch (const Error& error) {
          refuse(error);
        }
      }
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      over_ = true;
    }
  }

  void refuse(const Error& error) {
    tell({{"is", "refused"}, {"input", error.exit_code() == 2}, {"text", to_text(error.what())}});
    if (place_) {
      place_->kill();
    }
  }

  void obey(const Message& order) {
    const std::string what = order.at("do");
    if (what == "job") {
      take_job(order);
    } else if (!place_) {
      return;
    } else if (what == "beat") {
      lease_.granted(HostTime(order.at("asked").get<int64_t>()));
      place_->lease_until(lease_.until() + kGuardianLater);
    } else if (what == "listen") {
      place_->listen(to_bytes(order.at("address")), order.at("ranks"));
      const Ports ports = place_->ports().value();
      tell({{"is", "listening"}, {"port", ports.store}, {"program_port", ports.program}});
    } else if (what == "start") {
      if (!lease_.held(host_time())) { // so late that the ranks may run on other hosts
        over_ = true;
        return;
      }
      held_ = false;
      running_ = true;
      place_->start(unpack_share(order.at("share")), *this);
    } else if (what == "signal") {
      place_->signal(order.at("signal"));
    } else if (what == "stop") {
      place_->stop(order.at("signal"));
    } else if (what == "kill") {
      place_->kill();
    } else if (what == "hold") {
      held_ = order.at("on");
    }
  }

  void take_job(const Message& order) {
    PlaceSetup setup;
    setup.host = to_bytes(order.at("host"));
    setup.run_id = order.at("run_id");
    setup.secret = order.at("secret");
    setup.extra_env = unpack_variables(order.at("env"));
    const HostTime asked = host_time();
    lease_ = Lease(std::chrono::duration_cast<HostTime>(duration<double>(order.at("lease_s").get<double>())));
    lease_.granted(asked); // nothing runs yet: it must last until the launcher answers
    const std::string folder = to_bytes(order.at("folder"));
    if (::chdir(folder.c_str()) != 0) {
      throw InputError("agent", concat("cannot work in ", folder, ": ", std::strerror(errno)),
                       "All hosts need the job's folder under the same path: start from a shared file system.");
    }
    setup.last_word_fd = events_fd_.get();
    place_.emplace(std::move(setup), signals_);
    place_->lease_until(lease_.until() + kGuardianLater);
    tell({{"is", "ready"}, {"protocol", kProtocol}, {"pid", ::getpid()}, {"asked", asked.count()}});
  }

  void advance() {
    if (place_) {
      try {
        place_->advance();
      } catch (const Error& error) {
        refuse(error);
      }
      if (running_ && place_->state() != Place::State::running) {
        running_ = false;
        tell({{"is", "over"}});
      }
    }
  }

  void output(int rank, int stream, std::string_view bytes) override {
    tell({{"is", "output"}, {"rank", rank}, {"stream", stream}, {"text", to_text(bytes)}});
  }
  bool wants(int, int) const override { return over_ || (!held_ && !events_.full()); }
  void ended(int rank, const RankEnd& end) override { tell(pack_end(rank, end)); }
  void say(std::string_view words) override { tell({{"is", "say"}, {"text", to_text(words)}}); }

  SignalWatch signals_;
  Descriptor orders_;
  Descriptor events_fd_;
  Outlet events_;
  MessageReader reader_;
  std::optional<LocalPlace> place_;
  bool running_ = false;
  bool held_ = false;
  bool over_ = false;
  bool stop_requested_ = false;
  Lease lease_ = of_first_order();
  Clock::time_point beat_at_ = Clock::now();
};

} // namespace

int run_agent() {
  fill_standard_descriptors();
  ::prctl(PR_SET_PDEATHSIG, 0); // end of input signals it too, and leaves time to kill all ranks
  return Agent().run();
}

} // namespace trireme::launch
