#include <trireme/launch/attempts.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <chrono>
#include <optional>
#include <utility>

namespace trireme::launch {

Outcome run_attempts(const Job& job, const std::function<Start()>& next_start, HostPool* pool) {
  const int attempts = job.options.max_restarts + 1;
  std::string first_cause;
  Outcome last;
  for (int number = 0;;) {
    Start start = next_start();
    if (start.members.empty()) {
      job.screen.say(pool->shortage());
      last.exit_code = last.exit_code == 0 ? 1 : last.exit_code;
      return last;
    }
    Attempt attempt(job, number, std::move(start.members), std::move(start.address), std::move(start.command));
    if (const auto leased = pool != nullptr ? pool->leased() : std::nullopt) {
      job.screen.say(concat("waiting ",
                            format_seconds(std::chrono::duration<double>(leased->until - Clock::now()).count()),
                            ": ranks on host ", leased->host, " may still run, until its lease ends"));
      attempt.start_not_before(leased->until);
    }
    const Outcome outcome = attempt.run();
    if (pool != nullptr) {
      pool->drop_lost();
    }
    if (outcome.not_started && outcome.received_signal == 0) {
      continue; // with another host, or without it
    }
    last = outcome;
    first_cause = first_cause.empty() ? outcome.cause : first_cause;
    const bool final = outcome.exit_code == 0 || outcome.exit_code == 2 || outcome.received_signal != 0;
    if (final || number + 1 == attempts) {
      if (!final && attempts > 1) {
        job.screen.say(concat("the first failure was: ", first_cause));
        job.screen.say(concat("giving up after attempt ", attempts, " of ", attempts));
      }
      return outcome;
    }
    if (const std::string why = job.options.superseded ? job.options.superseded() : ""; !why.empty()) {
      job.screen.say(concat("not starting again: ", why));
      return outcome;
    }
    job.account.failed(outcome.cause, outcome.stop_seconds);
    ++number;
    job.screen.say(concat("starting all ranks again: attempt ", number + 1, " of ", attempts, " (the last one ran ",
                          format_seconds(outcome.ran_seconds), ", stopping it took ",
                          format_seconds(outcome.stop_seconds), ")"));
    if (pool != nullptr) {
      pool->forgive();
    }
  }
}

} // namespace trireme::launch
