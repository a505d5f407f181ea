// Where transformers looks for a template and for special tokens.
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/chat/chat_template.h>

#include <gmock/gmock.h>

namespace trireme::chat {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

const ordered_json kGreeting = ordered_json::parse(R"([{"role": "user", "content": "hi"}])");

class ReadChatTemplateTest : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& content) const {
    fs::create_directories((scratch_.path / name).parent_path());
    write_file_atomically(scratch_.path / name, content);
  }
  std::string rendered(const std::string& name = "default") const {
    const auto found = read_chat_template(scratch_.path, name);
    return found ? found->render(kGreeting) : "none";
  }

  ScratchFolder scratch_{make_scratch_folder("trireme_chat")};
};

TEST_F(ReadChatTemplateTest, AFileComesBeforeTheConfig) {
  EXPECT_EQ(rendered(), "none");
  put("tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(rendered(), "none");
  put("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(rendered(), "none");
  put("tokenizer_config.json", R"({"chat_template": "config {{ messages[0].role }}"})");
  EXPECT_EQ(rendered(), "config user");
  EXPECT_EQ(rendered("rag"), "none");
  put("chat_template.jinja", "file {{ messages[0].role }}\n");
  EXPECT_EQ(rendered(), "file user");
  put("additional_chat_templates/rag.jinja", "rag");
  EXPECT_EQ(rendered("rag"), "rag");
}

TEST_F(ReadChatTemplateTest, AListHasNames) {
  put("tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]})");
  EXPECT_EQ(rendered(), "plain");
  EXPECT_EQ(rendered("tool_use"), "tools");
  EXPECT_EQ(rendered("rag"), "none");
}

// A file of that name in the working directory has nothing to do with it.
TEST_F(ReadChatTemplateTest, ANameIsNoFile) {
  put("model/additional_chat_templates/rag.jinja", "named");
  put("rag", "file");
  put("other.jinja", "file {{ messages[0].role }}");
  const fs::path before = fs::current_path();
  fs::current_path(scratch_.path);
  const auto found = [&](const std::string& file_or_name, const fs::path& folder) {
    const auto one = find_chat_template(file_or_name, folder);
    return one ? one->render(kGreeting) : "none";
  };
  EXPECT_EQ(found("rag", "model"), "named");
  EXPECT_EQ(found("rag", ""), "none");
  EXPECT_EQ(found("./rag", "model"), "file");
  EXPECT_EQ(found("other.jinja", "model"), "file user");
  EXPECT_EQ(found("absent.jinja", "model"), "none");
  fs::current_path(before);
}

TEST_F(ReadChatTemplateTest, SpecialTokensAreTextsOrObjects) {
  put("tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null,
      "model_max_length": 1000000000000000019884624838656, "chat_template": "{{ bos_token ~ eos_token ~ unk_token ~ pad_token }}"})");
  put("special_tokens_map.json", R"({"bos_token": "<other>", "unk_token": {"content": "<unk>"}})");
  EXPECT_EQ(rendered(), "<s></s><unk>");
}

TEST_F(ReadChatTemplateTest, DamageIsTheUsersInput) {
  put("tokenizer_config.json", "{");
  EXPECT_THROW(rendered(), InputError);
  put("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THROW(rendered(), InputError);
  put("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THROW(rendered(), InputError);
  put("tokenizer_config.json", R"({"chat_template": "a\n{{ x"})");
  try {
    rendered();
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("tokenizer_config.json: chat_template:2: "));
  }
}

} // namespace
} // namespace trireme::chat
