#pragma once

#include "shell.h"

#include <nlohmann/json.hpp>

namespace trireme::tools {

/// A folder in which the commands of a page run, with a small stand-in for the model they name.
class PageFolder : public RunFolder {
 protected:
  Finished in_folder(const std::string& command) const {
    return sh(concat("cd \"", folder.string(), "\" && export OMP_NUM_THREADS=1 && PATH=\"", test::binary_dir(),
                     "/bin:$PATH\" && ", command),
              300);
  }
  // A few small steps. One that is resumed has some left.
  Finished few_steps(const std::string& command) const {
    return in_folder(concat(command, " --set training.eval_batches=1 --set training.steps=",
                            command.find("--resume") == std::string::npos ? 2 : 3));
  }
  // A small Llama with a tokenizer of bytes stands for SmolLM2.
  void make_smollm2() const {
    nlohmann::ordered_json run = {{"model",
                                   {{"type", "llama"},
                                    {"layers", 1},
                                    {"hidden", 16},
                                    {"heads", 2},
                                    {"intermediate", 24},
                                    {"sequence_length", 512}}},
                                  {"data", {{"type", "text"}, {"train", {"data/austen/emma.txt"}}}},
                                  {"training", {{"steps", 1}, {"export", "smollm2"}}},
                                  {"engine", {{"train_batch_size", 2}}}};
    nlohmann::ordered_json vocabulary;
    for (char letter = ' '; letter <= 'z'; ++letter) {
      vocabulary[std::string(1, letter)] = letter - ' ';
    }
    write_file_atomically(
        folder / "letters.json",
        nlohmann::ordered_json{
            {"added_tokens", nlohmann::ordered_json::array()},
            {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::ordered_json::array()}}}}
            .dump());
    run["data"]["tokenizer"] = "letters.json";
    write_file_atomically(folder / "base.json", run.dump());
    const Finished made = in_folder("trireme train base.json --out runs/base");
    ASSERT_EQ(made.status, 0) << made.output;
  }
};

} // namespace trireme::tools
