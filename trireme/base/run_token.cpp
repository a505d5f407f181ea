#include <trireme/base/run_token.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/env.h>
#include <trireme/base/file.h>
#include <trireme/base/hash.h>
#include <trireme/base/stamp.h>

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kClaim = "attempt.";

// The number in "attempt.12"; 0 for any other name.
int64_t attempt_in(const std::string& name) {
  int64_t number = 0;
  const char* const end = name.data() + name.size();
  const bool is_claim =
      name.starts_with(kClaim) && std::from_chars(name.data() + kClaim.size(), end, number).ptr == end;
  return is_claim ? number : 0;
}

// Sorted; empty if the folder does not exist.
std::vector<int64_t> attempts_in(const fs::path& folder) {
  std::vector<int64_t> all;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (const int64_t attempt = attempt_in(entry->path().filename().string()); attempt > 0) {
      all.push_back(attempt);
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error("run", concat("cannot look for attempts in ", folder.string(), ": ", error.message()),
                "Check its permissions.");
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// The text of a claim; "" with errno if it cannot be read.
std::string read_claim(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::string text(4096, '\0');
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : -1;
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

RunToken::Holder holder_in(const std::string& text, int64_t attempt) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto word = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  return {attempt, word("job"), word("host"), word("started"), word("id")};
}

std::string job_of_environment() {
  for (const char* const name : {"TRIREME_RUN_ID", "TORCHELASTIC_RUN_ID"}) {
    if (const auto id = env::text(name); id && *id != "none") { // torchrun's default is none
      return *id;
    }
  }
  if (const auto job = env::text("SLURM_JOB_ID")) {
    return concat("slurm ", *job, '.', env::text("SLURM_STEP_ID").value_or("0"));
  }
  const auto task = nlohmann::json::parse(env::text("TF_CONFIG").value_or(""), nullptr, false);
  return task.is_object() && task.contains("cluster") ? concat("cluster ", std::hex, fnv1a(task["cluster"].dump()))
                                                      : "";
}

std::string this_host() {
  if (const auto name = env::text("TRIREME_HOST")) {
    return *name;
  }
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

} // namespace

std::string describe(const RunToken::Holder& holder) {
  return concat("attempt ", holder.attempt, holder.started.empty() ? "" : concat(", started ", holder.started),
                holder.host.empty() ? "" : concat(" on host ", holder.host));
}

RunToken::RunToken(fs::path folder, std::string job, std::optional<int64_t> after)
    : folder_(std::move(folder)), after_(after) {
  mine_.job = std::move(job);
}

RunToken RunToken::of_environment(fs::path folder) {
  std::optional<int64_t> after = env::integer("TRIREME_RUN_ATTEMPT");
  if (!after && env::integer("TORCHELASTIC_RESTART_COUNT").value_or(0) > 0) {
    after = 0; // this job has claimed the folder before, and may not take it from another
  }
  return RunToken(std::move(folder), job_of_environment(), after);
}

fs::path RunToken::file_of(int64_t attempt) const {
  return folder_ / concat(kClaim, attempt);
}

std::optional<RunToken::Holder> RunToken::newest(const fs::path& folder) {
  constexpr int kMostTries = 100;
  for (int tries = 0;; ++tries) {
    const std::vector<int64_t> all = attempts_in(folder);
    if (all.empty()) {
      return std::nullopt;
    }
    // The claim may be unfinished, or removed because a newer one exists.
    const std::string text = read_claim(folder / concat(kClaim, all.back()));
    if (!text.empty() || tries == kMostTries) {
      return holder_in(text, all.back());
    }
    ::usleep(tries == 0 ? 0 : 10'000);
  }
}

// False if that number is taken.
bool RunToken::make(int64_t attempt) {
  const fs::path path = file_of(attempt);
  const auto fail = [&](const char* what) {
    throw Error("run",
                concat("cannot ", what, ' ', path.string(),
                       ", the claim of this attempt: ", describe_write_failure(errno, path, 0)),
                "Check the run folder, or name another one.");
  };
  const fs::path unnamed = folder_ / concat('.', kClaim, mine_.id);
  const Descriptor file = create_new(unnamed, O_WRONLY);
  if (!file) {
    fail("make");
  }
  const nlohmann::ordered_json claim = {{"attempt", attempt},    {"job", mine_.job},         {"host", mine_.host},
                                        {"process", ::getpid()}, {"started", mine_.started}, {"id", mine_.id}};
  const std::string text = claim.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const int code = errno;
    ::unlink(unnamed.c_str());
    errno = code;
    fail("write");
  }
  const bool made = ::link(unnamed.c_str(), path.c_str()) == 0; // complete, or absent
  const int code = errno;
  ::unlink(unnamed.c_str());
  if (!made && code == EEXIST) {
    return false;
  }
  if (!made && (code == EPERM || code == EOPNOTSUPP || code == ENOSYS || code == EMLINK)) { // no links there
    const Descriptor plain(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!plain && errno == EEXIST) {
      return false;
    }
    if (!plain || ::write(plain.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      fail("write");
    }
  } else if (!made) {
    errno = code;
    fail("make");
  }
  mine_.attempt = attempt;
  return true;
}

void RunToken::claim() {
  make_private_folders(folder_);
  mine_.host = this_host();
  mine_.started = utc_now();
  mine_.id = random_id();
  for (int64_t at_least = after_.value_or(0) + 1;;) {
    const std::optional<Holder> last = newest(folder_); // read once for both: another job may claim between two reads
    check_job(last);
    at_least = std::max(at_least, last ? last->attempt + 1 : 1);
    if (!make(at_least)) { // claimed at the same moment, or missing in a cached list of the folder
      ++at_least;
      continue;
    }
    const std::vector<int64_t> all = attempts_in(folder_);
    if (!all.empty() && all.back() > mine_.attempt) {
      ::unlink(file_of(mine_.attempt).c_str());
      continue;
    }
    for (const int64_t attempt : all) { // from the lowest: the holder of a removed claim must find a newer one
      if (attempt < mine_.attempt) {
        ::unlink(file_of(attempt).c_str());
      }
    }
    claimed_ = true;
    after_ = after_ ? std::optional(mine_.attempt) : std::nullopt;
    return;
  }
}

void RunToken::check() const {
  if (!claimed_) {
    return;
  }
  if (::access(file_of(mine_.attempt + 1).c_str(), F_OK) == 0) {
    fail(newest(folder_));
  }
  errno = 0;
  const std::string text = read_claim(file_of(mine_.attempt));
  if (text.empty() && errno != 0 && errno != ENOENT && errno != ESTALE && errno != ELOOP && errno != ENOTDIR) {
    throw Error(
        "run",
        concat("cannot read ", file_of(mine_.attempt).string(), ", the claim of this attempt: ", std::strerror(errno)),
        "Nothing is written without it; check the run folder.");
  }
  if (holder_in(text, mine_.attempt).id != mine_.id) {
    fail(newest(folder_));
  }
}

void RunToken::check_job() const {
  check_job(after_ ? newest(folder_) : std::nullopt);
}

void RunToken::check_job(const std::optional<Holder>& last) const {
  if (after_ && last && last->attempt > *after_ && last->job != mine_.job && !last->id.empty()) {
    fail(last);
  }
}

void RunToken::fail(const std::optional<Holder>& newest) const {
  const bool replaced = newest && newest->id != mine_.id;
  if (!replaced) {
    throw ReplacedError(concat("the claim of this training, ", file_of(mine_.attempt).string(),
                               ", is gone: the run folder was removed or emptied; this one writes nothing more"),
                        false);
  }
  const std::string self = claimed_ ? concat(" (attempt ", mine_.attempt, ')') : "";
  throw ReplacedError(concat("this training", self, " was replaced by ", describe(*newest), ", which writes into ",
                             folder_.parent_path().string(), " now; this one writes nothing more"),
                      !mine_.job.empty() && newest->job == mine_.job);
}

} // namespace trireme
