#include <trireme/extensions/averaging/elastic_averaging_sync.h>

#include <trireme/base/error.h>
#include <trireme/base/fault.h>
#include <trireme/base/log.h>
#include <trireme/comm/round_environment.h>

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace trireme::parallel {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};
/// Time-out of an operation in an averaging step, unless TRIREME_TIMEOUT sets another.
constexpr std::chrono::milliseconds kMeeting{60'000};
/// Time between two attempts to reconnect to a lost store, and time-out of one.
constexpr std::chrono::milliseconds kBetweenTries{500};

store::MeetingOptions meeting_options(const ReplicaOptions& replica) {
  store::MeetingOptions options;
  options.store = replica.store;
  options.secret = replica.secret;
  options.job = replica.job;
  options.max_ranks = replica.replicas;
  options.place = replica.replica;
  options.start_patience = options.late_patience = replica.patience;
  options.patience = std::max(options.patience, 10 * replica.patience);
  return options;
}

// Returns "replicas 0 and 2".
std::string names(const std::vector<int>& replicas) {
  std::string text = replicas.size() == 1 ? "replica " : "replicas ";
  for (size_t i = 0; i < replicas.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 == replicas.size() ? " and " : ", ", replicas[i]);
  }
  return text;
}

std::vector<int> without(const std::vector<int>& all, const std::vector<int>& some) {
  std::vector<int> left;
  std::copy_if(all.begin(), all.end(), std::back_inserter(left),
               [&](int one) { return std::find(some.begin(), some.end(), one) == some.end(); });
  return left;
}

// Broadcasts the root's text.
std::string broadcast_text(const comm::Group& ranks, std::string text, int root) {
  at::Tensor length = torch::tensor({std::ssize(text)}, torch::kInt64);
  ranks.broadcast(length, root, "length of the state").wait();
  if (length.item<int64_t>() == 0) {
    return "";
  }
  at::Tensor bytes = torch::empty({length.item<int64_t>()}, torch::kUInt8);
  if (ranks.rank() == root) {
    std::memcpy(bytes.data_ptr(), text.data(), text.size());
  }
  ranks.broadcast(bytes, root, "state").wait();
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

} // namespace

struct ElasticAveragingSync::Exchange {
  std::vector<bool> counts; // by rank: it is averaged
  std::vector<bool> comes;  // by rank: it joins, and receives the others' values
  int64_t averaged = 0;
  int source = 0; // rank that sends its values to joining replicas
  bool comes_here = false;
  bool counts_here = false;
  bool any_comes = false;
  bool any_has_trained = false;
  int64_t steps = 0; // of the replicas that count
  double lr = 0;
  struct Bucket {
    at::Tensor mean;
    std::vector<at::Tensor> states; // means, or the source's
    std::vector<at::Tensor> outer;
  };
  std::vector<std::vector<Bucket>> buckets; // by buffer
  std::vector<at::Tensor> rest;             // module buffers, then `fixed`
  std::string state;
};

ElasticAveragingSync::ElasticAveragingSync(ReduceGroups groups, const AveragingOptions& options, ReplicaOptions replica)
    : AveragingSync(std::move(groups), options), replica_(std::move(replica)) {
  if (group().size() > 1 || options_.start_step > 0) {
    throw InputError("parameter averaging",
                     group().size() > 1 ? concat("\"elastic\" with ", group().size(), " data ranks in one world")
                                        : concat("\"elastic\" with start_step ", options_.start_step),
                     "Each elastic replica is a world of its own and never sums gradients. Make the first steps in a "
                     "run without this section, and continue from its checkpoint.");
  }
}

ElasticAveragingSync::~ElasticAveragingSync() {
  meeting_.reset(); // first: all members must leave a world, and they leave it when this replica has left the meeting
}

int64_t ElasticAveragingSync::bytes_sent() const {
  return sent_before_ + (world_ ? ranks().bytes_sent() : 0);
}

bool ElasticAveragingSync::join() {
  if (joined_) {
    throw InputError("parameter averaging", "join() was called twice", "Call it once, before the first step.");
  }
  if (rest_.check) {
    rest_.check();
  }
  meeting_ = std::make_unique<store::Meeting>(meeting_options(replica_));
  attend();
  joined_ = true;
  return others_had_trained_;
}

