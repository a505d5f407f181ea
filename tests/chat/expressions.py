"""Small expressions, and a generator of random ones, for render_templates.py."""
import random

VARIABLES = {
    "i": 7, "n": -3, "zero": 0, "f": 2.5, "big": 1e22, "small": 1.5e-7, "whole": 4.0, "yes": True, "no": False, "nothing": None,
    "s": "Hello, World", "e": "", "sp": "  padded \n\t", "u": "Zoë ÉÀ 漢字 😀 \u2028x\u00a0", "lines": "a\nb\r\nc\rd\n\ne", "q": "it's \"quoted\" \\ \x07 \x7f \u200b",
    "html": "<a href='x'>&amp;</a>", "num": " 42 ", "real": "-1.5e3", "hexa": "0x1F", "word": "don't STOP-now (please) {x}",
    "xs": [3, 1, 2], "mixed": [1, "a", None, True, 2.5, [1, [2]], {"k": "v"}], "names": ["bob", "Alice", "Bob", "carol"], "empty": [], "twice": [1, 1, 2, 3, 2],
    "d": {"b": 2, "a": 1, "C": 3}, "nested": {"x": {"y": {"z": [10, 20, {"w": "deep"}]}}, "items": "shadowed", "1": "one"}, "none_dict": {}, "long": [[1, 2], [3, 4], [5, 6]],
    "users": [{"name": "zed", "age": 30, "ok": True, "tags": ["p", "q"]}, {"name": "Amy", "age": 25, "ok": False, "tags": []}, {"name": "bea", "age": 30, "tags": ["r"], "addr": {"city": "Rome"}}],
}

