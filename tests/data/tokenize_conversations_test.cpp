// Conversations and prompts in shards have the ids of transformers, and count the tokens of its assistant mask.
#include <trireme/data/tokenize/tokenize.h>

#include "temporary_folder.h"

#include <tests/support/folders.h>
#include <tests/support/made_once.h>
#include <trireme/base/file.h>
#include <trireme/data/fetch_command.h>
#include <trireme/data/token_files/token_files.h>
#include <trireme/data/tokenize/counted_text.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Documents in shards.
struct CountedDocument {
  std::vector<int32_t> ids;
  std::vector<int> mask;
};

std::vector<CountedDocument> documents_in(const fs::path& folder) {
  std::vector<CountedDocument> documents;
  for (const TokenFile& file : open_token_files({folder}, 0)) {
    const unsigned char* at = file.map->bytes().data() + file.begin;
    int64_t next = 0;
    int64_t counted = 0;
    for (int64_t i = 0; i < file.num_tokens; ++i, at += 2) {
      if (next < file.num_documents && file.document_start(next) == i) {
        documents.emplace_back();
        ++next;
      }
      documents.back().ids.push_back(at[0] | at[1] << 8);
      documents.back().mask.push_back(file.mask == nullptr ? 1 : file.mask[i / 8] >> i % 8 & 1);
      counted += documents.back().mask.back();
    }
    EXPECT_EQ(file.counted_tokens.value_or(file.num_tokens), counted);
  }
  return documents;
}

