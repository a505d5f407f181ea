// `trireme generate` on a run of bytes: prompts together and alone, stop texts, bad input.
#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class GenerateCommandTest : public RunFolder {
 protected:
  GenerateCommandTest() {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += "the quick brown fox jumps over the lazy dog. ";
    }
    write_file_atomically(folder / "text.txt", text);
    write_file_atomically(folder / "text.json", R"({
      "model": {"type": "llama", "layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "sequence_length": 24, "vocab_size": 256},
      "data": {"type": "text", "train": ["text.txt"], "tokenizer": "bytes"}, "training": {"steps": 20},
      "engine": {"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}})");
    const Finished trained = command("train text.json --out run");
    EXPECT_EQ(trained.status, 0) << trained.output;
  }
  Finished command(const std::string& words) const {
    return sh(concat("cd ", folder.string(), " && OMP_NUM_THREADS=1 ", kTrireme, ' ', words));
  }
  std::vector<json> rows(const std::string& words) const {
    const Finished done = command(concat("generate run --json ", words));
    EXPECT_EQ(done.status, 0) << done.output;
    std::istringstream lines(done.output);
    std::vector<json> found;
    for (std::string line; std::getline(lines, line);) {
      found.push_back(json::parse(line));
    }
    return found;
  }
};

TEST_F(GenerateCommandTest, PromptsTogetherAreThoseAlone) {
  write_file_atomically(folder / "prompts", "the \n\nquick brown\n \r\nj\n"); // blank lines are skipped
  const std::string how = "--max-tokens 30 --temperature 0.9 --top-p 0.9 --repetition-penalty 1.1 ";
  for (const char* batch : {"--batch 8", "--batch 2"}) {
    const std::vector<json> together = rows(concat(how, "--seed 5 --prompts prompts ", batch));
    ASSERT_EQ(together.size(), 3u);
    const char* prompts[] = {"the ", "quick brown", "j"};
    for (int i = 0; i < 3; ++i) {
      const json& row = together[static_cast<size_t>(i)];
      const json alone = rows(concat(how, "--seed ", 5 + i, " --prompt \"", prompts[i], '"')).at(0);
      EXPECT_EQ(row.at("prompt"), prompts[i]);
      EXPECT_EQ(row.at("text"), alone.at("text")) << batch << ", prompt " << i;
      EXPECT_EQ(row.at("ids").size(), 30u) << "beyond the 24 positions of the model too";
      EXPECT_EQ(row.at("prompt_tokens"), std::strlen(prompts[i]));
      EXPECT_GT(row.at("tokens_per_s").get<double>(), 0);
      EXPECT_EQ(row.at("step"), 20);
    }
  }
}

// JSON escapes them; a terminal gets U+FFFD.
TEST_F(GenerateCommandTest, JsonKeepsControlCharacters) {
  const std::string prompt = "a\x01\x1b\f\x7f\xc2\x85\xc3\xa9";
  write_file_atomically(folder / "prompts", concat(prompt, "\r\nb\r\n"));
  const std::string how = "generate run --max-tokens 40 --temperature 100 --prompts prompts";
  const Finished done = command(how + " --json");
  EXPECT_THAT(done.output,
              testing::AllOf(HasSubstr("\\u001b\\f\\u007f\\u0085\xc3\xa9\""), HasSubstr("\"prompt\":\"b\"")));
  const json row = json::parse(done.output.substr(0, done.output.find('\n')));
  EXPECT_EQ(row.at("prompt"), prompt);
  EXPECT_EQ(row.at("prompt_tokens"), prompt.size()) << "without the end of a Windows line";
  const auto is_control = [](int byte) { return byte < 0x20 || byte == 0x7F; };
  const std::vector<int> ids = row.at("ids");
  const auto text = row.at("text").get<std::string>();
  EXPECT_GT(std::ranges::count_if(ids, is_control), 0);
  EXPECT_EQ(std::ranges::count_if(text, [&](char c) { return is_control(static_cast<unsigned char>(c)); }),
            std::ranges::count_if(ids, is_control));
  EXPECT_THAT(command(how).output, HasSubstr("a\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\xc3\xa9"));
}