EXPRESSIONS = r"""
1 + 2 * 3|-7 % 3|7 % -2|2 * 0.1 + 0.1|00|.5 is defined
123456789012345678.0|0.1 + 0.2|-0.0|5.0|i + f|f * i|yes + 1|yes * 3|no - yes|- yes|-f|- -i|- - -3|i - -3|i--3
'a' 'b'|'a' ~ 1 ~ None ~ true ~ 2.0|'a' + 'b'|'ab' * 3|3 * 'ab'|-1 * 'ab'|[1] + [2]|(1, 2) + (3,)|(1,)|()|(1)|1, 2|[1, 2, ]|{'a': 1, 'b': [1, 2]}|{}|{1: 2, 'x': None}|{'a': {'b': (1, 2.0)}}
1 < 2|1 < 2 < 3|3 > 2 > 2|1 == 1.0|1 == true|'a' < 'b'|'a' < 'B'|'Z' < 'É'|(1, 2) == [1, 2]|{'a': 1} == {'a': 1.0}|None == None|i != 7|i >= 7 <= 8|1 == 1 == 1|missing == missing|missing == 1|missing < 1|'a' != 'a'
'ell' in s|'x' not in s|1 in xs|'1' in xs|9 not in xs|'a' in d|'z' in d|1 in s|'' in e|1 in missing|'a' in None|[1] in [[1]]|'b' in ('a', 'b')|2 in range(3)|1 in {1: 2}|1.0 in xs|true in xs|not 'a' in d|not 1 == 2|not not i
i and f|zero or 'x'|e or nothing or 'last'|i and zero and s|not e|not empty and not none_dict|no or missing|missing or 'default'|missing and 1|1 if yes else 2|1 if no else 2|1 if no|(1 if no) is defined|'a' if zero else 'b' if e else 'c'|i if i > 5 and f < 3 else n
s[0]|s[-1]|s[99]|s[99] is undefined|s[1:4]|s[:-1]|s[::-1]|s[-5:]|s[5:2]|s[-3:-1]|s[100:]|s[:100]|u[4]|u[-3:]|u[::-1]|u[9:13]|xs[1:]|xs[::-1]|xs[-2:]|xs[:1] + xs[2:]|range(5)[-1]|s[None]|xs['a']|i[1:]|d[1:2]|nothing[:1]|missing[1:]|d.get.name|xs[1.0]|xs[true]|e[:1]
d.a|d['b']|d.zzz|d.zzz is defined|d['zzz']|d.zzz.y|d.items|none_dict.x.y|nested.x.y.z[2].w|nested['items']|nested.x.y.z|length|nested['1']|nothing.x|nothing.x is defined|i.x|missing.x|missing['x']|s.nope|s()|d[[1]]|xs[-1]|xs[-4]|users[0].name|users[0]['tags'][1]|users[2].addr.city|users[1].addr.city|users[1].addr is defined
d.get('a')|d.get('z')|d.get('z', 'dflt')|d.keys() | list|d.items() | list|d | list|d | length|d.clear is defined|xs.sort() |d.get([1])|d.get()|(d.items() | list)[0][1]|d.keys() is iterable|'a' in d.keys()|d.items() | first|d.items() | last
s.upper()|s.lower()|u.upper()|u.lower()|s.title()|word.title()|u.title()|word.capitalize()|u.capitalize()|sp.strip()|sp.lstrip()|sp.rstrip()|'xxaxx'.strip('x')|'xyax'.lstrip('yx')|'éaé'.strip('é')|'abc'.rstrip('cb')|s.strip(none)|u.strip()|s.split()|s.split(',')|s.split(', ', 1)|'a b  c '.split()|' a b  c '.split(none, 1)|'a,b,c'.split(',', maxsplit=1)|''.split()|''.split(',')|'abc'.split('')|u.split()|'a\x1fb'.split()
s.startswith('Hell')|s.startswith(('x', 'H'))|s.endswith('ld')|s.endswith(('x', 'y'))|s.startswith('')|s.startswith(['H'])|s.startswith(1)|s.find('o')|s.find('zz')|s.rfind('o')|u.find('漢')|u.rfind('x')|s.replace('l', 'L')|s.replace('l', 'L', 1)|u.replace('ß', 'ss')|s.replace('l', '')
'%s-%s' | format('a', 1)|s | upper|5 | upper|none | upper|s | lower|word | capitalize|word | title|u | title|'foo-bar baz(qux) <x>' | title|sp | trim|'xxaxx' | trim('x')|5 | trim|s | length|xs | count|d | length|i | length|missing | length|none | length|u | length|s | replace('l', 'L')|s | replace('l', 'L', 1)|12321 | replace(2, 'x')|s | first|s | last|xs | first|xs | last|empty | first|empty | last|(empty | first) is defined|d | first|d | last|i | first|none | first|missing | first|'abc' | list|d | list|none | list|missing | list|i | list|range(3) | list|range(5, 0, -2) | list| length|range(1.5)|range()|range(1, 2, 0)
xs | join|xs | join(', ')|xs | join(d=', ')|names | join(', ')|users | join(', ', attribute='name')|users | join('|', 'age')|s | join('-')|mixed | join('/')|empty | join(',')|none | join|missing | join(',')|d | join(',')|xs | join(1)
users | map(attribute='name') | list|users | map(attribute='addr.city') | list|users | map(attribute='tags.0') | list|names | map('upper') | list|xs | map('string') | join('+')|names | map('replace', 'b', 'B') | list|xs | map|xs | map(attribute='x') | list|names | map('default', 'z') | list|users | selectattr('ok') | map(attribute='name') | list|users | selectattr('ok', 'defined') | list | length|users | selectattr('age', 'equalto', 30) | map(attribute='name') | list|users | rejectattr('age', 'eq', 30) | map(attribute='name') | list|users | rejectattr('ok') | map(attribute='name') | join|users | selectattr('name', 'in', ['Amy', 'bea']) | map(attribute='age') | list|xs | select('odd') | list|xs | reject('odd') | list|xs | select | list|mixed | select('string') | list|mixed | reject('none') | list | length|users | selectattr | list|(xs | select('odd')) is iterable|xs | select('odd') | length|xs | select('odd') | first|xs | select('gt', 1) | last|(empty | select) and 'true'
s | default('x')|missing | default('x')|missing | d('x')|e | default('x')|e | default('x', true)|none | default('x')|none | default('x', boolean=true)|missing.y | default('x')|missing | default|d.zzz | default(1) + 1|d | dictsort|d | items | list|missing | items | list|xs | items | list|mixed | dictsort|num | int|real | int|hexa | int|'abc' | int|'abc' | int(-1)|'abc' | int(default=5)|'12.7' | int|12.7 | int|-12.7 | int|true | int|none | int|missing | int|empty | int|'1e3' | int|'--1' | int|'1__0' | int|'' | int|'+5' | int
html | safe|5 | string|none | string|d | string
d | tojson|d | tojson(indent=2)|nested | tojson|nested | tojson(indent=4)|mixed | tojson|mixed | tojson(indent=1)|q | tojson|u | tojson|html | tojson|none | tojson|yes | tojson|f | tojson|big | tojson|small | tojson|whole | tojson|empty | tojson|none_dict | tojson(indent=2)|[[], {}] | tojson(indent=2)|missing | tojson|(1, 2) | tojson|{1: 2, none: 3, true: 4, 2.5: 5} | tojson|{(1, 2): 3} | tojson|d | tojson(separators=(',', ':'))|d | tojson(indent=2, separators=(',', ': '))|d | tojson(indent=0)|d | tojson(indent=none)|s | tojson | length|users | tojson|"</script>" | tojson|'\u2028' | tojson
1 is eq 1|'a' is equalto 'a'|1 is eq 1.0 and s|i is in [1, 7]|i is not in xs|'b' is in 'abc'|'z' is in d|'b' is in d|i is in xs or yes|'p' is in users[0].tags|'p' is in users[0]['tags']|i is divisibleby 7|i is not divisibleby 3|i is divisibleby(3)|f is divisibleby 2|1 is divisibleby 0|xs is eq [3, 1, 2]|d is ne {'b': 2}|s is eq e|1 if i is eq 7 else 2|1 if i is eq 8 else 2|(i is eq 7) is true|i is eq 7 is true|i is eq (7)|i is eq 7 == true|'a' is eq 'A'.lower()|i is in xs | string|i is eq 7 ~ 'x'|s is string x|i is defined 1|xs | select('divisibleby', 3) | list|not i is eq 7|none is eq none
7.5 % 2|-7.5 % 2|7.5 % -2|(-7.5) % -2|7 % 2.5|f % 2|2 % f|n % f|6.0 % 3|-6.0 % 3|6.0 % -3|0.0 % -3|1 % 0.0|1.5 % 0|1.5 % zero|f is odd|3.0 is odd|whole is even|yes % 2.5|big % 7|0.3 % 0.1|small % small|1 % big|-1 % big
i is defined|missing is defined|missing is not defined|nothing is none|missing is none|s is string|i is string|d is mapping|xs is mapping|xs is iterable|s is iterable|i is iterable|missing is iterable|xs is sequence|d is sequence|s is sequence|i is sequence|missing is sequence|i is number|f is number|yes is number|'1' is number|i is integer|yes is integer|f is integer|f is float|i is float|yes is boolean|i is boolean|yes is true|1 is true|no is false|i is odd|i is even|zero is even|i is not none and s is string|i is not odd|not i is odd|i is odd or missing|range(3) is sequence|range(3) is iterable|(1, 2) is sequence|namespace() is mapping|none is mapping
'\n' ~ '\t' ~ '\\' ~ '\'' ~ "\"" | tojson|'\q\z' | tojson|'a\
b' | tojson|"it's" ~ '"'|[s, q]|[u]|'\x1b\x00é\u200b' ~ ['\x1b\x00é\u200b\U0001f600\U000e0001']|["'"]|['"']|['\'"']|['\\\n\r\t']|(s,)|[none, true, 1.0]|[missing]|{'a': missing}|[[]]|{'d': d}|[d.items() | list]|mixed|users|namespace(a=1)|namespace(a=1).a|namespace(a=1).zz is defined|range(*[1, 3]) | list|raise_exception('no')|'a'|upper ~ 'b'|'a' ~ 'b'|upper|(2, 3)|first|s|upper|lower|length|not s|length == 3|xs|length > 2 and s|length < 99|i|string + 'x'|('a' ~ 'b')|upper|s[:3]|upper|d.a|string|xs[0]|string ~ xs[1]|{'a': 1}.a|{'a': 1}['a']|[1, 2][0]|'abc'.upper()[0]|'abc'[0].upper()|"a,b".split(',')[1]|(1, 2)[1]|(i + 1)|string|1 if i is odd else 2|true and not false|True|False|None|none|TRUE|strftime_now('%Y-%m-%d')|strftime_now('%d %B %Y, %H:%M')|strftime_now('')|strftime_now('%%')|9223372036854775807|-9223372036854775807 - 1|1.0 == 1|0.1 + 0.7|3.0 * 2|1 % 0|true + true|'a' * true|missing + 1|missing ~ 'x'|- missing|-s|+s|loop|loop is defined|caller is defined
"""

