"""Templates with the constructs of published ones: ChatML, Llama, Qwen, Mistral, Gemma, Phi, Zephyr, DeepSeek, SmolLM2, Command R, Granite, OLMo, gpt-oss and others."""

TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|begin|>' + message['role'] + '\n' + message['content'] + '<|stop|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|begin|>assistant\n' }}{% endif %}",
    "chatml with a default system": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|begin|>system
You help.<|stop|>
' }}{% endif %}{{'<|begin|>' + message['role'] + '
' + message['content'] + '<|stop|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|begin|>assistant
' }}{% endif %}""",
    "chatml with generation": """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
{{- '<|begin|>assistant\n' }}{% generation %}{{ message.content + '<|stop|>' }}{% endgeneration %}{{ '\n' }}
    {%- else %}
        {{- '<|begin|>' ~ message.role ~ '\n' ~ message.content ~ '<|stop|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|begin|>assistant\n' }}
{%- endif %}
""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<S>>\\n' + system_message + '\\n<</S>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[I] ' + content.strip() + ' [/I]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|h|>' + message['role'] + '<|/h|>\n\n'+ message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|h|>assistant<|/h|>\n\n' }}{% endif %}",
    "llama3.1": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|h|>system<|/h|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: shell\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "Functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no first user message") }}
{%- endif %}
    {{- '<|h|>user<|/h|>\\n\\n' -}}
    {{- "With these functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '<|/h|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("Only one call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|h|>assistant<|/h|>\\n\\n' -}}
            {{- tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|h|>assistant<|/h|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|h|>ipython<|/h|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant<|/h|>\\n\\n' }}
{%- endif %}
""",
    "qwen2.5": """{%- if tools %}
    {{- '<|b|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\n{\\"name\\": <name>, \\"arguments\\": <object>}<|e|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|b|>system\\n' + messages[0]['content'] + '<|e|>\\n' }}
    {%- else %}
        {{- '<|b|>system\\nYou help.<|e|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|b|>' + message.role + '\\n' + message.content + '<|e|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|b|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</call>' }}
        {%- endfor %}
        {{- '<|e|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|b|>user' }}
        {%- endif %}
        {{- '\\n<answer>\\n' }}
        {{- message.content }}
        {{- '\\n</answer>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|e|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|b|>assistant\\n' }}
{%- endif %}
""",
    "qwen3": """{%- if messages[0].role == 'system' %}
    {{- '<|b|>system\\n' + messages[0].content + '<|e|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<answer>') and message.content.endswith('</answer>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|b|>' + message.role + '\\n' + content + '<|e|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|b|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|b|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|b|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|e|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|b|>user' }}
        {%- endif %}
        {{- '\\n<answer>\\n' }}{{- content }}{{- '\\n</answer>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|e|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|b|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "mistral": "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate!') }}{% endif %}{% if message['role'] == 'user' %}{{ '[I] ' + message['content'] + ' [/I]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "mistral with tools": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- The roles alternate, but for tools. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[I] " + system_message + "\\n\\n" + message["content"] + "[/I]" }}
        {%- else %}
            {{- "[I] " + message["content"] + "[/I]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<turn>' + role + '\n' + message['content'] | trim + '</turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<turn>model\n'}}{% endif %}",
    "gemma3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '</turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model
'}}
{%- endif -%}
""",
    "phi3": "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "phi4 mini": "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "deepseek": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<U>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none %}{{'<A><calls>' + tool['type'] + '<sep>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] | tojson + '\\n' + '```'}}{%- else %}{{'<A>' + message['content'] + '<calls>' + tool['function']['name']}}{%- endif %}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + '<call>' + tool['type']}}{%- endif %}{%- endfor %}{{'<end>'}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- if ns.is_tool %}{{'<outs>' + message['content'] + '<end>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<A>' + content + '<end>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<outs><out>' + message['content'] + '</out>'}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n<out>' + message['content'] + '</out>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<outs>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<A><think>\\n'}}{% endif %}",
    "smollm2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|s|>system\nYou are a small model<|e|>\n' }}{% endif %}{{'<|s|>' + message['role'] + '\n' + message['content'] + '<|e|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|s|>assistant\n' }}{% endif %}",
    "smollm3": """{%- set ns = namespace(system="", mode="on") -%}
{%- if enable_thinking is defined and not enable_thinking -%}{%- set ns.mode = "off" -%}{%- endif -%}
{%- if messages and messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set ns.mode = "off" -%}{%- elif "/think" in system_message -%}{%- set ns.mode = "on" -%}{%- endif -%}
  {%- set ns.system = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "<|s|>system\\n" }}{{- "## Metadata\\n\\n" }}{%- set today = strftime_now("%d %B %Y") -%}{{- "Today: " ~ today ~ "\\n" }}{{- "Mode: " + ns.mode + "\\n" }}{{- ns.system }}
{%- if tools -%}
  {{- "### Tools\\n" -}}
  {%- set ns_tools = namespace(json="<tools>\\n") -%}
  {%- for tool in tools -%}{%- set ns_tools.json = ns_tools.json ~ (tool | string) ~ "\\n" -%}{%- endfor -%}
  {{- ns_tools.json ~ "</tools>" }}
{%- endif -%}
{{- "<|e|>\\n" }}
{%- for message in messages if message.role != "system" -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}{{ "<|s|>user\\n" + content + "<|e|>\\n" }}
  {%- elif message.role == "assistant" -%}{% generation %}
    {%- if ns.mode == "on" -%}{{ "<|s|>assistant\\n" + content.lstrip("\\n") + "<|e|>\\n" }}{%- else -%}{{ "<|s|>assistant\\n<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|e|>\\n" }}{%- endif -%}
  {% endgeneration %}
  {%- elif message.role == "tool" -%}{{ "<|s|>user\\n" + content + "<|e|>\\n" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|s|>assistant\\n" if ns.mode == "on" else "<|s|>assistant\\n<think>\\n\\n</think>\\n" }}{%- endif -%}
""",
    "command r": """{{ bos_token }}{% if documents %}{% for document in documents %}{{ '\\n<doc ' ~ loop.index0 ~ '>\\n' }}{% for key, value in document.items() %}{{ key ~ ': ' ~ value ~ '\\n' }}{% endfor %}{% endfor %}{% endif %}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% if system_message != false %}{{ '<T><SYS>' + system_message + '</T>' }}{% endif %}{% for message in loop_messages %}{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ '<T><USR>' + content.strip() + '</T>' }}{% elif message['role'] == 'assistant' %}{{ '<T><BOT>'  + content.strip() + '</T>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<T><BOT>' }}{% endif %}""",
    "command r tools": """{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool"
} %}

{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "List[" +  json_to_python_type(json_spec.items) + "]"}}
{%- elif json_spec.type == "object" %}
    {%- if json_spec.additionalProperties is defined %}
        {{- "Dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']'}}
    {%- else %}
        {{- "Dict" }}
    {%- endif %}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
      {{- json_to_python_type({"type": t}) }}
      {%- if not loop.last %}
        {{- "," }}
    {%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}

{%- macro parameters(tool, indent=2) %}
    {%- for name, param in tool.parameters.properties.items() %}
        {%- set required = name in tool.parameters.get("required", []) %}
        {{- " " * indent ~ name + ": " }}
        {%- if param.type != "array" or param["items"] is defined %}{{ json_to_python_type({"type": "string"} if param.type == "array" else param) }}{% endif %}
        {{- " (required)" if required else " = " ~ param.default | default("None", true) }}
        {%- if param.description %}{{ "  # " ~ param.description }}{% endif %}
        {{- "\\n" }}
    {%- endfor %}
{%- endmacro %}
{{- bos_token }}
{%- for tool in tools or [] %}
{%- set tool = tool.function %}
{{- "def " ~ tool.name ~ ":\\n" ~ parameters(tool, indent=4) }}
{{- parameters(tool) }}
{%- endfor %}
{%- for message in messages %}
{{- message.role ~ ": " ~ (message.content or message.tool_calls | map(attribute="function") | map(attribute="name") | join(", ")) ~ "\\n" }}
{%- endfor %}
""",
    "granite": """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Cutoff: April 2024.
Today: " + strftime_now('%B %d, %Y') + "." %}
    {%- if tools and documents %}
        {%- set system_message = system_message + " Both." %}
    {%- elif tools %}
        {%- set system_message = system_message + " Tools." %}
    {%- elif documents %}
        {%- set system_message = system_message + " Documents." %}
    {%- endif %}
    {%- if 'citations' in controls and documents %}
        {%- set system_message = system_message + ' Cite.' %}
    {%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<r>system</r>' + system_message + '<eot>
' }}
{%- if tools %}
    {{- '<r>tools</r>' }}
    {{- tools | tojson(indent=4) }}
    {{- '<eot>
' }}
{%- endif %}
{%- if documents %}
    {%- for document in documents %}
        {{- '<r>document {"id": "' + document['doc_id'] | string + '"}</r>
' }}
        {{- document['text'] }}
        {{- '<eot>' }}
    {%- endfor %}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<r>' + message['role'] + '</r>' + message['content'] + '<eot>
' }}
    {%- if loop.last and add_generation_prompt %}
            {{- '<r>assistant' }}
                {%- if controls %}
                    {{- ' ' + controls | tojson()}}
                {%- endif %}
            {{- '</r>' }}
    {%- endif %}
{%- endfor %}""",
    "olmo": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}{% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
    "harmony": """{%- macro render_type(spec) -%}
    {%- if spec.type == "array" -%}{{ render_type(spec["items"]) if spec["items"] else "any" }}[]
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type[0] is defined -%}{{ spec.type | join(" | ") }}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\\n" }}
        {%- for name, prop in spec.properties.items() -%}
            {{ name }}{%- if name not in (spec.required or []) -%}?{%- endif -%}{{ ": " }}{{ render_type(prop) }}{{ "," if not loop.last else "" }}{{ "\\n" }}
        {%- endfor -%}
        {{- "}" -}}
    {%- elif spec.enum -%}{{ '"' + spec.enum | map("string") | join('" | "') + '"' }}
    {%- elif spec.type == "integer" or spec.type == "number" -%}number
    {%- else -%}{{ spec.type | default("any") }}{%- endif -%}
{%- endmacro -%}
{%- macro render_tools(namespace_name, tools) -%}
    {{- "## " + namespace_name + "\\n\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\n" }}{{- "type " + tool.name + " = (" }}
        {%- if tool.parameters and tool.parameters.properties %}{{- "_: " ~ render_type(tool.parameters) }}{% endif %}{{- ") => any;\\n\\n" }}
    {%- endfor %}
    {{- "} // " + namespace_name }}
{%- endmacro -%}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}{%- set developer_message = messages[0].content %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set developer_message = "" %}{%- set loop_messages = messages %}{%- endif %}
{{- "<S>system<M>" }}{{- "Date: " + strftime_now("%Y-%m-%d") + "\\n" }}{%- set reasoning_effort = reasoning_effort if reasoning_effort is defined else "medium" %}{{- "Reasoning: " + reasoning_effort + "<E>" }}
{%- if developer_message or tools %}{{- "<S>developer<M>" }}{%- if developer_message %}{{- developer_message }}{%- endif %}{%- if tools -%}{{- render_tools("functions", tools) }}{%- endif -%}{{- "<E>" }}{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and ("<M>" in message.content) %}{{- raise_exception("No tags in the content") }}{%- endif %}
        {%- if "tool_calls" in message %}
            {%- set future_final_message = namespace(found=false) %}
            {%- for future_message in loop_messages[loop.index:] %}
                {%- if future_message.role == 'assistant' and "tool_calls" not in future_message %}{%- set future_final_message.found = true %}{%- endif %}
            {%- endfor %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {%- if message.thinking and not future_final_message.found %}{{- "<S>assistant<C>analysis<M>" + message.thinking + "<E>" }}{%- endif %}
            {{- "<S>assistant to=" }}{{- "functions." + tool_call.name + "<C>json<M>" }}{{- tool_call.arguments|tojson }}{{- "<call>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if "thinking" in message %}{{- "<S>assistant<C>analysis<M>" + message.thinking + "<E>" }}{%- endif %}
            {{- "<S>assistant<C>final<M>" + message.content + "<return>" }}
        {%- else %}{{- "<S>assistant<C>final<M>" + message.content + "<E>" }}{%- set last_tool_call.name = none %}{%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("A tool answer without a call") }}{%- endif %}
        {{- "<S>functions." + last_tool_call.name }}{{- " to=assistant<M>" + message.content|tojson + "<E>" }}
    {%- elif message.role == 'user' -%}{{- "<S>user<M>" + message.content + "<E>" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<S>assistant{%- endif -%}""",
    "vicuna": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for message in messages %}{% if message.role == 'system' %}{{ message.content | trim ~ ' ' }}{% elif message.role == 'user' %}{{ 'USER: ' ~ message.content | trim ~ ' ' }}{% elif message.role == 'assistant' %}{{ 'ASSISTANT: ' ~ message.content | trim ~ (eos_token or '') }}{% else %}{{ raise_exception('Unknown role: ' ~ message.role) }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "alpaca": """{%- for m in messages -%}
{{ {'system': '', 'user': '### Instruction:\n', 'assistant': '### Response:\n'}[m.role] }}{{ m.content.strip() }}

{% endfor -%}
{% if add_generation_prompt -%}
### Response:
{% endif -%}
""",
    "qwen coder": """{% macro render_extra_keys(json_dict, handled_keys) %}
    {%- if json_dict is mapping %}
        {%- for json_key in json_dict if json_key not in handled_keys %}
            {%- if json_dict[json_key] is mapping or (json_dict[json_key] is sequence and json_dict[json_key] is not string) %}
                {{- '\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | tojson | safe) ~ '</' ~ json_key ~ '>' }}
            {%- else %}
                {{-'\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | string) ~ '</' ~ json_key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}
{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = [] %}{%- endif %}
{%- if tools is iterable and tools | length > 0 %}
    {{- "<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
        {{- "\\n<function>\\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}{{- '\\n<description>' ~ (tool.description | trim) ~ '</description>' }}{%- endif %}
        {{- '\\n<parameters>' }}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
            {%- for param_name, param_fields in tool.parameters.properties|items %}
                {{- '\\n<parameter>\\n<name>' ~ param_name ~ '</name>' }}
                {%- if param_fields.type is defined %}{{- '\\n<type>' ~ (param_fields.type | string) ~ '</type>' }}{%- endif %}
                {{- render_extra_keys(param_fields, ['name', 'type', 'description']) }}{{- '\\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {{- render_extra_keys(tool.parameters, ['type', 'properties']) }}{{- '\\n</parameters>' }}{{- render_extra_keys(tool, ['type', 'name', 'description', 'parameters']) }}{{- '\\n</function>' }}
    {%- endfor %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<b>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<call>\\n<function=' + tool_call.name + '>\\n' }}
            {%- if tool_call.arguments is defined %}
                {%- for args_name, args_value in tool_call.arguments|items %}
                    {{- '<parameter=' + args_name + '>\\n' }}
                    {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) else args_value | string %}
                    {{- args_value }}{{- '\\n</parameter>\\n' }}
                {%- endfor %}
            {%- endif %}
        {%- endfor %}
        {{- '<e>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<b>user\\n' }}{%- endif %}
        {{- '<answer>\\n' }}{{- message.content }}{{- '\\n</answer>\\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<e>\\n' }}{%- elif loop.last %}{{- '<e>\\n' }}{%- endif %}
    {%- else %}{{- '<b>' + message.role + '\\n' + message.content + '<e>\\n' }}{%- endif %}
{%- endfor %}""",
    "qwen vl": "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<b>system\nYou help.<e>\n{% endif %}<b>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<e>\n{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<pad>{% elif content['type'] == 'video' or 'video' in content %}{% set video_count.value = video_count.value + 1 %}{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<video>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<e>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<b>assistant\n{% endif %}{{ image_count.value }}",
    "glm": """[g]<sop>
{%- if tools -%}<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- elif item is string -%}{{- item }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last_user_index = loop.index0 -%}{%- endif %}{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- set reasoning_content = '' %}{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}{%- set reasoning_content = m.reasoning_content %}{%- elif '</think>' in content %}{%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}{{ '\\n<think>' + reasoning_content.strip() + '</think>' }}{%- else -%}{{ '\\n<think></think>' }}{%- endif -%}
{%- if content.strip() -%}{{ '\\n' + content.strip() }}{%- endif -%}
{% if m.tool_calls %}{% for tc in m.tool_calls %}{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\\n<call>' + tc.name }}
{% set _args = tc.arguments %}{% for k, v in _args.items() %}<k>{{ k }}</k>
<v>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</v>
{% endfor %}</call>{% endfor %}{% endif %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}{{- '\\n<answer>\\n' }}{{- m.content }}{{- '\\n</answer>' }}
{%- elif m.role == 'system' -%}<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}""",
    "kimi": """{%- macro render_content(msg) -%}{%- set c = msg.get('content') -%}{%- if c is string -%}{{ c }}{%- elif c is not none -%}{% for content in c -%}{% if content['type'] == 'image' or 'image' in content -%}<media>{% else -%}{{ content['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}
{%- if tools -%}<s>tool_declare<m>{{ tools | tojson(separators=(',', ':')) }}<e>{%- endif -%}
{%- for message in messages -%}
  {%- if loop.first and messages[0]['role'] != 'system' -%}<s>system<m>You are K.<e>{%- endif -%}
  {%- set role_name = message.get('name') or message['role'] -%}
  {%- if message['role'] == 'user' -%}<u>{{role_name}}<m>{%- elif message['role'] == 'assistant' -%}<a>{{role_name}}<m>{%- else -%}<s>{{role_name}}<m>{%- endif -%}
  {%- if message['role'] == 'assistant' and message.get('tool_calls') -%}{{render_content(message)}}<calls>{%- for tool_call in message['tool_calls'] -%}{%- set formatted_id = tool_call['id'] -%}<call>{{ formatted_id }}<args>{% if tool_call['function']['arguments'] is string %}{{ tool_call['function']['arguments'] }}{% else %}{{ tool_call['function']['arguments'] | tojson }}{% endif %}</call>{%- endfor -%}</calls>
  {%- elif message['role'] == 'tool' -%}## Return of {{ message.tool_call_id }}
{{render_content(message)}}
  {%- elif message['content'] is not none -%}{{render_content(message)}}{%- endif -%}<e>
{%- endfor -%}{%- if add_generation_prompt -%}<a>assistant<m>{%- endif -%}""",
    "hermes": """{%- macro to_type(json_spec) %}{%- set basic = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}{%- if json_spec.type in basic.keys() %}{{- basic[json_spec.type] }}{%- elif json_spec.type == "array" %}{{- "list[" + to_type(json_spec['items']) + "]"}}{%- elif json_spec.type == "object" %}{{- "dict" }}{%- elif json_spec.type is iterable %}{{- "Union[" }}{%- for t in json_spec.type %}{{- to_type({"type": t}) }}{%- if not loop.last %}{{- "," }}{%- endif %}{%- endfor %}{{- "]" }}{%- else %}{{- "Any" }}{%- endif %}{%- endmacro %}
{{- bos_token }}{{- '<b>system\\n' }}
{%- for tool in tools | default([], true) %}
    {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
    {{- '{"type": "function", "function": ' }}{{- '{"name": "' + tool.name + '", ' }}{{- '"description": "' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}{{- param_name + ": " + to_type(param_fields) }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
    {{- ")" }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {%- if loop.first %}{{- "\\n    Args:\\n" }}{%- endif %}
        {{- "        " + param_name + "(" + to_type(param_fields) + "): " + param_fields.description|default('')|trim }}
    {%- endfor %}
    {{- '", "parameters": ' }}{%- if tool.parameters.properties | length == 0 %}{{- "{}" }}{%- else %}{{- tool.parameters|tojson }}{%- endif %}{{- "}" }}{%- if not loop.last %}{{- "\\n" }}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}{{- '<b>' + message.role + '\\n' + message.content + '<e>' + '\\n' }}
    {%- elif message.role == "assistant" %}{{- '<b>' + message.role }}{%- for tool_call in message.tool_calls %}{{- '\\n<call>\\n' }}{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}{{- '{' }}{{- '"name": "' }}{{- tool_call.name }}{{- '"' }}{{- ', '}}{%- if tool_call.arguments is defined %}{{- '"arguments": ' }}{%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments|tojson }}{%- endif %}{%- endif %}{{- '}' }}{{- '\\n</call>' }}{%- endfor %}{{- '<e>\\n' }}
    {%- elif message.role == "tool" %}{%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<b>tool\\n' }}{%- endif %}{{- message.content }}{%- if not loop.last %}{{- '\\n</answer>\\n' }}{%- else %}{{- '\\n</answer>' }}{%- endif %}{%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<e>' }}{%- elif loop.last %}{{- '<e>' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<b>assistant\\n' }}{%- endif %}""",
    "llama4": """{{- bos_token }}
{%- if custom_tools is defined and custom_tools%}{%- set tools = custom_tools %}{%- endif %}
{%- if tools is defined and tools %}{%- set tool_definition = tool_definition ~ (tools | tojson(indent=4)) %}{%- else %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set system_message = messages[0]['content']|trim %}{%- else %}{%- set system_message = messages[0]['content'][0]['text']|trim %}{%- endif %}
    {%- set messages = messages[1:] %}
{%- elif tools is not none %}{%- set system_message = "Tools:" %}{%- else %}{%- set system_message = "" %}{%- endif %}
{%- if system_message %}{{- "<h>system</h>\\n\\n" }}{{- system_message }}{%- if tools is not none %}{{- tool_definition }}{%- endif %}{{- "<eot>" }}{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or ('tool_calls' in message and message.tool_calls|length != 0)) %}
    {{- '<h>' + message['role'] + '</h>\\n\\n' }}
        {%- if message['content'] is string %}{{- message['content'] }}{%- else %}{%- for content in message['content'] %}{%- if content['type'] == 'image' %}{{- '<image>' }}{%- elif content['type'] == 'text' %}{{- content['text'] | trim }}{%- endif %}{%- endfor %}{%- endif %}
    {{- "<eot>" }}
    {%- elif 'tool_calls' in message and message.tool_calls|length > 0 %}
       {{- '<h>assistant</h>\\n\\n' -}}{{- '<py>' }}
        {%- if message['content'] is string %}{{- message['content'] }}{%- else %}{%- for content in message['content'] %}{{- content.type }}{%- endfor %}{%- endif %}
        {{- "[" }}{%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{-  tool_call.name + '(' -}}{%- for param in tool_call.arguments %}{{- param + '="' -}}{{- "%s" | format(tool_call.arguments[param]) -}}{{- '"' -}}{% if not loop.last %}, {% endif %}{%- endfor %}{{- ')' -}}{% if not loop.last %}, {% endif %}
        {%- endfor %}{{- "]" }}{{- "<eom>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}{{- "<h>ipython</h>\\n\\n" }}{%- if message.content is string %}{{-  message.content | tojson }}{%- else %}{%- for content in message['content']  %}{%- if content['type']  == 'text' %}{{-  content['text'] | tojson }}{%- endif %}{%- endfor %}{%- endif %}{{- "<eom>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<h>assistant</h>\\n\\n' }}{%- endif %}
""",
    "internlm": "{{ bos_token }}{% for message in messages %}{{'<b>' + message['role'] + (' name=' + message['name'] if message['name'] is defined else '') + '\n' + message['content'] + '<e>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<b>assistant\n' }}{% endif %}",
    "falcon": "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{% if message['role'] == 'system' %}{{ 'System: ' }}{% elif message['role'] == 'user' %}{{ 'User: ' }}{% elif message['role'] == 'assistant' %}{{ 'Falcon: ' }}{% endif %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}{{ '\n' + 'Falcon:' }}{% endif %}",
    "openchat": "{{ bos_token }}{% for message in messages %}{{ 'GPT4 Correct ' + message['role'].title() + ': ' + message['content'] + '<e>'}}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}",
    "functionary": """{# version v3 #}{%- if not tools is defined -%}{%- set tools = none -%}{%- endif -%}
{%- set has_code_interpreter = tools | selectattr("type", "equalto", "code_interpreter") | list | length > 0 -%}
{%- if has_code_interpreter -%}{%- set tools = tools | rejectattr("type", "equalto", "code_interpreter") | list -%}{%- endif -%}
{%- if has_code_interpreter -%}{{ "Environment: ipython\n" -}}{%- else -%}{{ "\n" -}}{%- endif %}
{%- if tools -%}{%- for t in tools -%}{%- if "type" in t -%}{{ "Use the function '" + t["function"]["name"] + "' to '" + t["function"]["description"] + "'\n" + t["function"] | tojson() }}{%- else -%}{{ t | tojson }}{%- endif -%}{{ "\n\n" -}}{%- endfor -%}{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] == 'user' or message['role'] == 'system' -%}{{ '<h>' + message['role'] + '</h>\n\n' + message['content'] + '<eot>' }}
    {%- elif message['role'] == 'tool' -%}{{ '<h>ipython</h>\n\n' + message['content'] + '<eot>' }}
    {%- else -%}
        {%- if (message['content'] and message['content']|length > 0) or ('tool_calls' in message and message['tool_calls'] and message['tool_calls']|length > 0) -%}{{ '<h>' + message['role'] + '</h>\n\n'}}{%- endif -%}
        {%- if message['content'] and message['content']|length > 0 -%}{{ message['content'] }}{%- endif -%}
        {%- if 'tool_calls' in message and message['tool_calls'] and message['tool_calls']|length > 0 -%}{%- for tool_call in message['tool_calls'] -%}{%- if tool_call["function"]["name"] == "python" -%}{{ '<py>' + tool_call['function']['arguments'] }}{%- else -%}{{ '<function=' + tool_call['function']['name'] + '>' + tool_call['function']['arguments'] | string + '</function>' }}{%- endif -%}{%- endfor -%}{{ '<eom>' }}
        {%- elif message['content'] and message['content']|length > 0 -%}{{ '<eot>' }}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<h>assistant</h>\n\n' }}{%- endif -%}""",
    "tables": """{%- set names = {'user': 'U', 'assistant': 'A', 'system': 'S', 'tool': 'T'} -%}
{% for message in messages -%}
{{ loop.index }} {{ "%s%%" | format(names.get(message.role, '?')) }}| {{ loop.revindex }}/{{ loop.length }} {{ loop.previtem.role if loop.previtem is defined else '-' }} {{ loop.nextitem.role | default('-') }} {{ loop.first }} {{ loop.last }} {{ loop.revindex0 }}
{% else %}
none
{% endfor %}{{ messages | map(attribute='role') | join(', ') }}
""",
    "whitespace": """  {# a comment #}
  {% if true %}
    kept
  {% endif %}
	{%- if true -%}   stripped   {%- endif %}
 x {% if true %} y {% endif %}
{{ 'a' -}}
   b
   {{- 'c' }}
{{ 'd' }}
{#- strip -#}
   e {# keep #}
 f
{% for m in messages %}
  * {{ m.role }}
{% endfor %}
{% set a = 1 -%}

   {%- set b = 2 %}
{{ a }}{{ b }}

""",
    "windows lines": "{% for m in messages %}\r\n{{ m.role }}:\r\n{% endfor %}\r\n{{ 'a\r\nb' }}\rend\r\n",
    "scopes": """{% set x = 'outer' %}{% set ns = namespace(x='ns', n=0, seen=[]) %}
{% for m in messages %}{{ x }}{% set x = m.role %}{{ x }}{% set ns.x = m.role %}{% set ns.n = ns.n + loop.index %}{% set ns.seen = ns.seen + [m.role] %}{% endfor %}
{{ x }} {{ ns.x }} {{ ns.n }} {{ ns.seen }}
{% if true %}{% set x = 'if' %}{% set y = 'y' %}{% endif %}{{ x }}{{ y }}{{ z }}
{% set block %}{{ x }} in {{ ns.n }}{% set x = 'block' %}{% endset %}{{ block }}|{{ x }}|
{% macro show(a, b='B', c=a) %}[{{ a }}{{ b }}{{ c }}{{ x }}{{ later }}]{% endmacro %}{% set later = 'L' %}{{ show(1) }}{{ show(1, c=3) }}{{ show(b=2, a=1) }}{{ show() }}
{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}{% for k, v in {'p': 1, 'q': 2}.items() %}{{ k }}={{ v }} {% endfor %}{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}
{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}{% set a, b = 'pq' %}{{ a }}{{ b }}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% else %}never{% endfor %}
{% for i in [] %}{% else %}empty{% endfor %} {% for i in range(6) if i is odd %}{{ i }}/{{ loop.length }} {% endfor %}
{% for i in range(2) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% endfor %} {% for c in 'zoë' %}{{ c }}.{% endfor %} {% for k in {'a': 1} %}{{ k }}{% endfor %}{% for x in missing %}{{ x }}{% else %}no{% endfor %}
{% macro fib(n) %}{{ n if n < 2 else fib(n - 1) | int + fib(n - 2) | int }}{% endmacro %}{{ fib(9) }} {{ loop is defined }} {{ show(*[1, 2]) }}
{% for m in messages %}{% macro inner() %}{{ m.role }}{{ loop.index }}{% endmacro %}{{ inner() }} {% endfor %}{{ inner is defined }}
{% for i in [1] %}{% set hidden = i %}{% endfor %}{{ hidden is defined }}{% if false %}{% set never = 1 %}{% endif %}{{ never is defined }} {% if messages: %}colon{% endif %}""",
    "unpacks too few": "{% set a, b = [1] %}{{ a }}",
    "not a namespace": "{% set d = {} %}{% set d.x = 1 %}",
    "macro with too many": "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "macro with unknown": "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "unknown in a branch": "{% if messages | length > 3 %}{{ messages | nofilter }}{% else %}{{ (1 if false else 'fine') }}{% endif %}",
    "unknown filter": "{{ messages | nofilter }}",
    "unknown test": "{{ messages is notest }}",
    "unknown tag": "{% unknown %}",
    "open if": "{% if true %}",
    "open print": "{{ 1",
    "open comment": "{# open",
    "open string": "{{ 'open }}",
    "end without begin": "{% endif %}",
    "wrong bracket": "{{ (1] }}",
    "missing operand": "{{ 1 + }}",
    "empty print": "{{ }}",
    "break outside": "{% break %}",
    "assign to loop": "{% for loop in [1] %}{% endfor %}",
    "assign to none": "{% set none = 1 %}",
    "positional behind named": "{{ dict(a=1, 2) }}",
    "default before required": "{% macro m(a=1, b) %}{% endmacro %}",
    "generation in places": """{% generation %}all {{ messages | length }}{% endgeneration %}{% for m in messages %}
{{ m.role }}: {% generation %}{% set t = m.content %}{{ t if t is string }}{% endgeneration %}
{{ t is defined }}{% endfor %}{% set x %}a{% generation %}b{% endgeneration %}c{% endset %}{{ x }}{% macro g() %}q{% generation %}in{% endgeneration %}{% endmacro %}{{ 'é' }}{{ g() }}{% generation %}{% generation %}nested{% endgeneration %} ü{% endgeneration %}""",
    "parts": """{%- for message in messages %}
{{- '<' ~ message.role ~ '>' }}
{%- if message.content is string %}{{ message.content }}
{%- elif message.content %}
{%- for part in message.content | selectattr('type', 'in', ['text', 'image']) %}
{%- if part.type == 'text' %}{{ part['text'] }}{% else %}{{ '[img ' ~ part.image | default('none') | replace('.png', '') ~ ']' }}{% endif %}
{%- endfor %}
{{- message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('+') | length }}
{%- endif %}
{%- endfor %}
{{- messages | selectattr('role', 'equalto', 'user') | list | length }}
{{- messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='role') | list }}
{{- (messages | last).role }}{{ (messages | first)['role'] }}{{ messages[-1].content[:5] if messages[-1].content is string }}""",
    "dumps": """{{ messages | tojson }}
{{ tools | tojson(indent=2) if tools else 'no tools' }}
{{ documents | default([], true) | map(attribute='title') | join(' & ') }}
{{ messages[0] }}{{ messages[0].items() | list }}{{ messages[-1].keys() | list }}
{% for tool in tools or [] %}{{ tool.function.parameters.properties | dictsort | map('first') | join(',') }} {{ tool.function | items | list | length }} {{ tool.function.parameters.required | default(['-']) | join }}
{% endfor %}{{ bos_token is defined }} {{ eos_token | default('no eos') }} {{ (pad_token or unk_token or 'none') | upper }}""",
}
