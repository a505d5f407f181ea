"""Conversations, and templates with the constructs of published ones, for render_templates.py. The texts are of our own."""
from chat_templates import TEMPLATES

PLAIN = [{"role": "user", "content": "What is a trireme?"}]
SYSTEM = [{"role": "system", "content": "  You are brief. "}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!\n"}, {"role": "user", "content": "Zoë ß 漢字 😀?"}]
LONG = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}, {"role": "assistant", "content": "four"}, {"role": "user", "content": " five "}]
ANSWERED = SYSTEM + [{"role": "assistant", "content": "Done.  "}]
THOUGHT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>\nadd them\n</think>\n\nIt is 4."}, {"role": "user", "content": "3+3?"},
           {"role": "assistant", "content": "6", "reasoning_content": "three and three"}, {"role": "user", "content": "thanks"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image", "image": "x.png"}, {"type": "text", "text": "what is it?"}]},
         {"role": "assistant", "content": [{"type": "text", "text": "A boat."}]}, {"role": "user", "content": "Sure?"}]
CALLS = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Weather in Oslo & \"Rome\"?"},
         {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "call00001", "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2, "units": None}}}]},
         {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"temp\": -3.5}"},
         {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "second"}, {"role": "assistant", "content": "Cold."}, {"role": "user", "content": "ok"}]
TEXT_CALL = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "Calling.", "tool_calls": [{"id": "abc", "function": {"name": "run", "arguments": "{\"x\": 1}"}}]}, {"role": "tool", "content": "done"}]
TWO_CALLS = CALLS[:2] + [{"role": "assistant", "tool_calls": CALLS[2]["tool_calls"] * 2}]
WRONG = [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": "twice"}]
ODD = [{"role": "user", "content": ""}, {"role": "assistant", "content": "<|end|> {{ not code }} {% nor this %}", "name": "bot"}, {"role": "user", "content": "\n\n"}]
STRANGE = [{"role": "critic", "content": "no such role"}]
CONVERSATIONS = {"plain": PLAIN, "system": SYSTEM, "long": LONG, "answered": ANSWERED, "thought": THOUGHT, "parts": PARTS, "calls": CALLS, "text call": TEXT_CALL, "two calls": TWO_CALLS, "wrong": WRONG,
                 "odd": ODD, "strange": STRANGE}

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather <of> a city's & more", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "The city"}, "days": {"type": "integer", "enum": [1, 2, 3]}, "units": {"type": ["string", "null"], "default": None},
                                     "where": {"type": "object", "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}}}}, "required": ["city"]},
    "return": {"type": "object"}}}, {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}}]
DOCUMENTS = [{"title": "Ships", "text": "A trireme has three rows."}, {"title": "Oars", "text": "170 of them."}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def cases():
    for name, template in TEMPLATES.items():
        for title, messages in CONVERSATIONS.items():
            yield f"{name}, {title}", template, messages, {"add_generation_prompt": title != "answered", "variables": TOKENS}
        yield f"{name}, tools", template, CALLS, {"tools": TOOLS, "variables": TOKENS}
        yield f"{name}, tools and a text call", template, TEXT_CALL, {"tools": TOOLS, "add_generation_prompt": True, "variables": {**TOKENS, "enable_thinking": False, "date_string": "1 Jan 2025"}}
        yield f"{name}, documents", template, PLAIN, {"documents": DOCUMENTS, "add_generation_prompt": True, "variables": {**TOKENS, "enable_thinking": True, "tools_in_user_message": False}}
        yield f"{name}, no tokens", template, SYSTEM, {}
        yield f"{name}, continued", template, ANSWERED, {"continue_final_message": True, "variables": TOKENS}