# "|" stands between expressions where no expression could go on with it.
SPLIT_AT = "|"


def expressions():
    """The expressions of the table. A filter is written with a space before its "|", or is a name behind a name."""
    found = []
    for line in EXPRESSIONS.strip("\n").replace("'a\\\nb'", "'a\\NEWLINEb'").split("\n"):
        found += [part.replace("\\NEWLINE", "\\\n") for part in split_line(line)]
    return found


FILTERS_WITHOUT_SPACE = {"upper", "lower", "length", "abs", "first", "string"}


def split_line(line):
    """Splits at "|" outside of strings that has no space before it, and no filter of FILTERS_WITHOUT_SPACE behind it."""
    parts, begin, quote, at = [], 0, "", 0
    while at < len(line):
        char = line[at]
        if quote:
            at += char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == SPLIT_AT and line[at - 1] != " ":
            word = line[at + 1:].split("|")[0].split(" ")[0].split("(")[0]
            if word not in FILTERS_WITHOUT_SPACE:
                parts.append(line[begin:at])
                begin = at + 1
        at += 1
    return parts + [line[begin:]]


class Generator:
    """Random expressions over VARIABLES. About half of them mean something."""

    NUMBERS = ["0", "1", "2", "-1", "3", "7", "2.5", "0.5", "i", "n", "zero", "f", "whole", "yes", "true"]
    TEXTS = ["'a'", "'b c'", "''", "'é漢'", "s", "e", "sp", "u", "word", "num", "'%s'", "'x,y,z'", "' '", "','"]
    LISTS = ["xs", "names", "empty", "twice", "mixed", "[1, 2]", "['b', 'a']", "range(4) | list", "users", "long", "(1, 'a')"]
    OTHERS = ["d", "nested", "none_dict", "none", "missing", "users[0]", "{'k': 1}", "false"]

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def pick(self, *choices):
        return self.rng.choice(choices)

    def any(self, depth):
        return self.pick(self.number, self.text, self.text, self.list, self.boolean, self.other)(depth)

    def other(self, depth):
        if depth <= 0 or self.rng.random() < 0.4:
            return self.rng.choice(self.OTHERS)
        return self.pick(
            lambda: f"{self.list(depth - 1)}[{self.number(depth - 1)}]", lambda: f"({self.any(depth - 1)} if {self.boolean(depth - 1)} else {self.any(depth - 1)})",
            lambda: f"({self.any(depth - 1)} {self.pick('and', 'or')} {self.any(depth - 1)})", lambda: f"d.{self.pick('a', 'b', 'zz')}",
            lambda: f"{self.list(depth - 1)} | {self.pick('first', 'last')}", lambda: f"({self.other(depth - 1)}).{self.pick('name', 'x', 'a', 'tags')}",
            lambda: f"{self.any(depth - 1)} | default({self.any(depth - 1)})", lambda: f"d.get({self.text(0)}, {self.any(depth - 1)})",
            lambda: f"{{{self.text(0)}: {self.any(depth - 1)}}}")()

    def number(self, depth):
        if depth <= 0 or self.rng.random() < 0.35:
            return self.rng.choice(self.NUMBERS)
        return self.pick(
            lambda: f"({self.number(depth - 1)} {self.pick('+', '-', '*', '%')} {self.number(depth - 1)})", lambda: f"{self.number(depth - 1)} {self.pick('+', '-', '*')} {self.number(depth - 1)}",
            lambda: f"{self.any(depth - 1)} | length", lambda: f"{self.text(depth - 1)} | int", lambda: f"{self.number(depth - 1)} | int", lambda: f"-{self.number(depth - 1)}",
            lambda: f"({self.text(depth - 1)}).find({self.text(depth - 1)})", lambda: f"({self.text(depth - 1)}).rfind({self.text(depth - 1)})", lambda: f"({self.any(depth - 1)} + {self.any(depth - 1)})")()

    def text(self, depth):
        if depth <= 0 or self.rng.random() < 0.3:
            return self.rng.choice(self.TEXTS)
        return self.pick(
            lambda: f"({self.any(depth - 1)} ~ {self.any(depth - 1)})", lambda: f"({self.text(depth - 1)} + {self.text(depth - 1)})",
            lambda: f"({self.text(depth - 1)})[{self.pick('', '1', '-2', 'i')}:{self.pick('', '2', '-1', '5')}]",
            lambda: f"({self.text(depth - 1)}).{self.pick('upper', 'lower', 'title', 'capitalize', 'strip', 'lstrip', 'rstrip')}()",
            lambda: f"{self.any(depth - 1)} | {self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'tojson', 'tojson(indent=2)', 'replace(1, 2)')}",
            lambda: f"{self.list(depth - 1)} | join({self.text(0)})", lambda: f"({self.text(depth - 1)}).replace({self.text(0)}, {self.text(0)})", lambda: f"({self.text(depth - 1)}).strip({self.text(0)})",
            lambda: f"({self.text(depth - 1)} * {self.pick('0', '2', '-1', 'yes')})",
            lambda: f"'%s %s%%' | format({self.any(depth - 1)}, {self.any(depth - 1)})")()

    def list(self, depth):
        if depth <= 0 or self.rng.random() < 0.3:
            return self.rng.choice(self.LISTS)
        return self.pick(
            lambda: f"[{self.any(depth - 1)}, {self.any(depth - 1)}]", lambda: f"({self.list(depth - 1)} + {self.list(depth - 1)})", lambda: f"{self.list(depth - 1)}[{self.pick('', '1', '-2')}:{self.pick('', '2', '-1')}]",
            lambda: f"({self.text(depth - 1)}).split({self.pick('', self.text(0))})", lambda: f"{self.list(depth - 1)} | {self.pick('list', 'select | list')}", lambda: f"{self.any(depth - 1)} | list",
            lambda: f"{self.list(depth - 1)} | map({self.pick(chr(39) + 'string' + chr(39), chr(39) + 'upper' + chr(39), 'attribute=' + chr(39) + 'name' + chr(39))}) | list",
            lambda: f"{self.list(depth - 1)} | {self.pick('select', 'reject')}({self.pick('', repr('string'), repr('odd'), repr('defined'), repr('none'))}) | list", lambda: f"({self.any(depth - 1)},)",
            lambda: f"users | selectattr({self.pick(repr('ok'), repr('age'), repr('name'))}{self.pick('', ', ' + repr('defined'), ', ' + repr('string'))}) | map(attribute='name') | list", lambda: f"d.items() | list", lambda: f"d | dictsort")()

    def boolean(self, depth):
        if depth <= 0 or self.rng.random() < 0.2:
            return self.pick("yes", "no", "true", "false")
        return self.pick(
            lambda: f"{self.any(depth - 1)} {self.pick('==', '!=', '<', '<=', '>', '>=')} {self.any(depth - 1)}", lambda: f"{self.number(depth - 1)} {self.pick('<', '>=')} {self.number(depth - 1)} {self.pick('<=', '==')} {self.number(depth - 1)}",
            lambda: f"{self.any(depth - 1)} {self.pick('in', 'not in')} {self.any(depth - 1)}", lambda: f"not {self.any(depth - 1)}",
            lambda: f"{self.any(depth - 1)} is {self.pick('', 'not ')}{self.pick('defined', 'none', 'string', 'number', 'mapping', 'iterable', 'sequence', 'odd', 'true', 'integer', 'boolean')}",
            lambda: f"({self.text(depth - 1)}).{self.pick('startswith', 'endswith')}({self.text(depth - 1)})")()
