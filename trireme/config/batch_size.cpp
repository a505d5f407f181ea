#include <trireme/config/batch_size.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace trireme::config {
namespace {

// Large enough for any batch, small enough that the products below cannot overflow.
constexpr int64_t kMost = int64_t{1} << 40;

constexpr const char* kEquation =
    "train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data ranks";

[[noreturn]] void fail(const BatchKeys& keys, const std::string& happened, const std::string& next) {
  throw InputError("config", concat(keys.where.empty() ? "" : keys.where + ": ", happened), next);
}

// a * b, or kMost where it would be more.
int64_t product(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) || out > kMost ? kMost : out;
}

std::string show(const std::optional<int64_t>& value) {
  return value ? std::to_string(*value) : "not given";
}

double change(const std::optional<int64_t>& wanted, int64_t got) {
  return wanted ? std::abs(std::log(static_cast<double>(got) / static_cast<double>(*wanted))) : 0;
}

// Finds the triples that satisfy the equation with the least relative change to the given values.
std::vector<BatchTriple> nearest_triples(const BatchKeys& keys, int64_t ranks) {
  std::vector<BatchTriple> found;
  const auto add = [&](int64_t micro, int64_t accumulation) {
    const int64_t train = product(product(micro, accumulation), ranks);
    if (micro >= 1 && accumulation >= 1 && train < kMost) {
      found.push_back({train, micro, accumulation});
    }
  };
  const int64_t micro = keys.micro.value_or(1);
  const int64_t accumulation = keys.accumulation.value_or(1);
  add(micro, accumulation);
  if (keys.train) {
    const int64_t share = *keys.train / ranks;
    for (int64_t up : {0, 1, 2}) {
      add(micro, share / micro + up);
      add(share / accumulation + up, accumulation);
    }
    if (*keys.train % ranks == 0) { // the same train_batch_size in another division
      for (int64_t divisor = 1; divisor * divisor <= share; ++divisor) {
        if (share % divisor == 0) {
          add(divisor, share / divisor);
          add(share / divisor, divisor);
        }
      }
    }
  }
  // Rounded, so that equal changes compare equal; then the nearest train_batch_size goes first.
  const auto order = [&](const BatchTriple& t) {
    const double distance =
        change(keys.train, t.train) + change(keys.micro, t.micro) + change(keys.accumulation, t.accumulation);
    return std::tuple(std::llround(distance * 1e9), std::abs(t.train - keys.train.value_or(t.train)), t.micro,
                      t.accumulation);
  };
  std::sort(found.begin(), found.end(),
            [&](const BatchTriple& a, const BatchTriple& b) { return order(a) < order(b); });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  found.resize(std::min<size_t>(found.size(), 3));
  return found;
}

[[noreturn]] void mismatch(const BatchKeys& keys, int64_t ranks) {
  std::vector<std::string> valid;
  for (const BatchTriple& t : nearest_triples(keys, ranks)) {
    valid.push_back(concat(t.train, " = ", t.micro, " * ", t.accumulation, " * ", ranks));
  }
  fail(keys,
       concat("the batch sizes do not fit ", ranks, ranks == 1 ? " data rank" : " data ranks", ": ", kEquation,
              " must hold, found train_batch_size ", show(keys.train), ", train_micro_batch_size_per_gpu ",
              show(keys.micro), ", gradient_accumulation_steps ", show(keys.accumulation)),
       valid.empty() ? "Choose smaller numbers." : concat("Nearest that fit: ", join(valid, ", "), "."));
}

void check_positive(const BatchKeys& keys, const char* name, const std::optional<int64_t>& value) {
  if (value && (*value < 1 || *value >= kMost)) {
    fail(keys, concat(name, " must be at least 1 and less than 2^40, found ", *value), "");
  }
}

} // namespace

BatchTriple solve(const BatchKeys& keys, int64_t data_ranks) {
  if (data_ranks < 1) {
    fail(keys, concat("the number of data ranks must be at least 1, found ", data_ranks), "");
  }
  check_positive(keys, "train_batch_size", keys.train);
  check_positive(keys, "train_micro_batch_size_per_gpu", keys.micro);
  check_positive(keys, "gradient_accumulation_steps", keys.accumulation);
  if (!keys.train && !keys.micro) {
    fail(keys,
         concat("no batch size: ", keys.accumulation
                                       ? "gradient_accumulation_steps alone does not say how many samples a step has"
                                       : "neither train_batch_size nor train_micro_batch_size_per_gpu is given"),
         concat("Write \"train_batch_size\" or \"train_micro_batch_size_per_gpu\"; ", kEquation, '.'));
  }
  BatchTriple out;
  if (keys.micro) {
    out.micro = *keys.micro;
    const int64_t one_pass = product(out.micro, data_ranks);
    out.accumulation = keys.accumulation ? *keys.accumulation : keys.train ? *keys.train / one_pass : 1;
  } else {
    out.accumulation = keys.accumulation.value_or(1);
    out.micro = *keys.train / product(out.accumulation, data_ranks);
  }
  out.train = product(product(out.micro, out.accumulation), data_ranks);
  if (out.micro < 1 || out.accumulation < 1 || out.train >= kMost || (keys.train && out.train != *keys.train)) {
    mismatch(keys, data_ranks);
  }
  return out;
}

} // namespace trireme::config
