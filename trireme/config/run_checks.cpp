#include <trireme/config/run_checks.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/compatibility.h>
#include <trireme/config/key_check.h>
#include <trireme/config/places.h>
#include <trireme/device/options.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;

// The last step is saved, and only what the replicas agree on can be.
void check_averaging(const JsonNode& root, const JsonNode& engine, const RunConfig& run) {
  const int64_t every = run.engine.averaging.every;
  if (every == 0 || run.training.steps <= run.engine.averaging.start_step) {
    return;
  }
  const bool in_short = run.parallel.sync.kind == "local_sgd";
  const JsonNode& section = in_short ? *root.find("parallel")->find("sync") : *engine.find("parameter_averaging");
  const JsonNode& key = section.find("every") != nullptr ? *section.find("every") : *section.find("kind");
  const auto meets = [&](const char* name, int64_t steps) {
    if (steps % every != 0) {
      place(root, "training", name)
          .fail(concat(steps, " is not a multiple of ", every, ", ", named(key),
                       ": between averaging steps replicas differ and cannot be saved or evaluated"),
                concat("Write ", steps > every ? concat(steps / every * every, " or ") : "",
                       (steps / every + 1) * every, '.'));
    }
  };
  meets("steps", run.training.steps);
  meets("checkpoint_every", run.training.checkpoint_every);
  if (run.engine.averaging.elastic) { // between averaging steps replicas do not communicate
    meets("eval_every", run.training.eval_every);
  }
}

// The same for ranks that step alone with 0/1 Adam.
void check_meetings(const JsonNode& root, const JsonNode& engine, const RunConfig& run) {
  const auto* const adam =
      run.engine.optimizer ? std::get_if<optim::ZeroOneAdamOptions>(&run.engine.optimizer->rule) : nullptr;
  if (adam == nullptr) {
    return;
  }
  const JsonNode& key = *engine.find("optimizer");
  const auto meets = [&](const char* name, int64_t step) {
    if (adam->meet_in(step)) {
      return;
    }
    int64_t next = step;
    while (!adam->meet_in(next)) {
      ++next;
    }
    place(root, "training", name)
        .fail(concat("step ", step, " is between averaging steps, ", named(key),
                     ": ranks differ there and cannot be saved"),
              concat("The next averaging step is ", next, "; every ", adam->local_interval(step),
                     " steps there. With \"local_step_clipper\": 1 every step averages."));
  };
  meets("steps", run.training.steps);
  for (int64_t step = run.training.checkpoint_every; run.training.checkpoint_every > 0 && step < run.training.steps;
       step += run.training.checkpoint_every) {
    meets("checkpoint_every", step);
  }
}

void check_training(const JsonNode& root, const JsonNode& engine, RunConfig& run) {
  if (!device::is_choice(run.training.device)) {
    place(root, "training", "device")
        .fail(concat('"', run.training.device, "\" is not a training device"), device::kChoices);
  }
  const int64_t end = run.engine.schedule.total_num_steps;
  if (end > 0 && end < run.training.steps) {
    const JsonNode& scheduler = *engine.find("scheduler");
    run.notes.push_back(concat(scheduler.where(), ": ", scheduler.path(), ": the schedule ends at step ", end,
                               ", but the run has ", run.training.steps, " (", named(place(root, "training", "steps")),
                               "): the rate stays at its end from there."));
  }
  // Throws if no batch size is given; whether it fits is known only with the number of ranks.
  if (run.parallel.data || (!run.engine.batch.train && !run.engine.batch.micro)) {
    run.engine.batch_for(run.parallel.data.value_or(1));
  }
}

ordered_json write_expressions(const std::vector<Expression>& expressions) {
  ordered_json texts = ordered_json::array();
  for (const Expression& expression : expressions) {
    texts.push_back(expression.text);
  }
  return texts;
}

ordered_json write_training(const TrainingConfig& training) {
  ordered_json out = {
      {"steps", training.steps},
      {"seed", training.seed},
      {"device", training.device},
      {"tf32", training.tf32},
      {"cuda_graph", training.cuda_graph == CudaGraph::automatic ? ordered_json("auto")
                                                                 : ordered_json(training.cuda_graph == CudaGraph::on)},
      {"eval_every", training.eval_every},
      {"eval_batches", training.eval_batches},
      {"checkpoint_every", training.checkpoint_every},
      {"keep_checkpoints", training.keep_checkpoints},
      {"export", path_or_null(training.export_to)},
      {"freeze", write_expressions(training.freeze.expressions)}};
  if (const auto& lora = training.lora) {
    out["lora"] = {{"rank", lora->rank},
                   {"alpha", lora->alpha},
                   {"dropout", lora->dropout},
                   {"targets", write_expressions(lora->targets)}};
  }
  if (const auto& sample = training.sample) {
    out["sample"] = {{"prompt", sample->prompt},
                     {"tokens", sample->tokens},
                     {"temperature", sample->temperature},
                     {"top_k", sample->top_k}};
  }
  return out;
}

} // namespace

void check_run(const JsonNode& root, const JsonNode& engine, const RunType& model, RunConfig& run) {
  check_compatibility(root, engine, setting_of(run));
  if (model.check) {
    model.check(root, run);
  }
  check_lora(root, run);
  check_training(root, engine, run);
  check_averaging(root, engine, run);
  check_meetings(root, engine, run);
}

ordered_json write_sync(const SyncConfig& sync) {
  ordered_json out = {{"kind", sync.kind}};
  if (sync.kind == "local_sgd") {
    out["every"] = sync.every.value_or(SyncConfig::kEvery);
    out["outer"] = sync.outer.value_or("average");
    out["elastic"] = sync.elastic.value_or(false);
  } else if (sync.kind == "server") {
    using Mode = parallel::ServerOptions::Mode;
    const parallel::ServerOptions& server = sync.server;
    out.update({{"servers", server.servers},
                {"mode", parallel::ServerOptions::name(server.mode)},
                {"transport", sync.transport},
                {"snapshot_every", server.snapshot_every}});
    if (!server.sparse_rows.empty()) {
      out["sparse_rows"] = server.sparse_rows;
    }
    if (server.mode == Mode::stale) {
      out["staleness"] = server.staleness;
    } else if (server.mode == Mode::hybrid) {
      out["timeout_s"] = server.timeout_s;
    }
  }
  return out;
}

ordered_json write_out(const RunConfig& run, const RunType& model, const RunType& data) {
  const ParallelConfig& parallel = run.parallel;
  return {{"model", model.write(run)},
          {"data", data.write(run)},
          {"parallel",
           {{"pipe", parallel.pipe},
            {"tensor", parallel.tensor},
            {"context", parallel.context},
            {"sequence_parallel", parallel.sequence_parallel},
            {"context_kind", parallel.context_kind == context::Kind::ulysses ? "ulysses" : "ring"},
            {"data", parallel.data ? ordered_json(*parallel.data) : ordered_json("auto")},
            {"sync", write_sync(parallel.sync)},
            {"schedule", parallel.schedule},
            {"chunks", parallel.chunks ? ordered_json(*parallel.chunks) : ordered_json()}}},
          {"training", write_training(run.training)},
          {"engine", run.engine.source}};
}

} // namespace trireme::config
