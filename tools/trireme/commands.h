#pragma once

#include <trireme/generate/options.h>
#include <trireme/train/commands.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

// The command line as data. Both programs parse it alike: `trireme`, without libtorch, does what needs none, and starts
// `trireme-rank` for the rest.
namespace trireme::tools {

using train::EstimateCommand;
using train::ExitNow;
using train::PlacesCommand;
using train::PlanCommand;
using train::TrainCommand;

struct LaunchCommand {
  int64_t ranks = 0; ///< 0: all slots of the hostfile
  int64_t servers = 0;
  PlacesCommand places;
  std::filesystem::path log_dir;
  bool all_output = false;
  std::vector<std::string> program;
};

struct GenerateCommand {
  std::filesystem::path from;
  std::filesystem::path adapter;
  std::string prompt;
  std::filesystem::path prompts; ///< a file with a prompt a line
  bool chat = false;             ///< each prompt is the message of a user
  std::string system;            ///< with chat: the system's message; empty: none
  int64_t batch = 8;
  int64_t tensor = 1; ///< ranks that split the model; each is started with the same command
  std::string dtype = "fp32";
  std::string weights; ///< "int8"; empty: dtype
  std::vector<std::string> stop;
  generate::SampleOptions sample;
  bool json = false;
};

struct ExportCommand {
  std::filesystem::path from;
  std::filesystem::path folder;
  std::string dtype; ///< "fp32", "bf16" or "fp16"; empty: that of the folder the run began with
  bool merge = false;
  bool json = false;
};

struct InspectCommand {
  std::filesystem::path path;
  bool json = false;
};

struct ScheduleCommand {
  std::string kind;
  int64_t stages = 0; ///< 0: absent, as below
  int64_t micro_batches = 0;
  int64_t chunks = 0;
  std::filesystem::path svg;
  std::filesystem::path trace;
  bool json = false;
  bool program = false;
};

struct StoreCommand {
  std::string listen = "127.0.0.1:0";
};

struct TokenizeCommand {
  std::string tokenizer;
  bool decode = false;
  bool special = false;
  bool json = false;
};

struct DoctorCommand {
  bool json = false;
};

struct DataFetchCommand {
  std::string name;
  std::filesystem::path out = "data";
  std::filesystem::path from;
  bool no_check = false;
};

struct DataTokenizeCommand {
  std::vector<std::filesystem::path> inputs;
  std::string tokenizer;
  std::filesystem::path out;
  int64_t shard_tokens = int64_t{1} << 30;
  int64_t threads = 0; ///< 0: all cores
  std::string fields = "any";
  std::string text_key = "text";
  std::string loss_on = "response";
  std::string chat_template; ///< empty: the tokenizer's
  std::string end_token;     ///< empty: the tokenizer's
  bool force = false;
  bool json = false;
};

struct BenchOptimCommand {
  std::vector<int64_t> params = {50'000'000};
  std::vector<int64_t> threads;
  std::vector<std::string> impls;
  int64_t repeats = 11;
  bool json = false;
};

struct BenchKernelsCommand {
  int64_t batch = 4;
  int64_t length = 256;
  int64_t hidden = 384;
  int64_t heads = 6;
  int64_t vocab = 8192;
  int64_t threads = 0; ///< 0: all cores
  int64_t repeats = 15;
  bool json = false;
};

struct BenchAttentionCommand {
  std::vector<std::string> kinds = {"dense", "fixed", "variable", "bigbird", "longformer", "window"};
  int64_t batch = 1;
  int64_t length = 4096;
  int64_t heads = 4;
  int64_t head_dim = 64;
  int64_t block = 64;
  std::string dtype = "fp32"; ///< or "bf16"
  bool causal = false;
  int64_t threads = 0; ///< 0: all cores
  int64_t repeats = 5;
  bool json = false;
};

/// The sizes are much larger than a GPU's caches.
struct BenchDeviceCommand {
  std::string device = "cuda";   ///< or "cpu", "cuda:K"
  std::vector<std::string> only; ///< kinds of rows (bench_device.h); empty: all. Without "copy" no kernel has of_copy
  int64_t rows = 65536;          ///< tokens of a transformer's passes; an eighth of them for the loss
  int64_t hidden = 768;
  int64_t vocab = 50304;
  int64_t params = 134'217'728; ///< of the optimizers
  int64_t product = 8192;       ///< rows, columns and depth of the matrix products
  int64_t bytes = 1 << 30;      ///< of the copied array
  int64_t repeats = 10;         ///< calls of each of three measurements, after two for warm-up; the median counts
  bool json = false;
};

struct BenchCommCommand {
  std::string op = "all_reduce";
  std::vector<int64_t> ranks = {2, 4};
  std::vector<int64_t> bytes = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> backends = {"shm", "gloo"};
  std::vector<std::string> algorithms = {"backend"};
  int64_t repeats = 15;
  bool json = false;
};

struct BenchTokenizerCommand {
  std::string tokenizer;
  std::filesystem::path text;
  std::vector<int64_t> threads;
  int64_t repeats = 5;
  bool json = false;
};

using Command = std::variant<TrainCommand, EstimateCommand, LaunchCommand, GenerateCommand, ExportCommand,
                             InspectCommand, DoctorCommand, DataFetchCommand, DataTokenizeCommand, BenchOptimCommand,
                             BenchAttentionCommand, BenchCommCommand, BenchDeviceCommand, BenchKernelsCommand,
                             ScheduleCommand, PlanCommand, StoreCommand, TokenizeCommand, BenchTokenizerCommand>;

/// Parses the arguments. Prints help or version and throws ExitNow(0). Errors: InputError naming the wrong words and
/// what to write.
Command parse(int argc, char** argv);

/// A command by its full name ("data fetch") and its options, with their dashes ("-n", "--ranks").
struct CommandEntry {
  std::string name;
  std::vector<std::string> options;
};

/// All commands that parse() accepts, for tests of documentation.
std::vector<CommandEntry> all_commands();

} // namespace trireme::tools
