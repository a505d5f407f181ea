#include "run_observers.h"

#include "shell.h"
#include "small_training.h"

#include <trireme/train/run_estimate.h>

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/recorder.h>
#include <trireme/data/tokenize/tokenize.h>
#include <trireme/data/tokenizer.h>
#include <trireme/extensions/server/parameter_server.h>
#include <trireme/extensions/server/snapshot.h>
#include <trireme/monitor/html.h>
#include <trireme/monitor/metrics.h>

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

// Stands before libc's for the whole program: counts the threads that are started.
namespace {
std::atomic<int> threads_started{0};
} // namespace
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  ++threads_started;
  return create(thread, attributes, run, argument);
}

namespace trireme::tools::observe {

using test::KeyObserver;

json training(comm::World& world, const json& run) {
  run_training(world, run);
  json seen;
  for (const monitor::StepMetrics& step : monitor::read_metrics(out() / "metrics.jsonl")) {
    const auto text = [](const std::optional<double>& value) { return value ? concat(*value) : std::string(); };
    seen["steps"].push_back(
        {text(step.loss), text(step.lr), text(step.grad_norm), text(step.val_loss), text(step.val_accuracy)});
  }
  for (const auto& entry : fs::directory_iterator(out() / "checkpoints")) {
    seen["checkpoints"].push_back(entry.path().filename().string());
  }
  std::sort(seen["checkpoints"].begin(), seen["checkpoints"].end());
  const auto saved = checkpoint::Checkpoint::open(out() / "checkpoints");
  for (const std::string& name : saved.names()) {
    seen["tensors"][name] = {digest(saved.read(name)), saved.entry(name).shards.front().file};
  }
  world.group().barrier("observed").wait();
  return seen;
}

json sample(comm::World& world, const json& run) {
  const fs::path log = folder() / "log";
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  const int there = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(there, STDERR_FILENO);
  run_training(world, run);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(there);
  const std::string text = read_file(log);
  const size_t begin = text.find("the model writes:");
  EXPECT_NE(begin, std::string::npos) << text;
  const std::string written = text.substr(begin, text.find("report: ", begin) - begin);
  EXPECT_EQ(written, monitor::clean_utf8(written)) << "for a terminal";
  return written;
}

namespace {

std::string text_file(const std::string& name, const std::string& unit) {
  std::string text;
  while (text.size() < 1200) {
    text += unit;
  }
  return file(name, text);
}

// What libtorch may do on GPUs after a training.
json allowed_tf32(comm::World& world, const json& run) {
  run_training(world, run);
  return {at::globalContext().allowTF32CuBLAS(), at::globalContext().allowTF32CuDNN()};
}

// Why the training is refused, or "".
json refusal(comm::World& world, const json& run) {
  try {
    run_training(world, run);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// The order of the operations of a whole training.
json operations(comm::World& world, const json& run) {
  const comm::Recorder& recorder = comm::Recorder::process();
  const auto now =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
  run_training(world, run);
  json seen;
  for (const comm::Record& record : recorder.records()) {
    if (record.queued_us + recorder.begin_us() >= now) {
      seen.push_back(concat(record.op, ' ', record.what));
    }
  }
  return seen;
}

// Counted in a second training, when the process has its pools.
json threads(comm::World& world, const json& run) {
  run_training(world, run);
  const int before = threads_started;
  run_training(world, run);
  return threads_started - before;
}

json tokenizer(comm::World&, const json& run) {
  const data::Datasets datasets = data::make_datasets(read(run).data);
  return datasets.tokenizer ? json(datasets.tokenizer->describe()) : json(nullptr);
}

json ranks_that_start(comm::World&, const json& run) {
  return train::ranks_of(read(run), "run.json", 0);
}

json exported(comm::World& world, const json& run) {
  run_training(world, run);
  return fs::exists(folder() / "exported/config.json");
}

// A set of a mixture beside another one.
json beside_another_set(comm::World& world, const json& run) {
  json changed = run;
  const json other = {{"data", {{"type", "text"}, {"train", text_file("other.txt", "bb aab ")}}}, {"weight", 1}};
  changed["data"]["sets"] = {run["data"]["sets"], other};
  return training(world, changed);
}

// JSON lines with a prompt and a response of a's and b's.
std::string lines_file(const std::string& name, int most) {
  std::string lines;
  for (int i = 0; i < 100; ++i) {
    lines += concat(R"({"prompt": "b)", std::string(1 + i % most, 'a'), R"( ", "response": "ab)",
                    std::string(1 + i % 3, 'b'), "\"}\n");
  }
  return file(name, lines);
}

std::string conversations_file() {
  std::string lines;
  for (int i = 0; i < 100; ++i) {
    lines += concat(R"({"messages": [{"role": "user", "content": "b)", std::string(1 + i % 4, 'a'),
                    R"("}, {"role": "assistant", "content": "ab"}]})", '\n');
  }
  return file("conversations.jsonl", lines);
}