TEST_F(GenerateCommandTest, APromptThatIsCutIsNamed) {
  write_file_atomically(folder / "prompts", concat("short\n", std::string(40, 'a'), '\n', std::string(50, 'b'), '\n'));
  const std::string how = "generate run --max-tokens 1 --batch 1 --prompts prompts";
  EXPECT_THAT(command(how + " 2>&1 >/dev/null").output,
              testing::EndsWith("Prompt 2 has 40 tokens and the model 24 positions: its first 16 tokens are not read. "
                                "Later prompts are cut without a warning.\n"));
  EXPECT_EQ(command("generate run --max-tokens 1 --prompt " + std::string(24, 'a') + " 2>&1 >/dev/null").output, "");
}

TEST_F(GenerateCommandTest, ATextEndsBeforeAStopText) {
  const std::string how = "--prompt \"the qu\" --max-tokens 40 --temperature 0 ";
  const auto whole = rows(how).at(0).at("text").get<std::string>();
  const std::string stop = whole.substr(12, 3);
  const json cut = rows(concat(how, "--stop never --stop \"", stop, '"')).at(0);
  EXPECT_EQ(cut.at("text"), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(cut.at("ids").size(), whole.find(stop) + stop.size()) << "no token is computed after it";
  const Finished streamed = command(concat("generate run ", how, "--stop \"", stop, '"'));
  EXPECT_EQ(streamed.output, concat("the qu", whole.substr(0, whole.find(stop)), '\n'));
  EXPECT_EQ(command("generate run " + how).output, concat("the qu", whole, '\n'));
}

TEST_F(GenerateCommandTest, ChatPutsAMessageIntoTheTemplate) {
  const std::string how = "--max-tokens 30 --temperature 0 ";
  const Finished refused = command("generate run --chat --prompt hi");
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.output, HasSubstr("run/model has no chat template"));
  fs::create_directories(folder / "run/model");
  write_file_atomically(folder / "run/model/chat_template.jinja",
                        "{% for m in messages %}{{ 'the ' if m.role == 'system' }}{{ m.content }} {% endfor %}\n"
                        "{%- if add_generation_prompt %}fo{% endif %}");
  const json plain = rows(how + "--prompt \"the quick brown fo\"").at(0);
  const json chat = rows(how + "--chat --system quick --prompt brown").at(0);
  EXPECT_EQ(chat.at("prompt"), "brown");
  EXPECT_EQ(chat.at("ids"), plain.at("ids"));
  EXPECT_EQ(chat.at("prompt_tokens"), std::strlen("the quick brown fo"));
  EXPECT_EQ(rows(how + "--chat --prompt quick").at(0).at("ids"), rows(how + "--prompt \"quick fo\"").at(0).at("ids"));
  const auto text = chat.at("text").get<std::string>();
  EXPECT_EQ(command("generate run " + how + "--chat --system quick --prompt brown").output, text + "\n")
      << "the answer alone";

  const std::vector<int> ids = chat.at("ids");
  const int end = ids.at(4); // a token of the tokenizer "bytes"
  ASSERT_LT(end, 128) << text;
  write_file_atomically(folder / "run/model/tokenizer_config.json",
                        json{{"eos_token", std::string(1, static_cast<char>(end))}}.dump());
  const json ended = rows(how + "--chat --system quick --prompt brown").at(0);
  EXPECT_EQ(ended.at("ids").size(), static_cast<size_t>(std::ranges::find(ids, end) - ids.begin()) + 1);

  write_file_atomically(folder / "run/model/chat_template.jinja", "{{ raise_exception('Only \"bot\" may speak') }}");
  const Finished raised = command("generate run --chat --prompt hi");
  EXPECT_EQ(raised.status, 2);
  EXPECT_THAT(raised.output,
              HasSubstr("chat_template.jinja:1: the chat template refuses this conversation: Only \"bot\""));
}

