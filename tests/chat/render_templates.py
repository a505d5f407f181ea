"""Renders templates with transformers, for equality_test.cpp.

    python render_templates.py OUT.json RANDOM_EXPRESSIONS

OUT.json: {"variables": of all expressions, "cases": [{"name", "template", "messages", "options", and "text" with "spans" or "error"}]}. Spans are
in code points. The clock stands still: strftime_now() gives 2024-07-26 15:04:05.
"""
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

import conversations
import expressions


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 15, 4, 5)


def render(template, messages, options):
    options = dict(options)
    variables = options.pop("variables", {})
    try:
        texts, spans = chat_template_utils.render_jinja_template(
            conversations=[chat_template_utils._normalize_chat_messages(messages)], chat_template=template,
            return_assistant_tokens_mask=not options.get("continue_final_message", False), **options, **variables)
        texts[0].encode()
    except Exception as error:  # of Jinja, or what Python raises
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"text": texts[0], "spans": spans[0] if spans else []}


def main():
    out, count = sys.argv[1], int(sys.argv[2])
    chat_template_utils.datetime = Clock
    chat_template_utils.logger.warning_once = lambda *_: None
    cases = []
    for name, template, messages, options in conversations.cases():
        cases.append({"name": name, "template": template, "messages": messages, "options": options, **render(template, messages, options)})
    generator = expressions.Generator(20240726)
    texts = expressions.expressions() + [generator.any(3) for _ in range(count)]
    messages = [{"role": "user", "content": "hi"}]
    for text in texts:
        template = "{{ " + text + " }}"
        result = render(template, messages, {"variables": expressions.VARIABLES})
        if not any(word in result.get("text", "") for word in (" at 0x", "Markup(")):  # an address, or a type that Trireme does not have
            cases.append({"name": text, "template": template, **result})
    pathlib.Path(out).write_text(json.dumps({"variables": expressions.VARIABLES, "cases": cases}), encoding="utf-8")


if __name__ == "__main__":
    main()