// A chat template that writes `between` after what a user says.
std::string template_file(const std::string& name, const char* between) {
  return file(name, concat("{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
                           "{% endgeneration %}{% else %}{{ m['content'] }}",
                           between, "{% endif %}{% endfor %}"));
}

std::vector<KeyObserver> json_lines_keys() {
  const std::string lines = lines_file("lines.jsonl", 4);
  const std::string other = lines_file("other_lines.jsonl", 5);
  const std::string tiny = file("tokenizer.json", kTinyTokenizer);
  const std::string first = template_file("first.jinja", " ");
  const std::string second = template_file("second.jinja", " b ");
  const json from_lines = {{"data", {{"type", "jsonl"}, {"train", lines}}}};
  const json from_conversations = {
      {"data", {{"type", "jsonl"}, {"train", conversations_file()}, {"chat_template", first}}}};
  const auto as_set = [](const json& run) {
    return json{{"data", {{"type", "mixture"}, {"train", nullptr}, {"sets", {{"data", run["data"]}, {"weight", 1}}}}}};
  };
  return {
      {"data", "jsonl", "train", lines, other, training, from_lines},
      {"data", "jsonl", "validation", nullptr, other, training, from_lines},
      {"data", "jsonl", "loss_on", "response", "all", training, from_lines},
      {"data", "jsonl", "chat_template", first, second, training, from_conversations},
      {"data", "jsonl", "pack", false, true, training, from_lines},
      {"data", "jsonl", "tokenizer", "bytes", tiny, training, from_lines},
      {"data", "jsonl", "sequence_length", 8, 4, whether_it_is_read, from_lines},
      {"data", "jsonl", "shuffle", true, false, training, from_lines},
      {"data", "jsonl", "prefetch", 2, 0, threads, from_lines},
      {"data.sets.data", "jsonl", "train", lines, other, training, as_set(from_lines)},
      {"data.sets.data", "jsonl", "validation", nullptr, other, training, as_set(from_lines)},
      {"data.sets.data", "jsonl", "loss_on", "response", "all", training, as_set(from_lines)},
      {"data.sets.data", "jsonl", "chat_template", first, second, training, as_set(from_conversations)},
  };
}

std::vector<KeyObserver> mixture_keys() {
  const std::string text = text_file("a.txt", "ab abab b ");
  const std::string other_text = text_file("b.txt", "abab a bb ");
  const std::string tokens = (folder() / "tokens.bin").string();
  const std::string other_tokens = tokens_file("other.bin", 7);
  const std::string tiny = file("tokenizer.json", kTinyTokenizer);
  std::string wide; // of 32-bit tokens
  for (int i = 0; i < 600; ++i) {
    wide += std::string{static_cast<char>(i * 3 % 50), '\0', '\0', '\0'};
  }
  const auto mixture_of = [](const json& data) {
    return json{{"data", {{"type", "mixture"}, {"train", nullptr}, {"sets", {{"data", data}, {"weight", 1}}}}}};
  };
  const json from_text = mixture_of({{"type", "text"}, {"train", text}});
  const json from_tokens = mixture_of({{"type", "tokens"}, {"train", tokens}});
  const json from_wide = mixture_of({{"type", "tokens"}, {"train", file("wide.bin", wide)}});
  return {
      {"data", "mixture", "tokenizer", "bytes", tiny, training, from_text},
      {"data", "mixture", "sequence_length", 8, 4, whether_it_is_read, from_text},
      {"data", "mixture", "shuffle", true, false, training, from_text},
      {"data", "mixture", "prefetch", 2, 0, threads, from_text},
      {"data.sets", "", "weight", 1, 2, beside_another_set, from_text},
      {"data.sets.data", "text", "train", text, other_text, training, from_text},
      {"data.sets.data", "text", "validation", nullptr, other_text, training, from_text},
      {"data.sets.data", "text", "validation_fraction", 0, 0.3, training, from_text},
      {"data.sets.data", "tokens", "train", tokens, other_tokens, training, from_tokens},
      {"data.sets.data", "tokens", "validation", nullptr, other_tokens, training, from_tokens},
      {"data.sets.data", "tokens", "token_bytes", 2, 4, training, from_wide},
  };
}

