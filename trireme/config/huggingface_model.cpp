#include <trireme/config/huggingface_model.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <array>
#include <set>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;
using models::LlamaOptions;
using models::RopeScaling;

constexpr std::array kRopeTypes = {"default", "linear", "dynamic", "llama3", "yarn"};

nlohmann::ordered_json write_value(double value) {
  return value;
}
nlohmann::ordered_json write_value(const RopeScaling& scaling) {
  return write_rope_scaling(scaling);
}

// Reads config.json key by key, and knows afterwards which keys nobody read.
class Reader {
 public:
  explicit Reader(const JsonNode& root) : root_(root) {}

  const JsonNode* find(const std::string& key) {
    known_.insert(key);
    const JsonNode* found = root_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  bool has(const std::string& key) const { return root_.find(key) != nullptr; } // even if it is null
  int64_t size(const std::string& key, std::optional<int64_t> otherwise = std::nullopt, int64_t least = 1) {
    const JsonNode* found = find(key);
    if (found == nullptr) {
      if (!otherwise) {
        root_.fail(concat('"', key, "\" is missing"), "config.json of a Hugging Face folder has it.");
      }
      return *otherwise;
    }
    if (found->as_integer() < least) {
      found->fail(concat("must be at least ", least, ", found ", found->as_integer()));
    }
    return found->as_integer();
  }
  double real(const std::string& key, double otherwise) {
    const JsonNode* found = find(key);
    return found == nullptr ? otherwise : found->as_real();
  }
  bool flag(const std::string& key, bool otherwise) {
    const JsonNode* found = find(key);
    return found == nullptr ? otherwise : found->as_bool();
  }
  // Refuses a value other than this one.
  void only(const std::string& key, const nlohmann::json& value, const std::string& why) {
    const JsonNode* found = find(key);
    if (found != nullptr && nlohmann::json(found->plain()) != value) {
      found->fail(concat(found->plain().dump(), " is not supported: ", why));
    }
  }
  void ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }
  void add_unknown(std::vector<std::string>& notes) const {
    for (const auto& [key, value] : root_.members()) {
      if (!known_.contains(key) && !key.starts_with('_')) {
        notes.push_back(concat(value.where(), ": ", key, " is not known here and was ignored"));
      }
    }
  }
  const JsonNode& root() const { return root_; }

 private:
  const JsonNode& root_;
  std::set<std::string> known_;
};

// What says nothing about the function that the model computes.
void ignore_the_rest(Reader& config) {
  config.ignore({"model_type",
                 "architectures",
                 "auto_map",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "sep_token_id",
                 "cls_token_id",
                 "unk_token_id",
                 "decoder_start_token_id",
                 "torch_dtype",
                 "dtype",
                 "transformers_version",
                 "transformers.js_config",
                 "initializer_range",
                 "use_cache",
                 "pretraining_tp",
                 "task_specific_params",
                 "output_attentions",
                 "output_hidden_states",
                 "return_dict",
                 "is_llama_config",
                 "rope_interleaved",
                 "name_or_path",
                 "id2label",
                 "label2id",
                 "problem_type",
                 "chunk_size_feed_forward",
                 "is_encoder_decoder",
                 "finetuning_task",
                 "torchscript",
                 "use_bfloat16",
                 "summary_type",
                 "summary_use_proj",
                 "summary_activation",
                 "summary_proj_to_labels",
                 "summary_first_dropout",
                 "n_ctx",
                 "reorder_and_upcast_attn",
                 "resid_pdrop",
                 "embd_pdrop",
                 "attn_pdrop",
                 "max_window_layers",
                 "tie_word_embeddings",
                 "rope_theta",
                 "use_mrope",
                 "num_labels",
                 "gradient_checkpointing"});
}

// transformers before 5 reads rope_theta and rope_scaling, later rope_parameters too; which of two counts depends on
// its version.
void read_rope(Reader& config, HuggingFaceModel& out) {
  const auto set = [](auto& value, const auto& found, const JsonNode* earlier, const JsonNode& node) {
    if (earlier != nullptr && write_value(value) != write_value(found)) {
      node.fail(concat("gives other rotary positions than ", earlier->path(), ", ", earlier->where()),
                "Make them equal, or remove one.");
    }
    value = found;
  };
  const JsonNode* theta = config.find("rope_theta");
  out.llama.rope_theta = config.real("rope_theta", out.llama.rope_theta);
  const JsonNode* scaling = nullptr;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const JsonNode* rope = config.find(key);
    if (rope == nullptr) {
      continue;
    }
    set(out.llama.rope_scaling, read_rope_scaling(*rope), scaling, *rope);
    scaling = rope;
    Reader inner(*rope);
    if (const JsonNode* own = inner.find("rope_theta")) {
      set(out.llama.rope_theta, own->as_real(), theta, *own);
      theta = own;
    }
    inner.only("partial_rotary_factor", 1.0, "only whole heads are rotated");
    inner.ignore({"rope_type", "type", "factor", "original_max_position_embeddings", "low_freq_factor",
                  "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim",
                  "truncate"});
    inner.add_unknown(out.notes);
  }
  config.only("partial_rotary_factor", 1.0, "only whole heads are rotated");
}

