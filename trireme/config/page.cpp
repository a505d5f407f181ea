#include <trireme/config/reference.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/key_table.h>

#include <algorithm>

namespace trireme::config {
namespace {

constexpr std::string_view kHead = R"(# Configuration

`trireme train RUN.json` reads one file. Its `engine` section is a DeepSpeed configuration, inline or as the path of
a file; a C++ program hands the same section to `initialize()`. This page lists every key and what becomes of it:

| | |
|---|---|
| **honoured** | does what DeepSpeed's documentation says, and what stands here |
| no effect | accepted; a sentence in the log says why it changes nothing |
| *not yet* | an error, until the capability is built |
| *refused* | an error that says what to do instead |

The last two are errors only when the value asks for something: the default and `null` are accepted. An unknown key is
an error with the nearest known one. `null` counts as absent. Keys that begin with `x_` or `_comment` are notes to
oneself; `//` and `/* */` comments are allowed.

- **Switched off**: a section that says so (`"enabled": false`, `"device": "none"`) is never an error, with any content; unknown keys and wrong values in it are named in the log.
- **`"auto"`**, as configurations for Hugging Face's Trainer have it, is replaced for the keys that list it below. The value comes from the run or the program (`config::AutoValues`, the second argument of `read_config()`), else it is the Trainer's default: 8 samples a micro-batch, accumulation 1,
  lr 5e-5, no warm-up, clipping at 1. A line in the log says what each became. Keys without effect may be "auto"; for all others it is an error.
  `"auto"` for `fp16.enabled` means false; for `bf16.enabled` a measurement at the start decides.
- **No `optimizer`**: AdamW with its defaults, which a line in the log says.

- **Batch sizes**: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data ranks.
  Any two determine the third. If only one of train and micro is given, accumulation is 1.
- **Weight decay** acts on every parameter, biases and norms too, as in PyTorch and DeepSpeed. `weight_decay_rule: "matrices"` spares
  those of one dimension, as GPTs are usually trained; programs may choose parameters by name (`InitializeOptions::parameter_groups`).
- **Defaults** are DeepSpeed's, not PyTorch's: `gradient_clipping` is 1.0 (a plain PyTorch loop and older versions of DeepSpeed do not clip: write 0 for that; a program's own torch optimizer is not clipped either), and `weight_decay` is 0
  (`torch.optim.AdamW` has 0.01).
- **Parameters that no rank used in a step** are not stepped, as in PyTorch: neither weight decay nor moments, the same at every ZeRO stage
  (DeepSpeed's ZeRO steps them with a gradient of zero, and so does `step_in_backward` here). Bias correction counts the
  optimizer's steps, not each parameter's.
- **Conflicting settings** are refused; [one table](compatibility.md) lists them, with what to do instead.
- **Overrides**: `--set training.steps=500 --set engine.optimizer.params.lr=1e-4`; the value is JSON, or else a string.
  Elements of an array are numbered from 0: `--set data.sets.1.weight=0.5`.
- **Paths** in a run file start at its folder; what is not there is looked up in the working directory.
- **Editors**: write `"$schema": "path/to/docs/run.schema.json"` at the top of a run file to get completion and checks.

This page and `run.schema.json` are written from the table that the reader uses (`trireme/config/keys_*.cpp`);
a test compares them. After a change: `TRIREME_WRITE_DOCS=1 build/release/tests/config/config_test`.
)";

std::string code(std::string_view text) {
  return concat('`', text, '`');
}

std::string verdict_text(Verdict verdict) {
  const std::string_view name = verdict_name(verdict);
  return verdict == Verdict::honoured    ? concat("**", name, "**")
         : verdict == Verdict::no_effect ? std::string(name)
                                         : concat('*', name, '*');
}

std::string heading(const Section& section) {
  const std::string path = section.path.empty() ? "The run file" : code(section.path);
  return section.when.empty() ? concat("\n## ", path, '\n')
                              : concat("\n## ", path, " of type ", join(split(section.when, ' '), ", "), '\n');
}

std::string default_text(const Key& key) {
  if (key.default_value == "required") {
    return "required";
  }
  return key.default_value.empty() || key.default_value == "null" ? "" : code(key.default_value);
}

// The text with a capital, unless it begins with a name: metrics.jsonl, local_sgd, "nvme:", "server, stale:".
std::string sentence(std::string_view text) {
  std::string out(text);
  const std::string_view word = text.substr(0, text.find(' '));
  const bool is_name = word.substr(0, word.size() - 1).find_first_of("._") != std::string_view::npos ||
                       word.ends_with(':') || word.ends_with(',');
  if (!is_name) {
    out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
  }
  return out;
}

void add_choices(const Section& section, std::string& out) {
  out += "\n| name | | |\n|---|---|---|\n";
  for (const Key& key : section.keys) {
    out += concat("| ", code(key.name), " | ", verdict_text(key.verdict), " | ", sentence(key.text), " |\n");
  }
}

void add_keys(const Section& section, std::string& out) {
  out += "\n| key | value | default | | |\n|---|---|---|---|---|\n";
  for (const Key& key : section.keys) {
    out += concat("| ", code(key.name), " | ", ValueType::parse(key.type).describe(), " | ", default_text(key), " | ",
                  verdict_text(key.verdict), " | ", sentence(key.text), " |\n");
  }
}

} // namespace

std::string configuration_page() {
  std::string out(kHead);
  for (const Section& section : all_sections()) {
    out += heading(section);
    if (!section.text.empty()) {
      out += concat('\n', section.text, '\n');
    }
    if (section.gated) {
      out += concat("While ", code(section.keys.front().name), " is off, the other keys are ignored.\n");
    }
    const bool choices = section.keys.front().type.empty();
    choices ? add_choices(section, out) : add_keys(section, out);
  }
  return out;
}

} // namespace trireme::config