std::vector<KeyObserver> data_keys() {
  const std::string other = tokens_file("other.bin", 7);
  std::string wide; // of 32-bit tokens
  for (int i = 0; i < 600; ++i) {
    wide += std::string{static_cast<char>(i * 3 % 50), '\0', '\0', '\0'};
  }
  const json from_wide = {{"data", {{"train", file("wide.bin", wide)}}}};
  std::string documents;
  for (int i = 0; i < 100; ++i) {
    documents += concat(R"({"text": ")", std::string(1 + i % 5, static_cast<char>('a' + i % 3)), " ab\"}\n");
  }
  const data::TokenizeOptions shards{
      .inputs = {file("documents.jsonl", documents)}, .tokenizer = "bytes", .out = folder() / "shards", .force = true};
  data::tokenize_files(shards);
  const json from_shards = {{"model", {{"vocab_size", 256}}}, {"data", {{"train", shards.out.string()}}}};
  const std::string text = text_file("a.txt", "ab abab b ");
  const std::string other_text = text_file("b.txt", "abab a bb ");
  const std::string images = images_file("images", 7);
  const std::string labels = labels_file("labels", 3);
  const json from_text = {{"data", {{"type", "text"}, {"train", text}}}};
  const json from_images = {{"model",
                             {{"type", "cnn"},
                              {"layers", nullptr},
                              {"hidden", nullptr},
                              {"heads", nullptr},
                              {"sequence_length", nullptr},
                              {"vocab_size", nullptr},
                              {"side", 8},
                              {"width", 4}}},
                            {"data",
                             {{"type", "images"},
                              {"train", images},
                              {"train_labels", labels},
                              {"validation", images},
                              {"validation_labels", labels}}}};
  const std::string tiny = file("tokenizer.json", kTinyTokenizer);
  const std::string labelled = labelled_file("labelled.jsonl", 1);
  const std::string other_labelled = labelled_file("other.jsonl", 2);
  json from_labelled = classifier();
  from_labelled["data"]["validation"] = labelled;
  // The tiny tokenizer has these letters only.
  const std::string letters = file("letters.jsonl", R"({"text": "ab abab b", "label": 1})"
                                                    "\n"
                                                    R"({"text": "b b", "label": 0})");
  json from_letters = classifier();
  from_letters["data"]["train"] = letters;
  from_letters["engine"]["train_batch_size"] = 2;
  return {
      {"data", "tokens", "train", (folder() / "tokens.bin").string(), other, training},
      {"data", "tokens", "validation", nullptr, other, training},
      {"data", "tokens", "token_bytes", 2, 4, training, from_wide},
      {"data", "tokens", "pack", false, true, training, from_shards},
      {"data", "tokens", "tokenizer", nullptr, "bytes", tokenizer},
      {"data", "tokens", "sequence_length", 8, 4, whether_it_is_read},
      {"data", "tokens", "shuffle", true, false, training},
      {"data", "tokens", "prefetch", 2, 0, threads},
      {"data", "text", "train", text, other_text, training, from_text},
      {"data", "text", "validation", nullptr, other_text, training, from_text},
      {"data", "text", "validation_fraction", 0, 0.3, training, from_text},
      {"data", "text", "tokenizer", "bytes", tiny, training, from_text},
      {"data", "text", "sequence_length", 8, 4, whether_it_is_read, from_text},
      {"data", "text", "shuffle", true, false, training, from_text},
      {"data", "text", "prefetch", 2, 0, threads, from_text},
      {"data", "labelled_text", "train", labelled, other_labelled, training, from_labelled},
      {"data", "labelled_text", "validation", labelled, other_labelled, training, from_labelled},
      {"data", "labelled_text", "tokenizer", "bytes", tiny, training, from_letters},
      {"data", "labelled_text", "sequence_length", 8, 4, training, from_labelled},
      {"data", "labelled_text", "shuffle", true, false, training, from_labelled},
      {"data", "labelled_text", "prefetch", 2, 0, threads, from_labelled},
      {"data", "images", "train", images, images_file("more_images", 11), training, from_images},
      {"data", "images", "train_labels", labels, labels_file("more_labels", 7), training, from_images},
      {"data", "images", "validation", images, images_file("more_images", 11), training, from_images},
      {"data", "images", "validation_labels", labels, labels_file("more_labels", 7), training, from_images},
      {"data", "images", "mean", 0, 0.5, training, from_images},
      {"data", "images", "std", 1, 0.5, training, from_images},
      {"data", "images", "shuffle", true, false, training, from_images},
      {"data", "images", "prefetch", 2, 0, threads, from_images},
  };
}