// What transformers 5 takes for keys that config.json lacks, where its classes differ. A null is none of these.
struct Defaults {
  int64_t kv_heads = 0; // 0: as many as heads
  int64_t max_positions = 0;
  int64_t window = 0; // where one is used; 0: none
};

Defaults defaults_of(const std::string& type) {
  if (type == "llama") {
    return {.max_positions = 2048};
  }
  return type == "mistral" ? Defaults{.kv_heads = 8, .max_positions = 131072, .window = 4096}
                           : Defaults{.kv_heads = 32, .max_positions = 32768, .window = 4096};
}

// Which layers have a window. transformers before 5 has use_sliding_window and max_window_layers, later layer_types.
void read_window(Reader& config, const std::string& type, LlamaOptions& out) {
  const JsonNode* window = config.find("sliding_window"); // null means none
  const JsonNode* types = config.find("layer_types");
  const bool used = type == "mistral" || config.flag("use_sliding_window", false);
  const int64_t size = config.has("sliding_window") ? 0 : defaults_of(type).window;
  if ((window == nullptr && size == 0) || !used) {
    out.window = 0;
  } else {
    out.window = config.size("sliding_window", size);
    out.first_window_layer = type == "mistral" ? 0 : config.size("max_window_layers", 28, 0);
    if (out.first_window_layer >= out.layers) { // no layer has it
      out.window = out.first_window_layer = 0;
    }
  }
  if (types == nullptr) {
    return;
  }
  if (std::ssize(types->elements()) != out.layers) {
    types->fail(concat("there are ", types->elements().size(), " of ", out.layers, " layers"));
  }
  int64_t first = 0;
  bool slides = false;
  for (const JsonNode& layer : types->elements()) {
    const std::string& name = layer.as_string();
    if (name != "full_attention" && name != "sliding_attention") {
      layer.fail(concat('"', name, "\" is not supported"),
                 "Layers with \"full_attention\" and \"sliding_attention\" are.");
    }
    if (slides && name == "full_attention") {
      layer.fail("a layer with full attention after one with a window is not supported");
    }
    slides = name == "sliding_attention";
    first += slides ? 0 : 1;
  }
  if (slides && window == nullptr && size == 0) {
    types->fail("\"sliding_attention\" without \"sliding_window\"");
  }
  out.window = slides ? config.size("sliding_window", size) : 0;
  out.first_window_layer = slides ? first : 0;
}

void read_llama(Reader& config, const std::string& type, HuggingFaceModel& out) {
  LlamaOptions& llama = out.llama;
  llama.layers = config.size("num_hidden_layers");
  llama.hidden = config.size("hidden_size");
  llama.heads = config.size("num_attention_heads");
  const Defaults defaults = defaults_of(type);
  const bool as_heads = defaults.kv_heads == 0 || config.has("num_key_value_heads");
  llama.kv_heads = config.size("num_key_value_heads", as_heads ? llama.heads : defaults.kv_heads);
  llama.head_dim = config.size("head_dim", type == "qwen3" ? 128 : std::max<int64_t>(1, llama.hidden / llama.heads));
  llama.intermediate = config.size("intermediate_size");
  llama.vocab_size = config.size("vocab_size");
  llama.max_positions = config.size("max_position_embeddings", defaults.max_positions);
  llama.sequence_length = std::min(llama.max_positions, kDefaultSequence);
  llama.rms_norm_eps = config.real("rms_norm_eps", 1e-6);
  llama.tie_embeddings = config.flag("tie_word_embeddings", false);
  const bool bias = config.flag("attention_bias", type == "qwen2");
  llama.attention_bias = bias || type == "qwen2"; // Qwen2 has no such key: its queries, keys and values have a bias
  llama.attention_output_bias = bias && type != "qwen2";
  llama.mlp_bias = config.flag("mlp_bias", false);
  llama.qk_norm = type == "qwen3";
  read_rope(config, out);
  read_window(config, type, llama);
  config.only("hidden_act", "silu", "the MLP is SwiGLU");
  config.only("attention_dropout", 0.0, "a llama has no dropout");
}

