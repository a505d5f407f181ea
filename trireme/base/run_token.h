#pragma once

#include <trireme/base/error.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

/// A later attempt has taken over the run folder: whoever gets this writes nothing more there, and ends.
class ReplacedError : public PeerError {
 public:
  ReplacedError(const std::string& happened, bool by_own_job)
      : PeerError("run", happened,
                  "Let the other one go on. To go on with this one instead, end the other and use --resume."),
        by_own_job_(by_own_job) {}
  /// Whether another process of the same job has taken over, as a replica does whose first one is lost.
  bool by_own_job() const {
    return by_own_job_;
  }

 private:
  bool by_own_job_;
};

/// The right to write a run folder, which the newest attempt has: a fencing token. A start of the training claims it,
/// and its writer checks it before
/// it writes, so that one that was taken for lost (a silent host, a stopped process) and comes back later damages
/// nothing.
///
/// In `folder`, attempt.N is the claim of attempt N: a JSON object that gets its name when it is whole. Who makes it
/// removes those with lower numbers, the newest stays: numbers grow as long as the folder exists. A check opens the own
/// claim, which a shared file system looks up anew, and not a name that may be in a cache. Between a check and the
/// write after it, another attempt may claim: the lease of launch/lease.h makes that rare. Cost: a check opens and
/// reads one small file (10 us on a local disk). Not for several threads at once.
class RunToken {
 public:
  struct Holder {
    int64_t attempt = 0;
    /// Names the job among all that may write here, "" where nothing does: then nobody else is of the same job.
    std::string job;
    std::string host;
    /// UTC.
    std::string started;
    std::string id;
  };

  /// Claims nothing yet. `job`: see Holder. `after`: the attempt that the job's launcher has claimed; processes of the
  /// job then take over from each other only,
  /// and not from a later job.
  explicit RunToken(std::filesystem::path folder, std::string job = "", std::optional<int64_t> after = std::nullopt);
  /// TRIREME_RUN_ID and TRIREME_RUN_ATTEMPT, which `trireme train` sets; else the job's name by torchrun, Slurm or
  /// TF_CONFIG.
  static RunToken of_environment(std::filesystem::path folder);

  /// Takes the token, now or again, with a number above any before; makes the folder. Errors: ReplacedError when a
  /// later job has it, Error with the system's reason.
  void claim();
  bool claimed() const {
    return claimed_;
  }
  int64_t attempt() const {
    return mine_.attempt;
  }
  /// Does nothing before claim(). Errors: ReplacedError, or Error when the system does not let it look.
  void check() const;
  /// For a process of the job that has claimed nothing: that no other job has claimed the folder since the launcher did
  /// for this one. Errors: ReplacedError.
  void check_job() const;

  /// The last claim in `folder`, nullopt without any.
  static std::optional<Holder> newest(const std::filesystem::path& folder);

 private:
  std::filesystem::path file_of(int64_t attempt) const;
  bool make(int64_t attempt);
  void check_job(const std::optional<Holder>& last) const;
  [[noreturn]] void fail(const std::optional<Holder>& newest) const;

  std::filesystem::path folder_;
  std::optional<int64_t> after_;
  Holder mine_;
  bool claimed_ = false;
};

/// "attempt 3, started 2026-11-28T03:13:05Z on host a", for people.
std::string describe(const RunToken::Holder& holder);

} // namespace trireme
