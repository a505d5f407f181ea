#pragma once

#include <trireme/base/error.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

/// A later attempt has taken over the run folder: the receiver must write nothing more there and end.
class ReplacedError : public PeerError {
 public:
  ReplacedError(const std::string& happened, bool by_own_job)
      : PeerError("run", happened,
                  "Let the other one go on. To go on with this one instead, end the other and use --resume."),
        by_own_job_(by_own_job) {}
  /// True if another process of the same job has taken over, such as the replacement of a lost replica.
  bool by_own_job() const { return by_own_job_; }

 private:
  bool by_own_job_;
};

/// The right to write a run folder: a fencing token, held by the newest attempt. A start of
/// the training claims it, and its writer checks it before every write. A process that was
/// taken for lost (a silent host, a stopped process) and resumes later therefore damages
/// nothing.
///
/// In `folder`, attempt.N is the claim of attempt N: a JSON object that gets its name when complete. A claim
/// removes those with lower numbers; the newest stays, so numbers grow as long as the folder exists. A check opens its
/// own claim, because a shared file system looks up a file to open but may list names from a cache. Another attempt may
/// claim between a check and the write after it; the lease of launch/lease.h makes that rare. Cost: a check opens and
/// reads one small file (10 us on a local disk). Not thread-safe.
class RunToken {
 public:
  struct Holder {
    int64_t attempt = 0;
    /// Identifies the job among all that may write here; "" if unknown: then no other process belongs to the same job.
    std::string job;
    std::string host;
    /// UTC.
    std::string started;
    std::string id;
  };

  /// Claims nothing yet. `job`: see Holder. `after`: the attempt that the job's launcher has
  /// claimed. Processes of the job then take over from each other only, not from a later
  /// job.
  explicit RunToken(std::filesystem::path folder, std::string job = "", std::optional<int64_t> after = std::nullopt);
  /// From TRIREME_RUN_ID and TRIREME_RUN_ATTEMPT, which `trireme train` sets; otherwise the job's name from torchrun,
  /// Slurm or TF_CONFIG.
  static RunToken of_environment(std::filesystem::path folder);

  /// Claims the token, also repeatedly, with a number above all earlier ones; creates the folder. Errors: ReplacedError
  /// if a later job has it, Error with the system's reason.
  void claim();
  bool claimed() const { return claimed_; }
  int64_t attempt() const { return mine_.attempt; }
  /// Does nothing before claim(). Errors: ReplacedError, or Error when the claim cannot be read.
  void check() const;
  /// For a process of the job without a claim: checks that no other job has claimed the folder since the launcher of
  /// this one did. Errors: ReplacedError.
  void check_job() const;

  /// The newest claim in `folder`, nullopt if there is none.
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