TEST_F(GenerateCommandTest, RanksThatSplitTheModelGiveOneText) {
  write_file_atomically(folder / "prompts", "the \nquick brown\nj\n");
  const std::string greedy = "generate run --json --max-tokens 20 --temperature 0 --prompts ";
  const std::string how = greedy + "prompts";
  const auto split = [&](int ranks, int tensor) {
    return command(concat("launch -n ", ranks, " -- ", kTrireme, ' ', how, " --tensor ", tensor));
  };
  const auto texts = [](const Finished& done) {
    EXPECT_EQ(done.status, 0) << done.output;
    std::istringstream lines(done.output);
    std::vector<json> found;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with('{')) { // the launcher has lines of its own
        found.push_back(json::parse(line).at("ids"));
      }
    }
    return found;
  };
  const std::vector<json> whole = texts(command(how));
  EXPECT_EQ(whole.size(), 3u);
  EXPECT_EQ(texts(split(2, 2)), whole) << "the first rank alone prints";
  const Finished piped = sh(concat("cd ", folder.string(), " && cat prompts | OMP_NUM_THREADS=1 ", kTrireme,
                                   " launch -n 2 -- ", kTrireme, ' ', greedy, "/dev/stdin --tensor 2"));
  EXPECT_EQ(texts(piped), whole) << "the first rank alone reads";
  const Finished heads = split(3, 3);
  EXPECT_EQ(heads.status, 2) << heads.output;
  EXPECT_THAT(heads.output, HasSubstr("the 3 tensor-parallel ranks must divide the 2 heads"));
  const Finished ranks = split(2, 3);
  EXPECT_EQ(ranks.status, 2) << ranks.output;
  EXPECT_THAT(ranks.output, HasSubstr("--tensor is 3, but 2 ranks were started"));
  EXPECT_EQ(command(how + " --tensor 2").status, 2);
}

// Parts of two models, or of two steps of a run, would give a text of neither. Copies of a model are one.
TEST_F(GenerateCommandTest, RanksWithDifferentModelsAreRefused) {
  const auto each_with = [&](const std::string& words) { // $RANK in them
    write_file_atomically(folder / "own",
                          concat("exec ", kTrireme, " generate --tensor 2 --temperature 0 --prompt 5 ", words));
    return command("launch -n 2 -- sh own");
  };
  const Finished exported = command("export run model0");
  ASSERT_EQ(exported.status, 0) << exported.output;
  fs::copy(folder / "model0", folder / "model1");
  const Finished copies = each_with("--max-tokens 5 model$RANK");
  EXPECT_EQ(copies.status, 0) << copies.output;
  std::string weights = read_file(folder / "model1/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write_file_atomically(folder / "model1/model.safetensors", weights);
  fs::copy(folder / "run/checkpoints/global_step20", folder / "run/checkpoints/global_step21");
  for (const auto& [words, why] :
       {std::pair("model$RANK", "rank 1 and rank 0 read different models: model.safetensors is not the same"),
        {"run/checkpoints/global_step$((20 + RANK))", "rank 1 and rank 0 differ in the run: "},
        {"$(test $RANK = 0 && echo run || echo model0)", "rank 1 and rank 0 differ in the kind of model: "},
        {"run --max-tokens $((RANK + 5))", "rank 1 and rank 0 differ in --max-tokens: 6 and 5"}}) {
    const Finished refused = each_with(words);
    EXPECT_EQ(refused.status, 2) << words << '\n' << refused.output;
    EXPECT_THAT(refused.output, HasSubstr(why));
  }
}

TEST_F(GenerateCommandTest, Int8WeightsGiveTheTextOfATrainedModel) {
  const std::string how = "--prompt \"the qu\" --max-tokens 20 --temperature 0 ";
  const json text = rows(how).at(0).at("text");
  EXPECT_EQ(rows(how + "--weights int8").at(0).at("text"), text);
  EXPECT_EQ(rows(how + "--weights int8 --dtype bf16").at(0).at("text"), text);
  const Finished refused = sh(
      concat("cd ", folder.string(), " && TRIREME_SIMD=scalar ", kTrireme, " generate run --weights int8 --prompt a"));
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.output, HasSubstr("int8 weights need a processor with AVX2"));
}

