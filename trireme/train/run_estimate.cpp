#include <trireme/train/run_estimate.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/config/run_file.h>
#include <trireme/data/tokenizer.h>

#include <algorithm>

namespace trireme::train {

config::RunConfig with_device(config::RunConfig run, const std::filesystem::path& run_file,
                              std::vector<std::string>& overrides, config::Files files, const config::RunTypes& types) {
  const auto asked = env::text("TRIREME_DEVICE");
  if (!asked || run.training.device != "auto" || !asked->starts_with("cuda")) {
    return run;
  }
  overrides.push_back("training.device=" + *asked);
  return config::read_run_file(run_file, overrides, files, types);
}

int64_t ranks_of_replica(const config::RunConfig& run) {
  return run.parallel.ranks_of_replica();
}

int64_t ranks_of(const config::RunConfig& run, const std::string& run_file, int64_t asked, int64_t replicas) {
  const int64_t per_replica = ranks_of_replica(run);
  const int64_t ranks = asked > 0 ? asked : per_replica * run.parallel.data.value_or(replicas);
  if (ranks % per_replica != 0) {
    const config::ParallelConfig& p = run.parallel;
    const bool stages = per_replica == p.pipe;
    throw InputError("trireme",
                     concat("-n ", ranks, " ranks cannot be divided among ", per_replica,
                            stages ? " pipeline stages"
                                   : concat(" ranks of a replica (pipe * context * tensor = ", p.pipe, " * ", p.context,
                                            " * ", p.tensor, ')')),
                     concat("Use -n ", per_replica, ", ", 2 * per_replica, " or another multiple, or ",
                            stages ? "set parallel.pipe to a divisor of "
                                   : "choose parallel.pipe, context and tensor so that their product divides ",
                            ranks, '.'));
  }
  if (run.parallel.data && ranks != per_replica * *run.parallel.data) {
    throw InputError("trireme",
                     concat("-n ", ranks, " does not fit \"parallel\" in ", run_file,
                            ": pipe * data * context * tensor = ", per_replica * *run.parallel.data),
                     R"(Remove -n, or set parallel.data to "auto".)");
  }
  return ranks;
}

plan::RunEstimate describe_run(const config::RunConfig& run, int64_t ranks) {
  const bool asks = run.model.reads_tokens() && run.model.shape().vocab_size == 0 && !run.data.tokenizer.empty();
  if (asks &&
      std::find(run.absent_files.begin(), run.absent_files.end(), run.data.tokenizer) != run.absent_files.end()) {
    throw InputError(
        "estimate",
        concat("there is no file ", run.data.tokenizer, " (data.tokenizer), which determines the model's vocab_size"),
        "Set the size: --set model.vocab_size=50257");
  }
  return plan::describe(run, ranks, asks ? data::make_tokenizer(run.data.tokenizer)->vocab_size() : 0);
}

} // namespace trireme::train