// What a worker of a server in this process sends in a training.
json sent_to_server(comm::World& world, const json& run) {
  std::atomic<bool> stop{false};
  parallel::server::ParameterServerOptions options;
  options.server = read(run).engine.server;
  options.stop = &stop;
  auto listening = rpc::serve("local://rows", {});
  std::thread thread([&] { parallel::server::serve(*listening, options); });
  ::setenv("TRIREME_SERVERS", "local://rows", 1);
  ::setenv("TRIREME_WORKER", "0/1", 1);
  run_training(world, run);
  ::unsetenv("TRIREME_WORKER");
  stop = true;
  thread.join();
  json seen;
  for (const monitor::StepMetrics& step : monitor::read_metrics(out() / "metrics.jsonl")) {
    seen.push_back(step.comm_bytes.value());
  }
  return seen;
}

// What the first server of such a job does with two workers, of which one alone pushes a gradient.
json served(comm::World&, const json& run) {
  namespace server = parallel::server;
  server::ParameterServerOptions options;
  options.server = read(run).engine.server;
  if (!options.server.on()) {
    return "no servers";
  }
  std::atomic<bool> stop{false};
  options.stop = &stop;
  options.folder = folder() / "servers";
  fs::remove_all(options.folder);
  auto listening = rpc::serve("local://keys", {});
  std::thread thread([&] { parallel::server::serve(*listening, options); });
  const auto soon = [] { return rpc::Clock::now() + std::chrono::seconds(20); };
  json seen;
  {
    std::vector<std::unique_ptr<rpc::Client>> workers;
    for (const int number : {0, 1}) {
      workers.push_back(rpc::connect("local://keys", {}, soon()));
      const json join = {{"op", "join"},
                         {"worker", number},
                         {"workers", 2},
                         {"parameters", {{{"name", "w"}, {"shape", {16, 16}}}}},
                         {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 1}}}}}};
      seen["joined"] = json::parse(workers.back()->call(join.dump())->wait(soon()));
    }
    std::vector<std::byte> values(seen["joined"].at("bytes").get<size_t>());
    workers[0]->call(R"({"op": "init"})", values)->wait(soon());
    const auto push = workers[0]->call(R"({"op": "push_pull", "clock": 0})", values, values);
    const auto until = rpc::Clock::now() + std::chrono::milliseconds(300);
    while (!push->done() && rpc::Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    seen["stepped alone"] = push->done();
    seen["kept"] = server::read_snapshot(server::snapshot_file(options.folder, 0), 0, options.server.servers).clock;
    stop = true;
    thread.join();
  }
  seen["joined"].erase("mode");
  return seen;
}

// How such a job ends where there is no gRPC.
json without_grpc(comm::World&, const json& run) {
  const fs::path out = folder() / "without_grpc";
  fs::create_directories(out);
  json one_worker = run;
  one_worker["training"]["steps"] = 1;
  write_file_atomically(out / "run.json", one_worker.dump());
  const Finished ended = sh(concat("TRIREME_GRPC_MODULE=/nowhere/libtrireme_grpc.so ", kTrireme, " train ",
                                   (out / "run.json").string(), " -n 1 --out ", (out / "run").string()));
  fs::remove_all(out);
  return ended.status;
}

