#include "commands.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/train/add_commands.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

namespace trireme::tools {

using train::at_least;
using train::count_from;

namespace {

// Adds a sub-command; its parsing fills `command`, which becomes the result.
template <typename T>
CLI::App* add(CLI::App& parent, std::optional<Command>& result, T& command, const char* name, const char* what,
              const std::string& example) {
  CLI::App* app = parent.add_subcommand(name, what);
  app->footer("Example:\n  " + example);
  app->callback([&result, &command] { result = command; });
  return app;
}

// CLI11 takes the largest number for one that does not fit.
CLI::Validator whole_number() {
  const auto check = [](const std::string& text) -> std::string {
    int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    return error == std::errc::result_out_of_range ? concat('"', text, "\" does not fit into 64 bits")
           : error != std::errc() || stop != end   ? concat("expected a whole number, got \"", text, '"')
                                                   : "";
  };
  return CLI::Validator(check, "");
}

std::vector<std::string> names_in(const CLI::App& group) {
  std::vector<std::string> names;
  for (const CLI::App* command : group.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

struct Parser {
  CLI::App app{"Trireme: distributed training for the PyTorch C++ frontend", "trireme"};
  std::optional<Command> result;
  TrainCommand train;
  EstimateCommand estimate;
  PlanCommand plan;
  LaunchCommand launch;
  GenerateCommand generate;
  InspectCommand inspect;
  DoctorCommand doctor;
  ScheduleCommand schedule;
  StoreCommand store;
  ExportCommand exported;
  TokenizeCommand tokenize;
  DataFetchCommand fetch;
  DataTokenizeCommand data_tokenize;
  BenchOptimCommand bench_optim;
  BenchCommCommand bench_comm;
  BenchKernelsCommand bench_kernels;
  BenchAttentionCommand bench_attention;
  BenchDeviceCommand bench_device;
  BenchTokenizerCommand bench_tokenizer;

  Parser() {
    app.set_version_flag("--version", TRIREME_VERSION);
    app.require_subcommand(1);
    app.footer(
        "Exit status: 0 done, 2 the input is wrong, 1 anything else; train and launch also 128 + signal, or that of "
        "the rank that failed first or that its error leads to.\nHelp for one command: trireme COMMAND --help");
    train::add_train(app, train, [this] { result = train; });
    train::add_estimate(app, estimate, [this] { result = estimate; });
    train::add_plan(app, plan, [this] { result = plan; });
    add_launch();
    add_generate();
    add_export();
    add_schedule();
    add_store();
    add_tokenize();
    add_data();
    add_rest();
    add_bench();
  }

  void add_launch() {
    CLI::App* c = add(app, result, launch, "launch", "Start a program as several ranks, watch it and clean up after it",
                      "trireme launch -n 4 -- ./my_training --epochs 3");
    c->add_option("-n,--ranks", launch.ranks, "Ranks to start (with a hostfile: default all slots)")
        ->check(count_from(1));
    train::add_places(c, launch.places, 5, "Start all ranks again this often when one fails or a host is lost");
    c->add_option("--servers", launch.servers,
                  "Number of servers beside the ranks, which become workers: each is a separate process and restarted "
                  "alone (--max-restarts: of all in total; by default 3 for each server)")
        ->check(count_from(0));
    c->add_option("--log-dir", launch.log_dir,
                  "Folder for the output of every rank (default: a new one under the temporary folder)")
        ->type_name("DIR");
    c->add_flag("--all-output", launch.all_output, "Show the output of all ranks, not only of rank 0");
    c->add_option("program", launch.program, "The program and its arguments, after --")
        ->required()
        ->type_name("PROGRAM [ARG...]");
    c->callback([this] {
      if (launch.ranks == 0 && launch.places.hostfile.empty()) {
        throw CLI::RequiredError("--ranks");
      }
      result = launch;
    });
    c->positionals_at_end();
    c->prefix_command(false);
  }

  void add_generate() {
    CLI::App* c = add(app, result, generate, "generate", "Generate text with a trained language model",
                      "trireme generate runs/austen --prompt \"It is a truth\" --tokens 300");
    c->add_option("from", generate.from, "A run folder, a checkpoint folder, one checkpoint, or a Hugging Face folder")
        ->required();
    c->add_option("--adapter", generate.adapter, "A folder of Hugging Face's PEFT: adapters (LoRA) of this model")
        ->type_name("FOLDER");
    CLI::Option* prompt = c->add_option("--prompt", generate.prompt, "The beginning of the text")->type_name("TEXT");
    c->add_option("--prompts", generate.prompts, "A file with a prompt on each line; blank lines are skipped")
        ->type_name("FILE")
        ->excludes(prompt);
    CLI::Option* chat =
        c->add_flag("--chat", generate.chat, "Each prompt is a user's message, put into the model's chat template");
    c->add_option("--system", generate.system, "With --chat: the system message before it")
        ->type_name("TEXT")
        ->needs(chat);
    c->add_option("--batch", generate.batch, "Prompts at a time")->check(at_least(1))->capture_default_str();
    c->add_option("--tensor", generate.tensor,
                  "Ranks that split the model: those of trireme launch -n N -- trireme generate")
        ->check(at_least(1))
        ->capture_default_str();
    generate::SampleOptions& sample = generate.sample;
    c->add_option("--max-tokens,--tokens", sample.tokens, "Tokens to add, at most")
        ->check(at_least(0))
        ->capture_default_str();
    c->add_option("--temperature", sample.choice.temperature, "0: always the most likely token")
        ->check(at_least(0))
        ->capture_default_str();
    c->add_option("--top-k", sample.choice.top_k, "Choose among this many most likely tokens (0: all)")
        ->check(at_least(0))
        ->capture_default_str();
    c->add_option("--top-p", sample.choice.top_p,
                  "Choose among the most likely tokens that have this probability together (1: all)")
        ->capture_default_str();
    c->add_option("--min-p", sample.choice.min_p,
                  "Choose among tokens at least this many times as likely as the most likely one (0: all)")
        ->capture_default_str();
    c->add_option("--repetition-penalty", sample.choice.repetition_penalty,
                  "Makes tokens that the text has less likely (1: no)")
        ->capture_default_str();
    c->add_option("--stop", generate.stop, "The text ends before this; may be given again")->type_name("TEXT");
    c->add_option("--seed", sample.seed, "Seed of the choice; that of the second prompt is one more, and so on")
        ->check(whole_number())
        ->capture_default_str();
    c->add_option("--dtype", generate.dtype, "Type of weights, activations and cache: fp32 or bf16")
        ->check(CLI::IsMember({"fp32", "bf16"}))
        ->capture_default_str();
    c->add_option("--weights", generate.weights, "Type of the weights of linear layers and embedding, if not --dtype")
        ->check(CLI::IsMember({"int8"}))
        ->type_name("int8");
    c->add_flag("--json", generate.json, "A JSON object a prompt instead of text");
  }

  void add_export() {
    CLI::App* c = add(app, result, exported, "export", "Write a trained gpt, llama or bert as a Hugging Face folder",
                      "trireme export runs/austen austen-hf --dtype bf16");
    c->add_option("from", exported.from, "A run folder, a checkpoint folder or one checkpoint")->required();
    c->add_option("folder", exported.folder, "The folder to write: new, empty, or an earlier export")->required();
    c->add_option("--dtype", exported.dtype,
                  "Type of the weights: fp32, bf16 or fp16 (default: that of the folder the run began with, else fp32)")
        ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
    c->add_flag("--merge", exported.merge,
                "Adapters (LoRA): write the model with them added to its weights, instead of them alone for PEFT");
    c->add_flag("--json", exported.json, "One JSON object instead of text");
  }

  void add_store() {
    CLI::App* c = add(
        app, result, store, "store",
        "Run the rendezvous of ranks that join and leave (with the secret in TRIREME_SECRET_FILE), until it is stopped",
        "trireme store --listen 127.0.0.1:29600");
    c->add_option("--listen", store.listen,
                  "Where: an address of this host and a port, 0 for any (default: 127.0.0.1:0)")
        ->type_name("HOST:PORT");
  }

  void add_tokenize() {
    CLI::App* c = add(app, result, tokenize, "tokenize", "Turn each line of standard input into token ids, or back",
                      "echo \"It is a truth\" | trireme tokenize --tokenizer tokenizer.json --json");
    c->add_option("--tokenizer", tokenize.tokenizer,
                  "A tokenizer.json, a folder with one, GPT-2's vocab.json with merges.txt beside it, or bytes")
        ->required()
        ->type_name("T");
    c->add_flag("--decode", tokenize.decode,
                "From ids to text; a line is [1, 2], 1 2 or an object with \"ids\" (what --json prints)");
    c->add_flag("--special", tokenize.special,
                "Add the special tokens that the tokenizer puts around a text; with --decode, keep them in the text");
    c->add_flag("--json", tokenize.json, "One JSON object a line: ids or text");
  }

  void add_schedule() {
    CLI::App* c = add(app, result, schedule, "schedule", "Draw the timeline of a pipeline, planned or measured",
                      "trireme schedule --kind 1f1b --stages 4 --micro-batches 8 --svg 1f1b.svg");
    c->add_option("--kind", schedule.kind, "naive, gpipe, 1f1b, interleaved, zero-bubble or forward-only");
    c->add_option("--stages", schedule.stages, "Pipeline stages")->check(at_least(1));
    c->add_option("--micro-batches", schedule.micro_batches, "Micro-batches per step")->check(at_least(1));
    c->add_option("--chunks", schedule.chunks, "Parts of the model on each stage (default: interleaved 2, others 1)")
        ->check(at_least(1));
    c->add_option("--svg", schedule.svg, "Write an image as well")->type_name("FILE");
    c->add_option("--trace", schedule.trace,
                  "Draw the last step that a run recorded (trireme train --trace), instead of a plan")
        ->type_name("trace.json");
    c->add_flag("--json", schedule.json, "One JSON object instead of a drawing");
    c->add_flag("--program", schedule.program, "Print the instructions of every stage");
  }

  void add_data() {
    CLI::App* data = app.add_subcommand("data", "Get data sets, and turn text into tokens");
    data->require_subcommand(1);
    CLI::App* c =
        add(*data, result, fetch, "fetch", "Fetch a data set: austen (six novels) or fashion-mnist (70,000 images)",
            "trireme data fetch austen --out data");
    c->add_option("name", fetch.name, "austen or fashion-mnist")->required();
    c->add_option("--out", fetch.out, "Folder to put it into")->type_name("DIR")->capture_default_str();
    c->add_option("--from", fetch.from, "Use this package or folder instead of downloading")->type_name("PATH");
    c->add_flag("--no-check", fetch.no_check, "Accept content with another SHA-256 than expected");

    DataTokenizeCommand& tokens = data_tokenize;
    c = add(*data, result, tokens, "tokenize", "Turn text of any size into token shards, which a run reads as they are",
            "trireme data tokenize books/*.txt web.jsonl.gz --tokenizer smollm2 --out tokens");
    c->add_option("inputs", tokens.inputs,
                  "Text files (one document each) and .jsonl or .ndjson files (one a line), plain or compressed (.gz)")
        ->required()
        ->type_name("FILE...");
    c->add_option("--tokenizer", tokens.tokenizer, "As in trireme tokenize")->required()->type_name("T");
    c->add_option("--out", tokens.out,
                  "The folder to make; \"data\": {\"type\": \"tokens\", \"train\": \"DIR\"} reads it")
        ->required()
        ->type_name("DIR");
    c->add_option("--shard-tokens", tokens.shard_tokens, "Tokens in each shard but the last")
        ->check(at_least(1))
        ->capture_default_str();
    c->add_option("--threads", tokens.threads, "Threads (default: all cores); the result is the same with any number")
        ->check(at_least(1, 1024));
    c->add_option("--fields", tokens.fields,
                  "What JSON lines have: text, prompt (and response), messages, or any, which looks at each line")
        ->check(CLI::IsMember({"any", "text", "prompt", "messages"}))
        ->capture_default_str();
    c->add_option("--text-key", tokens.text_key, "The key of a JSON line that has the text")
        ->type_name("KEY")
        ->capture_default_str();
    c->add_option("--loss-on", tokens.loss_on,
                  "What counts in the loss of prompts and conversations: response (what the model says), or all tokens")
        ->check(CLI::IsMember({"response", "all"}))
        ->capture_default_str();
    c->add_option("--chat-template", tokens.chat_template,
                  "The template of conversations: a file (.jinja, or with a slash in its path), or the name of one in "
                  "the tokenizer's folder (default: that folder's)")
        ->type_name("FILE");
    c->add_option("--end-token", tokens.end_token,
                  "The token behind each document, or none (default: the one that the tokenizer's files name)")
        ->type_name("TEXT");
    c->add_flag("--force", tokens.force, "Replace a finished folder");
    c->add_flag("--json", tokens.json, "One JSON object instead of text");
  }

  void add_rest() {
    CLI::App* c =
        add(app, result, inspect, "inspect",
            "List what is in a safetensors file, a checkpoint, a run or token shards, or merge the dumps of a hang",
            "trireme inspect runs/austen/checkpoints");
    c->add_option(
         "path", inspect.path,
         "A .safetensors file, its folder or index, a checkpoint, a run folder, token shards or Megatron's .idx, or a "
         "folder with hang-rank*.json")
        ->required();
    c->add_flag("--json", inspect.json, "One JSON object instead of a table");

    c = add(app, result, doctor, "doctor", "Check what this machine and this build can do", "trireme doctor");
    c->add_flag("--json", doctor.json, "One JSON object instead of text");
  }

  void add_bench() {
    CLI::App* bench = app.add_subcommand("bench", "Measure a part of Trireme on this machine");
    bench->require_subcommand(1);
    CLI::App* c = add(*bench, result, bench_optim, "optim", "Optimizer steps against the machine's memory bandwidth",
                      "trireme bench optim --params 50000000 --threads 1,2 --json");
    c->add_option("--params", bench_optim.params, "Numbers of parameters")->delimiter(',')->check(at_least(1));
    c->add_option("--threads", bench_optim.threads, "Numbers of threads (default: all cores)")
        ->delimiter(',')
        ->check(at_least(1));
    c->add_option("--impl", bench_optim.impls,
                  "Rows: adam, adam_bf16, adam_bf16_states16, adam_bf16_states8, lamb, lion, adagrad, rmsprop, sgd "
                  "(default: all)")
        ->delimiter(',');
    c->add_option("--repeats", bench_optim.repeats, "Measurements of each; the median is printed")
        ->check(at_least(1))
        ->capture_default_str();
    c->add_flag("--json", bench_optim.json, "One JSON object a line instead of a table");

    c = add(*bench, result, bench_kernels, "kernels",
            "The fused operations of a transformer, forward and backward, against ATen's",
            "trireme bench kernels --hidden 768 --heads 12 --length 512 --json");
    c->add_option("--batch", bench_kernels.batch, "Samples per micro-batch")->check(at_least(1))->capture_default_str();
    c->add_option("--length", bench_kernels.length, "Tokens per sample")->check(at_least(1))->capture_default_str();
    c->add_option("--hidden", bench_kernels.hidden, "Numbers per token")->check(at_least(1))->capture_default_str();
    c->add_option("--heads", bench_kernels.heads, "Attention heads")->check(at_least(1))->capture_default_str();
    c->add_option("--vocab", bench_kernels.vocab, "Classes of the cross-entropy")
        ->check(at_least(1))
        ->capture_default_str();
    c->add_option("--threads", bench_kernels.threads, "Threads (default: all cores)")->check(at_least(1));
    c->add_option("--repeats", bench_kernels.repeats, "Measurements of each; the median is printed")
        ->check(at_least(1))
        ->capture_default_str();
    c->add_flag("--json", bench_kernels.json, "One JSON object a line instead of a table");

    c = add(*bench, result, bench_attention, "attention",
            "Attention with block-sparse layouts, forward and backward, against libtorch's to all keys",
            "trireme bench attention --kind fixed,bigbird --length 16384 --causal --json");
    const auto count = [&](const char* flag, int64_t& value, const char* what) {
      c->add_option(flag, value, what)->check(at_least(1))->capture_default_str();
    };
    c->add_option("--kind", bench_attention.kinds, "dense, fixed, variable, bigbird, longformer, window (default: all)")
        ->delimiter(',')
        ->check(CLI::IsMember({"dense", "fixed", "variable", "bigbird", "longformer", "window"}));
    count("--batch", bench_attention.batch, "Samples");
    count("--length", bench_attention.length, "Tokens per sample");
    count("--heads", bench_attention.heads, "Attention heads");
    count("--head-dim", bench_attention.head_dim, "Numbers per head");
    c->add_option("--block", bench_attention.block, "Tokens of a block: 16, 32, 64 or 128")->capture_default_str();
    c->add_option("--dtype", bench_attention.dtype, "fp32 or bf16")
        ->check(CLI::IsMember({"fp32", "bf16"}))
        ->capture_default_str();
    c->add_flag("--causal", bench_attention.causal, "No token attends to a later one");
    c->add_option("--threads", bench_attention.threads, "Threads (default: all cores)")->check(at_least(1));
    count("--repeats", bench_attention.repeats, "Measurements of each; the median is printed");
    c->add_flag("--json", bench_attention.json, "One JSON object a line instead of a table");

    c = add(*bench, result, bench_device, "device",
            "What a GPU does: copies, products, and each of Trireme's own kernels against the copy's bandwidth",
            "trireme bench device --device cuda:0 --json");
    c->add_option("--device", bench_device.device, "cpu, cuda or cuda:K")->capture_default_str();
    c->add_option("--only", bench_device.only, "Rows: device, copy, product, kernel (default: all)")
        ->delimiter(',')
        ->check(CLI::IsMember({"device", "copy", "product", "kernel"}));
    const auto size = [&](const char* flag, int64_t& value, const char* what) {
      c->add_option(flag, value, what)->check(at_least(1))->capture_default_str();
    };
    size("--rows", bench_device.rows, "Tokens of the passes of a transformer; of the loss an eighth");
    size("--hidden", bench_device.hidden, "Numbers per token, even");
    size("--vocab", bench_device.vocab, "Classes of the loss");
    size("--params", bench_device.params, "Parameters of the optimizers");
    size("--product", bench_device.product, "Rows, columns and depth of the matrix products");
    size("--bytes", bench_device.bytes, "Size of the copied array");
    size("--repeats", bench_device.repeats, "Calls that are timed as a whole, three times; the median is printed");
    c->add_flag("--json", bench_device.json, "One JSON object a line instead of a table");

    c = add(*bench, result, bench_tokenizer, "tokenizer", "Turning a text into token ids, by some threads",
            "trireme bench tokenizer --tokenizer tokenizer.json --text novels.txt --threads 1,2 --json");
    c->add_option("--tokenizer", bench_tokenizer.tokenizer, "As in trireme tokenize")->required()->type_name("T");
    c->add_option("--text", bench_tokenizer.text, "A text file")->required()->type_name("FILE");
    c->add_option("--threads", bench_tokenizer.threads, "Numbers of threads (default: 1 and all cores)")
        ->delimiter(',')
        ->check(at_least(1, 1024));
    c->add_option("--repeats", bench_tokenizer.repeats, "Measurements of each; the median is printed")
        ->check(at_least(1))
        ->capture_default_str();
    c->add_flag("--json", bench_tokenizer.json, "One JSON object a line instead of a table");

    c = add(*bench, result, bench_comm, "comm",
            "A collective between ranks of this machine, over each backend and against copies in memory",
            "trireme bench comm --op all_reduce --ranks 2,4 --json");
    c->add_option("--op", bench_comm.op,
                  "all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send or barrier")
        ->check(
            CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send", "barrier"}))
        ->capture_default_str();
    c->add_option("--ranks", bench_comm.ranks, "Numbers of ranks")->delimiter(',')->check(CLI::Range(2, 64));
    c->add_option("--bytes", bench_comm.bytes, "Sizes of the full tensor in bytes")->delimiter(',')->check(at_least(1));
    c->add_option("--backends", bench_comm.backends, "Backends to compare: shm, gloo, mpi (started with mpirun)")
        ->delimiter(',');
    c->add_option("--algorithm", bench_comm.algorithms,
                  "All-reduce over messages, for study: ring, tree, halving-doubling, naive; backend is the backend's "
                  "own (default)")
        ->delimiter(',')
        ->check(CLI::IsMember({"ring", "tree", "halving-doubling", "naive", "backend"}));
    c->add_option("--repeats", bench_comm.repeats, "Measurements of each; the median is printed")
        ->check(at_least(1))
        ->capture_default_str();
    c->add_flag("--json", bench_comm.json, "One JSON object a line instead of a table");
  }

  // The command that `words` begin with: "trireme data tokenize". Errors: InputError for a word that names none.
  std::string command_of(const std::vector<std::string>& words) const {
    const CLI::App* group = &app;
    std::string command = "trireme";
    for (const std::string& word : words) {
      const std::vector<std::string> names = names_in(*group);
      if (names.empty() || word.starts_with("-")) {
        break;
      }
      // CLI11 says "The following argument was not expected: trian".
      if (std::ranges::find(names, word) == names.end()) {
        throw InputError("command line",
                         group == &app ? concat("there is no command \"", word, '"')
                                       : concat('"', command, "\" has no command \"", word, '"'),
                         did_you_mean(word, names));
      }
      group = group->get_subcommand(word);
      command += concat(' ', word);
    }
    return command;
  }
};

void list_commands(const CLI::App& app, const std::string& prefix, std::vector<CommandEntry>& out) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = prefix + command->get_name();
    list_commands(*command, name + " ", out);
    if (!command->get_subcommands([](const CLI::App*) { return true; }).empty()) {
      continue; // "data" alone is not a command
    }
    CommandEntry entry{name, {}};
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& word : option->get_snames()) {
        entry.options.push_back("-" + word);
      }
      for (const std::string& word : option->get_lnames()) {
        entry.options.push_back("--" + word);
      }
    }
    out.push_back(std::move(entry));
  }
}

} // namespace

std::vector<CommandEntry> all_commands() {
  const Parser parser;
  std::vector<CommandEntry> out;
  list_commands(parser.app, "", out);
  return out;
}

Command parse(int argc, char** argv) {
  Parser parser;
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string command = parser.command_of(words);
  try {
    parser.app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) { // --help, --version
      parser.app.exit(error);
      throw ExitNow{0};
    }
    throw InputError("command line", error.what(), concat("Try: ", command, " --help"));
  }
  return *parser.result;
}

} // namespace trireme::tools