class TokenizeConversationsTest : public TemporaryFolderTest {
 protected:
  static fs::path reference() {
    return test::made_once("reference_conversations", [](const fs::path& folder) {
      const CommandResult result = run_command(
          {test::python(), test::source_dir() + "/tests/data/reference_conversations.py", folder.string()}, folder);
      ASSERT_EQ(result.exit_code, 0) << "PyPI transformers is needed (requirements-test.txt):\n" << result.err;
    });
  }
  TokenizeOptions options(const std::vector<fs::path>& inputs, const std::string& tokenizer) const {
    return {.inputs = inputs, .tokenizer = tokenizer, .out = folder_ / "out", .threads = 2, .force = true};
  }
  void expect_documents(const TokenizeOptions& wanted, const json& expected, const std::string& what) const {
    const TokenizeResult result = tokenize_files(wanted);
    const std::vector<CountedDocument> documents = documents_in(wanted.out);
    size_t number = 0;
    for (const json& document : expected) {
      if (document[0].empty()) {
        continue; // left out
      }
      ASSERT_LT(number, documents.size()) << what;
      EXPECT_EQ(documents[number].ids, document[0].get<std::vector<int32_t>>()) << what << ", document " << number;
      EXPECT_EQ(documents[number].mask, document[1].get<std::vector<int>>()) << what << ", document " << number;
      ++number;
    }
    EXPECT_EQ(number, documents.size()) << what;
  }
  // The tokenizer "bytes" of the reference with another template.
  std::string with_template(const fs::path& made, const std::string& text) const {
    fs::copy(made / "bytes", folder_ / "other", fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    write("other/chat_template.jinja", text);
    return (folder_ / "other").string();
  }
  std::string refused(const std::string& lines, const std::string& tokenizer) const {
    return input_error([&] { tokenize_files(options({write("bad.jsonl", lines)}, tokenizer)); });
  }
};

TEST_F(TokenizeConversationsTest, IdsAndMaskAreThoseOfTransformers) {
  const fs::path made = reference();
  for (const char* name : {"bytes", "inline", "metaspace", "composed"}) {
    const std::string tokenizer = (made / name).string();
    const json expected = json::parse(read_file(made / name / "expected.json"));
    TokenizeOptions conversations = options({made / "lines.jsonl"}, tokenizer);
    expect_documents(conversations, expected["lines"], concat(name, " conversations"));
    conversations.shard_tokens = 61;
    expect_documents(conversations, expected["lines"], concat(name, " conversations over shards"));
    expect_documents(options({made / "prompts.jsonl"}, tokenizer), expected["prompts"], concat(name, " prompts"));
  }
}

TEST_F(TokenizeConversationsTest, ATemplateWithoutMarksCountsTheSame) {
  const fs::path made = reference();
  const std::string tokenizer = with_template(made, read_file(made / "plain.jinja"));
  const json expected = json::parse(read_file(made / "bytes" / "expected.json"));
  expect_documents(options({made / "lines.jsonl"}, tokenizer), expected["lines"], "without marks");
}

// Longer than a block of text, and than what is cut: a conversation stays whole.
TEST_F(TokenizeConversationsTest, LongConversationsAreNotCut) {
  const fs::path made = reference();
  std::string words;
  for (int i = 0; i < 60'000; ++i) {
    words += concat(i % 9, " rows ");
  }
  const auto line = [&](const std::string& answer) {
    return json{{"messages", {{{"role", "user"}, {"content", "?"}}, {{"role", "assistant"}, {"content", answer}}}}}
               .dump() +
           "\n";
  };
  const TokenizeOptions wanted =
      options({write("long.jsonl", line(words) + line("short") + line(words))}, (made / "bytes").string());
  const TokenizeResult result = tokenize_files(wanted);
  const auto documents = documents_in(wanted.out);
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_EQ(result.index.documents, 3);
  EXPECT_EQ(documents[0].ids, documents[2].ids);
  EXPECT_EQ(documents[0].mask, documents[2].mask);
  EXPECT_EQ(documents[0].mask.front(), 0);
  EXPECT_EQ(documents[0].mask.back(), 0) << "the line end behind the answer";
  EXPECT_EQ(documents[0].mask[documents[0].mask.size() - 2], 1) << "the answer's end";
  EXPECT_EQ(result.index.counted_tokens.value(),
            2 * std::ranges::count(documents[0].mask, 1) + std::ranges::count(documents[1].mask, 1));
}

TEST_F(TokenizeConversationsTest, TextsAndConversationsMayBeMixed) {
  const fs::path made = reference();
  const std::string lines =
      concat(R"({"text": "rows"})", "\n", R"({"prompt": "a\n", "response": "rows"})", "\n",
             R"({"messages": [{"role": "user", "content": "a"}]})", "\n", R"({"text": ""})", "\n");
  const TokenizeOptions wanted =
      options({write("mixed.jsonl", lines), write("plain.txt", "a text")}, (made / "bytes").string());
  const TokenizeResult result = tokenize_files(wanted);
  const auto documents = documents_in(wanted.out);
  ASSERT_EQ(documents.size(), 4u);
  EXPECT_EQ(result.empty_documents, 1);
  const auto counts = [&](size_t i) { return std::ranges::count(documents[i].mask, 1); };
  EXPECT_EQ(counts(0), std::ssize(documents[0].ids)) << "all of a text";
  EXPECT_EQ(counts(1), std::ssize(documents[1].ids) - 2) << "all but the prompt";
  EXPECT_EQ(counts(2), 0) << "the assistant says nothing";
  EXPECT_NE(documents[2].ids.back(), documents[1].ids.back()) << "no end token behind a conversation";
  EXPECT_EQ(counts(3), std::ssize(documents[3].ids));
  const ShardIndex index = ShardIndex::read(wanted.out);
  EXPECT_EQ(index.counted_tokens, result.index.counted_tokens);
}

TEST_F(TokenizeConversationsTest, WithoutConversationsNothingIsMasked) {
  tokenize_files(options({write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n")}, "bytes"));
  EXPECT_EQ(ShardIndex::read(folder_ / "out").counted_tokens, std::nullopt);
  EXPECT_EQ(open_token_files({folder_ / "out"}, 0)[0].mask, nullptr);
}

TEST_F(TokenizeConversationsTest, BadLinesAreNamed) {
  const fs::path made = reference();
  const std::string tokenizer = (made / "bytes").string();
  const std::string hello = R"({"messages": [{"role": "user", "content": "hi"}]})";
  EXPECT_THAT(refused(hello + "\n{\"messages\": []}\n", tokenizer),
              AllOf(HasSubstr("bad.jsonl:2: \"messages\" must be a list of at least one message"),
                    HasSubstr("\"role\": \"user\"")));
  EXPECT_THAT(refused(R"({"messages": "hi"})", tokenizer), HasSubstr("bad.jsonl:1: \"messages\" must be a list"));
  EXPECT_THAT(refused(R"({"messages": [1]})", tokenizer), HasSubstr("bad.jsonl:1: a message is not an object"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant"}]})", tokenizer),
              AllOf(HasSubstr("bad.jsonl:1: "), HasSubstr("chat_template.jinja:")));
  EXPECT_THAT(refused(R"({"prompt": "a"})", tokenizer), HasSubstr("bad.jsonl:1: the key \"response\" is missing"));
  EXPECT_THAT(refused(R"({"response": "a"})", tokenizer), HasSubstr("bad.jsonl:1: the key \"prompt\" is missing"));
  EXPECT_THAT(refused(R"({"prompt": "a", "response": ["b"]})", tokenizer),
              HasSubstr("\"response\" is a list, not a text"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": "a"}], "text": "a"})", tokenizer),
              AllOf(HasSubstr("bad.jsonl:1: the line has the keys \"text\" and \"messages\""), HasSubstr("--fields")));
  EXPECT_THAT(refused(R"({"prompt": "a", "response": "b", "messages": []})", tokenizer),
              HasSubstr("the keys \"prompt\" and \"messages\""));
  EXPECT_THAT(refused(hello, "bytes"), AllOf(HasSubstr("bad.jsonl:1: the tokenizer bytes has no chat template"),
                                             HasSubstr("chat_template.jinja")));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": "a"}], "tools": 7})", tokenizer),
              HasSubstr("bad.jsonl:1: tools must be a list of objects"));
  TokenizeOptions wanted =
      options({write("both.jsonl", R"({"prompt": "a", "response": "b", "text": "no"})")}, tokenizer);
  wanted.lines.keys.fields = LineFields::prompt;
  EXPECT_EQ(tokenize_files(wanted).index.documents, 1) << "named, it is read";
  wanted.lines.keys.fields = LineFields::messages;
  EXPECT_THAT(input_error([&] { tokenize_files(wanted); }), HasSubstr("both.jsonl:1: the key \"messages\" is missing"));
}

TEST_F(TokenizeConversationsTest, TemplatesInWhichTheAssistantIsNotFoundAreRefused) {
  const fs::path made = reference();
  const std::string talk = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  const std::string counted =
      with_template(made, "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}");
  EXPECT_THAT(refused(talk, counted),
              AllOf(HasSubstr("bad.jsonl:1: the chat template has no {% generation %} marks, and renders the first 1 "
                              "messages otherwise"),
                    HasSubstr("{% endgeneration %} around")));
  const std::string plain = with_template(made, read_file(made / "plain.jinja"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant", "content": "b"}]})", plain),
              HasSubstr("bad.jsonl:1: the conversation begins with the assistant"));
  std::string many;
  for (int i = 0; i < 251; ++i) {
    many += R"({"role": "user", "content": ""}, {"role": "assistant", "content": ""}, )";
  }
  EXPECT_THAT(refused(concat("{\"messages\": [", many, R"({"role": "user", "content": ""}]})"), plain),
              HasSubstr("more than 250 messages of the assistant"));
}

} // namespace
} // namespace trireme::data
