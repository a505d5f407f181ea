#include <trireme/data/tokenize/line_encoder.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/data/tokenize/counted_text.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <utility>

namespace trireme::data {

LineEncoder::LineEncoder(const tokenizer::Tokenizer& tokenizer, std::string tokenizer_name, LineOptions options)
    : tokenizer_(tokenizer), tokenizer_name_(std::move(tokenizer_name)), options_(std::move(options)) {
  if (!options_.chat_template.empty()) {
    const std::filesystem::path files = folder();
    template_ = chat::find_chat_template(options_.chat_template, files);
    if (!template_) {
      const bool is_file = chat::is_template_file(options_.chat_template);
      const std::string why = is_file         ? "no such file"
                              : files.empty() ? "\"bytes\" has none"
                                              : concat("none of that name in ", files.string());
      throw InputError(
          "data",
          concat(options_.place, ": there is no chat template \"", printable(options_.chat_template), "\": ", why),
          "Name a file of Jinja (.jinja, or with a slash: ./NAME), or leave it out for the tokenizer's own template.");
    }
  }
}

std::filesystem::path LineEncoder::folder() const {
  const auto files = tokenizer::tokenizer_files(tokenizer_name_);
  return files.empty() ? std::filesystem::path() : files.front().path.parent_path();
}

const chat::ChatTemplate& LineEncoder::chat_template() const {
  const std::lock_guard lock(mutex_);
  if (!template_) {
    const std::filesystem::path files = folder();
    template_ = files.empty() ? std::nullopt : chat::read_chat_template(files);
  }
  if (!template_) {
    throw InputError(
        "data", concat("the tokenizer ", tokenizer_name_, " has no chat template, which \"messages\" needs"),
        "Put the model's chat_template.jinja into the tokenizer's folder, or name one: data.chat_template of "
        "a run, --chat-template of trireme data tokenize.");
  }
  return *template_;
}

EncodedLine LineEncoder::encode(JsonLine line) const {
  EncodedLine encoded;
  if (line.fields == LineFields::text) {
    encoded.ids = tokenizer_.encode(line.text);
    encoded.text_bytes = std::ssize(line.text);
    return encoded;
  }
  const bool all_count = options_.loss_on == LossOn::all;
  CountedText text;
  if (line.fields == LineFields::messages) {
    text = all_count ? CountedText{chat_template().render(line.messages, {.tools = line.tools}), {}}
                     : render_conversation(chat_template(), line.messages, line.tools);
    encoded.has_end = true;
  } else {
    text.text = std::move(line.text);
    text.counted = {{line.response_begin, text.text.size()}};
  }
  encoded.ids = tokenizer_.encode(text.text);
  if (!all_count) {
    encoded.counted = find_counted(text, encoded.ids, tokenizer_);
  }
  encoded.text_bytes = std::ssize(text.text);
  return encoded;
}

EncodedLine LineEncoder::encode(std::string_view line, const std::string& where) const {
  JsonLine read = read_json_line(line, options_.keys, where);
  try {
    return encode(std::move(read));
  } catch (const InputError& error) { // of the template or the tokenizer, which know no line
    const std::string what = error.what();
    const size_t part = what.starts_with('[') ? what.find("] ") : std::string::npos;
    throw InputError("data", concat(where, ": ", part == std::string::npos ? what : what.substr(part + 2)));
  }
}

} // namespace trireme::data