void read_gpt2(Reader& config, HuggingFaceModel& out) {
  models::GptOptions& gpt = out.gpt;
  gpt.layers = config.size("n_layer");
  gpt.hidden = config.size("n_embd");
  gpt.heads = config.size("n_head");
  gpt.sequence_length = config.size("n_positions");
  gpt.vocab_size = config.size("vocab_size");
  gpt.tie_embeddings = config.flag("tie_word_embeddings", true);
  gpt.dropout = config.real("resid_pdrop", 0.1);
  for (const char* key : {"embd_pdrop", "attn_pdrop"}) {
    if (config.real(key, 0.1) != gpt.dropout) {
      (config.find(key) != nullptr ? *config.find(key) : config.root())
          .fail(concat(key, " is ", config.real(key, 0.1), ", resid_pdrop ", gpt.dropout,
                       "; here one probability is for all of them"),
                "Make them equal in config.json.");
    }
  }
  const std::string activation =
      config.find("activation_function") == nullptr ? "gelu_new" : config.find("activation_function")->as_string();
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    config.find("activation_function")->fail(concat('"', activation, "\" is not supported"), "\"gelu_new\" is.");
  }
  config.only("layer_norm_epsilon", 1e-5, "LayerNorms have 1e-5");
  config.only("n_inner", 4 * gpt.hidden, "the MLP is 4 x n_embd wide");
  config.only("scale_attn_weights", true, "attention is scaled by the square root of the head's width");
  config.only("scale_attn_by_inverse_layer_idx", false, "attention is not scaled by the layer's number");
  config.only("add_cross_attention", false, "there is no encoder");
}

// The head of the class that wrote the folder; masked_lm unless it was a classifier.
void read_bert_head(Reader& config, models::BertOptions& bert) {
  const JsonNode* architectures = config.find("architectures");
  if (architectures != nullptr && !architectures->elements().empty() &&
      architectures->elements().front().as_string().ends_with("ForSequenceClassification")) {
    bert.head = models::BertOptions::Head::classes;
  }
  if (const JsonNode* names = config.find("id2label")) {
    bert.classes = std::max<int64_t>(1, std::ssize(names->members()));
  } else {
    bert.classes = config.size("num_labels", bert.classes);
  }
  config.only("problem_type", "single_label_classification", "a text has one label");
}

void read_bert(Reader& config, HuggingFaceModel& out) {
  models::BertOptions& bert = out.bert;
  bert.layers = config.size("num_hidden_layers");
  bert.hidden = config.size("hidden_size");
  bert.heads = config.size("num_attention_heads");
  bert.intermediate = config.size("intermediate_size");
  bert.vocab_size = config.size("vocab_size");
  bert.sequence_length = config.size("max_position_embeddings", 512);
  bert.segments = config.size("type_vocab_size", 2);
  bert.layer_norm_eps = config.real("layer_norm_eps", bert.layer_norm_eps);
  bert.dropout = config.real("hidden_dropout_prob", 0.1);
  for (const auto& [key, otherwise] :
       {std::pair("attention_probs_dropout_prob", 0.1), {"classifier_dropout", bert.dropout}}) {
    if (config.real(key, otherwise) != bert.dropout) {
      (config.find(key) != nullptr ? *config.find(key) : config.root())
          .fail(concat(key, " is ", config.real(key, otherwise), ", hidden_dropout_prob ", bert.dropout,
                       "; here one probability is for all of them"),
                "Make them equal in config.json.");
    }
  }
  config.only("hidden_act", "gelu", "the MLP has the exact GELU");
  config.only("position_embedding_type", "absolute", "positions are learned");
  config.only("is_decoder", false, "every token attends to all others");
  config.only("add_cross_attention", false, "there is no encoder");
  config.only("tie_word_embeddings", true, "the head of masked_lm shares the embedding's weight");
  read_bert_head(config, bert);
}

} // namespace