int64_t ElasticAveragingSync::after_step() {
  if (!joined_) {
    throw InputError("parameter averaging", "this replica of an elastic run trains but has not joined the others",
                     "Call Engine::workers()->join() before the first step, and before load_checkpoint().");
  }
  look_around();
  if (std::exchange(due_, false)) {
    const auto start = std::chrono::steady_clock::now();
    attend();
    exposed_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return 1;
}

// Repeats rounds until one succeeds. A round fails if a member is lost. Nothing is averaged twice, because no member
// uses the results of a failed round.
void ElasticAveragingSync::attend() {
  const torch::NoGradGuard no_grad;
  for (bool whole = false; !whole;) {
    try {
      whole = attend_round();
    } catch (const store::LostError& error) { // it was restarted, and has no members
      log::warning("averaging: lost the job's store; waiting for its restart: ", error.happened);
      world_.reset();
      members_.clear();
      store::MeetingOptions options = meeting_options(replica_);
      options.state = joined_ && !left_behind_ ? meeting_->state() : "";
      meeting_ = std::make_unique<store::Meeting>(options);
    }
  }
}

bool ElasticAveragingSync::attend_round() {
  const store::Round round = meeting_->next_round();
  Exchange all;
  bool well = false;
  try {
    open(round);
    exchange(round, all);
    well = true;
  } catch (const PeerError& error) {
    log::warning("averaging, step ", steps_, ": ", error.what());
  }
  if (meeting_->conclude(well)) {
    take(all);
    say_who_is_there(round, all);
    return true;
  }
  log::warning("averaging, step ", steps_,
               ": a replica was lost during the averaging step; the remaining replicas repeat it");
  sent_before_ = bytes_sent();
  world_.reset();
  members_.clear();
  return false;
}

// Asks the store whether the others have continued without this replica. They do not wait forever for a replica that
// is stopped or evaluates for long.
void ElasticAveragingSync::look_around() {
  if (left_behind_ || Clock::now() < look_at_) {
    return;
  }
  look_at_ = Clock::now() + kBetweenLooks;
  try {
    left_behind_ = meeting_->left_behind();
  } catch (const store::LostError&) {
    look_at_ = Clock::now() + kBetweenTries;
    say_again_that_it_trains();
  }
}

// Announces this replica again. A restarted store has no members, and a store whose connection broke takes this
// replica for lost: joining replicas would then start a new training.
void ElasticAveragingSync::say_again_that_it_trains() {
  store::MeetingOptions options = meeting_options(replica_);
  options.state = meeting_->state();
  try {
    auto meeting = std::make_unique<store::Meeting>(
        options, store::Client::connect(options.store, options.secret, options.job, Clock::now() + kBetweenTries));
    meeting->announce();
    left_behind_ = !meeting->is_counted();
    meeting_ = std::move(meeting);
    members_.clear(); // this replica gets another number, so the next world is another one
    log::warning("averaging: reconnected to the job's store, and announced that this replica trains");
  } catch (const store::FinishedError&) {
    left_behind_ = true;
  } catch (const PeerError&) { // the store is not back yet
  }
}

bool ElasticAveragingSync::finish(bool saved) {
  first_ = first_ && saved;
  try {
    if (is_first()) {
      meeting_->finish();
      return true;
    }
    if (saved && !left_behind_ && members_.empty()) { // the store was lost in between
      return std::exchange(first_, true);
    }
    first_ = !meeting_->wait_for_finish(first_rank_);
    return !first_;
  } catch (const store::LostError& error) {
    log::warning("averaging: lost the job's store at the end of the training: ", error.happened);
    return std::exchange(first_, true); // saves, because the first replica may not have saved
  }
}

void ElasticAveragingSync::open(const store::Round& round) {
  if (world_ && members_ == round.members) {
    return;
  }
  sent_before_ = bytes_sent();
  world_.reset();
  members_ = round.members;
  // Continues without a replica that does not join, even if it is alive.
  world_.emplace(comm::World::connect(comm::environment_of(round, meeting_options(replica_), "replicas that meet"),
                                      comm::with_timeout({}, kMeeting)));
  log::set_rank(0, 1); // each replica has its own log
  fault::set_step(steps_);
}

void ElasticAveragingSync::exchange(const store::Round& round, Exchange& all) {
  const int n = round.size;
  at::Tensor mine = torch::tensor({joined_ ? int64_t{1} : int64_t{0}, steps_}, torch::kInt64);
  at::Tensor everybodys = torch::empty({2 * n}, torch::kInt64);
  ranks().all_gather(everybodys, mine, "who is there").wait();
  const auto trained = [&](int rank) { return everybodys[2 * rank].item<int64_t>() == 1; };
  const auto steps = [&](int rank) { return everybodys[2 * rank + 1].item<int64_t>(); };
  int64_t furthest = -1;
  for (int rank = 0; rank < n; ++rank) {
    all.any_has_trained = all.any_has_trained || trained(rank);
  }
  for (int rank = 0; rank < n; ++rank) {
    furthest = trained(rank) || !all.any_has_trained ? std::max(furthest, steps(rank)) : furthest;
  }
  all.steps = furthest;
  all.source = -1;
  for (int rank = 0; rank < n; ++rank) {
    const bool as_far = steps(rank) == furthest && (trained(rank) || (!all.any_has_trained && all.source < 0));
    all.source = as_far && all.source < 0 ? rank : all.source;
    all.counts.push_back(as_far);
    all.comes.push_back(!as_far);
    all.averaged += as_far ? 1 : 0;
    all.any_comes = all.any_comes || !as_far;
  }
  all.counts_here = all.counts[static_cast<size_t>(round.rank)];
  all.comes_here = !all.counts_here;
  all.lr = lr_of_round(ranks(), all.counts_here);
  for (int64_t b = 0; b < std::ssize(buffers_); ++b) {
    all.buckets.emplace_back();
    for (int64_t k = 0; k < std::ssize(buffers_[b]->layout().buckets()); ++k) {
      all.buckets.back().emplace_back();
      exchange_bucket(b, k, all);
    }
  }
  const auto give = [&](const at::Tensor& tensor) {
    at::Tensor copy = tensor.detach().contiguous().clone();
    ranks().broadcast(copy, all.source, "of the oldest replica").wait();
    all.rest.push_back(copy);
  };
  for (const at::Tensor& buffer : rest_.buffers) {
    give(buffer);
  }
  if (all.any_comes) {
    for (const at::Tensor& tensor : rest_.fixed) {
      give(tensor);
    }
    all.state = broadcast_text(ranks(), round.rank == all.source && rest_.state ? rest_.state() : "", all.source);
  }
}

void ElasticAveragingSync::exchange_bucket(int64_t buffer, int64_t bucket, Exchange& all) {
  using Values = bucket::SteppedValues;
  Exchange::Bucket& out = all.buckets.back().back();
  const std::string what = concat("parameters, bucket ", bucket);
  const bool averages_states = options_.states == AveragingOptions::States::average && all.any_has_trained;
  const bool gives_states =
      all.any_comes && !averages_states && !(options_.states == AveragingOptions::States::reset && all.any_has_trained);
  if (all.counts_here && all.any_has_trained) {
    keep_start(buffer, bucket); // no step of the round was taken
  }
  const auto access = averages_states || gives_states ? Values::Access::read_all : Values::Access::read;
  values_->with_values(buffer, bucket, access, [&](const Values::Values& values) {
    out.mean = all.counts_here ? values.parameters.clone() : torch::zeros_like(values.parameters);
    ranks().all_reduce(out.mean, comm::ReduceOp::sum, what).wait();
    out.mean.div_(static_cast<double>(all.averaged));
    for (const at::Tensor& state : values.states) {
      if (averages_states) {
        at::Tensor sum = all.counts_here ? state.to(torch::kFloat32, /*non_blocking=*/false, /*copy=*/true)
                                         : torch::zeros_like(state, torch::kFloat32);
        ranks().all_reduce(sum, comm::ReduceOp::sum, "optimizer states").wait();
        out.states.push_back(sum.div_(static_cast<double>(all.averaged)));
      } else if (gives_states) {
        at::Tensor copy = state.clone();
        ranks().broadcast(copy, all.source, "optimizer states").wait();
        if (all.comes_here) {
          out.states.push_back(copy);
        }
      }
    }
  });
  if (has_outer() && all.any_comes) {
    for (const at::Tensor& value : outer_.values(buffer, bucket)) {
      at::Tensor copy = value.clone();
      ranks().broadcast(copy, all.source, "outer optimizer").wait();
      if (all.comes_here) {
        out.outer.push_back(copy);
      }
    }
  }
}

// Applies the sums, which are equal on all members.
void ElasticAveragingSync::take(Exchange& all) {
  using Values = bucket::SteppedValues;
  const bool resets = options_.states == AveragingOptions::States::reset && all.any_has_trained;
  for (int64_t b = 0; b < std::ssize(buffers_); ++b) {
    for (int64_t k = 0; k < std::ssize(buffers_[b]->layout().buckets()); ++k) {
      Exchange::Bucket& from = all.buckets[b][k];
      if (!from.outer.empty()) {
        outer_.take(b, k, from.outer);
      }
      if (has_outer() && all.any_has_trained) {
        outer_.step(b, k, from.mean, all.lr);
      }
      const bool changes_states = resets || !from.states.empty();
      values_->with_values(b, k, changes_states ? Values::Access::write_all : Values::Access::write,
                           [&](const Values::Values& values) {
                             at::Tensor(values.parameters).copy_(from.mean);
                             for (size_t i = 0; changes_states && i < values.states.size(); ++i) {
                               at::Tensor state = values.states[i];
                               if (resets) {
                                 state.fill_(values.initial[i]);
                               } else {
                                 state.copy_(from.states[i]);
                               }
                             }
                           });
      from = {}; // frees its memory
    }
  }
  for (size_t i = 0; i < all.rest.size(); ++i) {
    const bool is_buffer = i < rest_.buffers.size();
    if (is_buffer || all.comes_here) {
      const at::Tensor& to = is_buffer ? rest_.buffers[i] : rest_.fixed[i - rest_.buffers.size()];
      to.variable_data().copy_(all.rest[i]); // does not bump the version, as in ModuleBuffers
    }
  }
  if (all.comes_here) {
    steps_ = all.steps;
    if (rest_.take) {
      rest_.take(all.state);
    }
  }
  if (resets) {
    values_->set_steps(0);
  }
  begin_round();
  equal_ = true;
  first_rank_ = all.source;
  first_ = all.source == ranks().rank();
  left_behind_ = false;
  others_had_trained_ = all.any_has_trained;
}

void ElasticAveragingSync::say_who_is_there(const store::Round& round, const Exchange& all) {
  const std::vector<int> before = std::exchange(places_, round.places);
  std::vector<int> come;
  for (size_t rank = 0; rank < round.places.size(); ++rank) {
    if (all.comes[rank]) {
      come.push_back(round.places[rank]);
    }
  }
  if (!all.any_has_trained) {
    log::info("averaging: ", round.size, " of ", replica_.replicas, " replicas begin");
    return;
  }
  if (const std::vector<int> lost = without(before, round.places); !lost.empty()) {
    log::info("averaging, step ", steps_, ": ", names(lost), lost.size() == 1 ? " is" : " are",
              " lost; the mean is of ", all.averaged, all.averaged == 1 ? " replica" : " replicas");
  }
  if (!come.empty()) {
    log::info("averaging, step ", steps_, ": ", names(come), come.size() == 1 ? " joins" : " join",
              " and begins with the mean of ", all.averaged, all.averaged == 1 ? " replica" : " replicas");
  }
}

SyncFactory replica_sync(const AveragingOptions& options, ReplicaOptions replica) {
  SyncFactory out{.kind = "elastic", .make = nullptr, .worker = replica.replica, .workers = replica.replicas};
  out.make = [options, replica = std::move(replica)](const ReduceGroups& groups) {
    return std::make_unique<ElasticAveragingSync>(groups, options, replica);
  };
  return out;
}

} // namespace trireme::parallel