std::vector<KeyObserver> run_keys() {
  const json staged = {
      {"model", {{"layers", 3}}}, {"parallel", {{"pipe", 2}}}, {"engine", {{"gradient_accumulation_steps", 4}}}};
  const auto servers = [](const char* mode) {
    return json{{"parallel", {{"sync", {{"kind", "server"}, {"mode", mode}}}}}};
  };
  const json evaluated = {{"data", {{"validation", tokens_file("validation.bin", 7)}}}};
  const json adapted = {{"training", {{"lora", {{"rank", 2}}}}}};
  const json saving = {{"training", {{"checkpoint_every", 1}}}};
  const json writing = {{"model", {{"vocab_size", 256}}},
                        {"data", {{"tokenizer", "bytes"}}},
                        {"training", {{"sample", {{"prompt", "a"}, {"tokens", 20}}}}}};
  return {
      {"parallel", "", "pipe", 1, 2, training, {}, 2},
      {"parallel", "", "data", 1, 2, ranks_that_start},
      {"parallel", "", "tensor", 1, 2, operations, {}, 2},
      {"parallel", "", "context", 1, 2, operations, {}, 2},
      {"parallel", "", "sequence_parallel", false, true, operations, {{"parallel", {{"tensor", 2}}}}, 2},
      {"parallel", "", "context_kind", "ring", "ulysses", operations, {{"parallel", {{"context", 2}}}}, 2},
      {"parallel.sync", "", "kind", "all_reduce", "server", served},
      {"parallel.sync", "", "servers", 1, 2, served, servers("sync")},
      {"parallel.sync", "", "mode", "sync", "async", served, servers("sync")},
      {"parallel.sync", "", "staleness", 0, 3, served, servers("stale")},
      {"parallel.sync", "", "timeout_s", 1000, 0.01, served, servers("hybrid")},
      {"parallel.sync", "", "snapshot_every", 100, 1, served, servers("async")},
      {"parallel.sync", "", "transport", "tcp", "grpc", without_grpc, servers("sync")},
      {"parallel.sync",
       "",
       "sparse_rows",
       json::array(),
       "transformer.wte",
       sent_to_server,
       {{"model", {{"tie_embeddings", false}}}, {"parallel", {{"sync", {{"kind", "server"}}}}}}},
      {"parallel.sync",
       "",
       "every",
       2,
       4,
       training,
       {{"parallel", {{"sync", {{"kind", "local_sgd"}}}}}, {"training", {{"steps", 4}}}},
       2},
      {"parallel.sync",
       "",
       "outer",
       "average",
       "nesterov",
       training,
       {{"parallel", {{"sync", {{"kind", "local_sgd"}, {"every", 2}}}}}, {"training", {{"steps", 4}}}},
       2},
      {"parallel.sync",
       "",
       "elastic",
       false,
       true,
       refusal,
       {{"parallel", {{"sync", {{"kind", "local_sgd"}, {"every", 2}}}}}, {"training", {{"steps", 4}}}},
       2},
      {"parallel", "", "schedule", "1f1b", "gpipe", operations, staged, 2},
      {"parallel", "", "chunks", nullptr, 2, training, staged, 2},
      {"training", "", "freeze", json::array(), "transformer.wte", training},
      {"training.lora", "", "rank", 2, 4, training, adapted},
      {"training.lora", "", "alpha", 16, 4, training, adapted},
      {"training.lora", "", "dropout", 0, 0.5, training, adapted},
      {"training.lora", "", "targets", "c_attn", "c_fc", training, adapted},
      {"training", "", "export", nullptr, (folder() / "exported").string(), exported},
      {"training", "", "steps", 2, 3, training},
      {"training", "", "seed", 1234, 7, training},
      {"training", "", "device", "cpu", "cuda:100", refusal},
      {"training", "", "tf32", true, false, allowed_tf32},
      {"training", "", "cuda_graph", "auto", true, refusal},
      {"training", "", "eval_every", 0, 1, training, evaluated},
      {"training", "", "eval_batches", 0, 1, training, evaluated},
      {"training", "", "checkpoint_every", 0, 1, training},
      {"training", "", "keep_checkpoints", 3, 1, training, saving},
      {"training.sample", "", "prompt", "a", "b", sample, writing},
      {"training.sample", "", "tokens", 20, 30, sample, writing},
      {"training.sample", "", "temperature", 0.8, 0, sample, writing},
      {"training.sample", "", "top_k", 0, 1, sample, writing},
  };
}

} // namespace

std::vector<KeyObserver> all_observers() {
  std::vector<KeyObserver> all;
  for (const auto& part : {model_keys(), data_keys(), json_lines_keys(), mixture_keys(), run_keys()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

} // namespace trireme::tools::observe