RopeScaling read_rope_scaling(const JsonNode& object) {
  RopeScaling out;
  const auto find = [&](const char* key) -> const JsonNode* {
    const JsonNode* found = object.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  };
  object.members(); // an object, or an error that says where
  const JsonNode* type = find("rope_type") != nullptr ? find("rope_type") : find("type");
  const std::string name = type == nullptr ? "default" : type->as_string();
  const auto known = std::find(kRopeTypes.begin(), kRopeTypes.end(), name);
  if (known == kRopeTypes.end()) {
    type->fail(concat("the rope type \"", name, "\" is not supported"),
               "Supported are default, linear, dynamic, llama3 and yarn.");
  }
  out.kind = static_cast<RopeScaling::Kind>(known - kRopeTypes.begin());
  if (out.kind == RopeScaling::Kind::none) {
    return out;
  }
  const auto above_zero = [&](const char* key, double& value) {
    if (const JsonNode* found = find(key)) {
      value = found->as_real();
      if (!(value > 0)) {
        found->fail(concat("must be above 0, found ", value));
      }
    }
  };
  if (find("factor") == nullptr) {
    object.fail(concat("\"factor\" is missing, which the rope type \"", name, "\" needs"));
  }
  above_zero("factor", out.factor);
  if (out.factor < 1) {
    find("factor")->fail(concat("must be at least 1, found ", out.factor));
  }
  if (const JsonNode* original = find("original_max_position_embeddings")) {
    out.original_positions = original->as_integer();
    if (out.original_positions < 1) {
      original->fail(concat("must be at least 1, found ", out.original_positions));
    }
  }
  above_zero("low_freq_factor", out.low_freq_factor);
  above_zero("high_freq_factor", out.high_freq_factor);
  if (out.kind == RopeScaling::Kind::llama3 && out.high_freq_factor <= out.low_freq_factor) {
    object.fail(
        concat("high_freq_factor ", out.high_freq_factor, " must be above low_freq_factor ", out.low_freq_factor));
  }
  above_zero("beta_fast", out.beta_fast);
  above_zero("beta_slow", out.beta_slow);
  above_zero("attention_factor", out.attention_factor);
  above_zero("mscale", out.mscale);
  above_zero("mscale_all_dim", out.mscale_all_dim);
  out.truncate = find("truncate") == nullptr || find("truncate")->as_bool();
  return out;
}

nlohmann::ordered_json write_rope_scaling(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::none) {
    return nullptr;
  }
  nlohmann::ordered_json out = {{"rope_type", kRopeTypes[static_cast<size_t>(scaling.kind)]},
                                {"factor", scaling.factor}};
  if (scaling.original_positions > 0) {
    out["original_max_position_embeddings"] = scaling.original_positions;
  }
  if (scaling.kind == RopeScaling::Kind::llama3) {
    out["low_freq_factor"] = scaling.low_freq_factor;
    out["high_freq_factor"] = scaling.high_freq_factor;
  } else if (scaling.kind == RopeScaling::Kind::yarn) {
    out["beta_fast"] = scaling.beta_fast;
    out["beta_slow"] = scaling.beta_slow;
    for (const auto& [key, value] : {std::pair("attention_factor", scaling.attention_factor),
                                     {"mscale", scaling.mscale},
                                     {"mscale_all_dim", scaling.mscale_all_dim}}) {
      if (value > 0) {
        out[key] = value;
      }
    }
    out["truncate"] = scaling.truncate;
  }
  return out;
}

HuggingFaceModel read_huggingface_model(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || !fs::exists(file, ignored)) {
    throw InputError("config", concat("there is no ", file.string(), ", which a Hugging Face folder has"),
                     "Name the folder that holds config.json, the weights and tokenizer.json.");
  }
  if (!fs::is_regular_file(file, ignored)) { // reading a pipe would wait for its writer
    throw InputError("config", concat(file.string(), " is not a regular file"));
  }
  const JsonNode root = JsonNode::parse_file(file);
  root.members();
  Reader config(root);
  const JsonNode* type = config.find("model_type");
  if (type == nullptr) {
    root.fail("\"model_type\" is missing", "config.json of a Hugging Face folder has it.");
  }
  HuggingFaceModel out;
  ignore_the_rest(config);
  const std::string& name = type->as_string();
  if (const JsonNode* quantized = config.find("quantization_config")) {
    quantized->fail("quantized weights are not supported", "Take the model's folder in bf16, fp16 or fp32.");
  }
  if (name == "gpt2") {
    read_gpt2(config, out);
  } else if (name == "llama" || name == "mistral" || name == "qwen2" || name == "qwen3") {
    out.family = models::TransformerShape::Family::llama;
    read_llama(config, name, out);
  } else if (name == "bert") {
    out.family = models::TransformerShape::Family::bert;
    read_bert(config, out);
  } else {
    type->fail(concat("the architecture \"", name, "\" is not supported"),
               "Supported are gpt2, llama, mistral, qwen2, qwen3 and bert.");
  }
  out.gpt.init_from = out.llama.init_from = out.bert.init_from = folder;
  config.add_unknown(out.notes);
  return out;
}

} // namespace trireme::config