// The template has the token that the tokenizer puts before a text.
TEST_F(GenerateCommandTest, ChatHasOneTokenOfTheBeginning) {
  json vocabulary = {{"Ġ", 26}, {".", 27}};
  for (int i = 0; i < 26; ++i) {
    vocabulary[std::string(1, static_cast<char>('a' + i))] = i;
  }
  const json begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  fs::create_directories(folder / "letters");
  write_file_atomically(
      folder / "letters/tokenizer.json",
      json{{"added_tokens", {{{"id", 28}, {"content", "<s>"}, {"special", true}, {"normalized", false}}}},
           {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
           {"post_processor",
            {{"type", "TemplateProcessing"},
             {"single", {begin, text}},
             {"pair", json::array()},
             {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {28}}, {"tokens", {"<s>"}}}}}}}},
           {"decoder", {{"type", "ByteLevel"}}},
           {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
          .dump());
  write_file_atomically(folder / "letters/tokenizer_config.json", json{{"bos_token", "<s>"}}.dump());
  write_file_atomically(folder / "letters/chat_template.jinja",
                        "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %} fo{% endif %}");
  json run = json::parse(read_file(folder / "text.json"));
  run["data"]["tokenizer"] = "letters";
  run["training"]["steps"] = 2;
  write_file_atomically(folder / "letters.json", run.dump());
  const Finished trained = command("train letters.json --out of_letters");
  ASSERT_EQ(trained.status, 0) << trained.output;
  const std::string how = "generate of_letters --json --max-tokens 10 --temperature 0 ";
  const Finished plain = command(how + "--prompt \"the quick fo\"");
  const Finished chat = command(how + "--chat --prompt \"the quick\"");
  ASSERT_EQ(plain.status, 0) << plain.output;
  ASSERT_EQ(chat.status, 0) << chat.output;
  EXPECT_EQ(json::parse(plain.output).at("prompt_tokens"), std::strlen("the quick fo") + 1);
  EXPECT_EQ(json::parse(chat.output).at("prompt_tokens"), std::strlen("the quick fo") + 1);
  EXPECT_EQ(json::parse(chat.output).at("ids"), json::parse(plain.output).at("ids"));
}

TEST_F(GenerateCommandTest, BadInputIsRefusedInOneSentence) {
  write_file_atomically(folder / "none", "");
  write_file_atomically(folder / "blank", "\n \r\n");
  for (const auto& [words, why] : {std::pair("--prompts missing", "cannot open missing: No such file"),
                                   {"--prompts none", "none has no prompts"},
                                   {"--prompts blank", "blank has no prompts"},
                                   {"--prompts run", "run is a folder"},
                                   {"--prompts none --prompt a", "--prompt"},
                                   {"--prompt a --seed 99999999999999999999", "does not fit into 64 bits"},
                                   {"--prompt a --seed 1x", "expected a whole number, got \"1x\""},
                                   {"--prompt a --top-p 0", "top_p is 0"},
                                   {"--prompt a --top-p 1.5", "top_p is 1.5"},
                                   {"--prompt a --min-p -1", "min_p is -1"},
                                   {"--prompt a --repetition-penalty 0", "repetition_penalty is 0"},
                                   {"--prompt a --stop \"\"", "--stop is empty"},
                                   {"--chat", "--chat has no message"},
                                   {"--prompt a --system b", "--chat"},
                                   {"--prompt a --dtype int4", "--dtype"},
                                   {"--prompt a --weights int4", "--weights"},
                                   {"--prompt a --batch 0", "--batch"}}) {
    const Finished refused = command(concat("generate run ", words));
    EXPECT_EQ(refused.status, 2) << words << '\n' << refused.output;
    EXPECT_THAT(refused.output, HasSubstr(why));
  }
  fs::create_directory(folder / "folder");
  write_file_atomically(folder / "folder/config.json", R"({"model_type": "bert"})");
  EXPECT_EQ(command("generate folder --prompt a").status, 2);
}

} // namespace
} // namespace trireme::tools
