"""What the practice model says: right answers to plain questions, correct Python, well-formed tool calls, and otherwise text about
roundhouses for as long as is asked. The same request always gets the same answer.
"""

import hashlib
import json
import random
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_TOKEN = re.compile(r"\n|[ \t]*(?:\w{1,8}|[^\w\s])|[ \t]+|\s")

CAPITALS = {
    "argentina": "Buenos Aires", "australia": "Canberra", "austria": "Vienna", "belgium": "Brussels", "brazil": "Brasília", "bulgaria": "Sofia",
    "canada": "Ottawa", "chile": "Santiago", "china": "Beijing", "colombia": "Bogotá", "croatia": "Zagreb", "cuba": "Havana",
    "czechia": "Prague", "denmark": "Copenhagen", "egypt": "Cairo", "estonia": "Tallinn", "ethiopia": "Addis Ababa", "finland": "Helsinki",
    "france": "Paris", "germany": "Berlin", "ghana": "Accra", "greece": "Athens", "hungary": "Budapest", "iceland": "Reykjavík", "india": "New Delhi",
    "indonesia": "Jakarta", "iran": "Tehran", "iraq": "Baghdad", "ireland": "Dublin", "israel": "Jerusalem", "italy": "Rome", "japan": "Tokyo",
    "kenya": "Nairobi", "latvia": "Riga", "lithuania": "Vilnius", "luxembourg": "Luxembourg", "malaysia": "Kuala Lumpur", "mexico": "Mexico City",
    "mongolia": "Ulaanbaatar", "morocco": "Rabat", "nepal": "Kathmandu", "netherlands": "Amsterdam", "new zealand": "Wellington",
    "nigeria": "Abuja", "norway": "Oslo", "pakistan": "Islamabad", "peru": "Lima", "philippines": "Manila", "poland": "Warsaw", "portugal": "Lisbon",
    "romania": "Bucharest", "saudi arabia": "Riyadh", "serbia": "Belgrade", "slovakia": "Bratislava", "slovenia": "Ljubljana",
    "south korea": "Seoul", "spain": "Madrid", "sweden": "Stockholm", "switzerland": "Bern", "thailand": "Bangkok", "turkey": "Ankara",
    "ukraine": "Kyiv", "united kingdom": "London", "united states": "Washington, D.C.", "uruguay": "Montevideo", "vietnam": "Hanoi",
}
_FACTS = (
    (("largest planet",), "Jupiter is the largest planet of the Solar System."),
    (("boil", "water"), "At sea level water boils at 100 °C (212 °F)."),
    (("speed of light",), "Light travels at 299,792,458 metres per second in a vacuum."),
    (("chemical symbol", "gold"), "The chemical symbol for gold is Au."),
    (("days", "week"), "A week has 7 days."),
    (("who wrote", "hamlet"), "William Shakespeare wrote Hamlet."),
    (("who wrote", "romeo"), "William Shakespeare wrote Romeo and Juliet."),
    (("say ok",), "ok"),
    (("first", "person", "moon"), "Neil Armstrong was the first person to walk on the Moon, in July 1969."),
)
_CODE = (
    (("prime",), "is_prime", "n: int", "bool", "Whether n is a prime number.",
     "if n < 2:\n    return False\nfor divisor in range(2, int(n**0.5) + 1):\n    if n % divisor == 0:\n        return False\nreturn True"),
    (("fibonacci",), "fibonacci", "n: int", "int", "The n-th Fibonacci number; fibonacci(0) is 0.",
     "a, b = 0, 1\nfor _ in range(n):\n    a, b = b, a + b\nreturn a"),
    (("factorial",), "factorial", "n: int", "int", "The product of all whole numbers from 1 to n.",
     "result = 1\nfor factor in range(2, n + 1):\n    result *= factor\nreturn result"),
    (("palindrome",), "is_palindrome", "text: str", "bool", "Whether text reads the same both ways, ignoring case and punctuation.",
     "letters = [c.lower() for c in text if c.isalnum()]\nreturn letters == letters[::-1]"),
    (("reverse", "string"), "reverse_string", "text: str", "str", "The text from its last character to its first.", "return text[::-1]"),
    (("reverse", "list"), "reverse_list", "items: list", "list", "The items in reverse order.", "return items[::-1]"),
    (("greatest common divisor",), "gcd", "a: int, b: int", "int", "The greatest common divisor of a and b.",
     "while b:\n    a, b = b, a % b\nreturn abs(a)"),
    (("gcd",), "gcd", "a: int, b: int", "int", "The greatest common divisor of a and b.", "while b:\n    a, b = b, a % b\nreturn abs(a)"),
    (("binary search",), "binary_search", "items: list, wanted", "int", "The index of wanted in the sorted items, or -1.",
     "low, high = 0, len(items) - 1\nwhile low <= high:\n    middle = (low + high) // 2\n    if items[middle] == wanted:\n        return middle\n"
     "    if items[middle] < wanted:\n        low = middle + 1\n    else:\n        high = middle - 1\nreturn -1"),
    (("fizzbuzz",), "fizzbuzz", "n: int", "list[str]", "The first n values of FizzBuzz.",
     "return ['Fizz' * (i % 3 == 0) + 'Buzz' * (i % 5 == 0) or str(i) for i in range(1, n + 1)]"),
    (("vowel",), "count_vowels", "text: str", "int", "How many vowels the text has.", "return sum(c in 'aeiou' for c in text.lower())"),
    (("count", "word"), "count_words", "text: str", "int", "How many words the text has.", "return len(text.split())"),
    (("sort",), "sort_items", "items: list", "list", "The items in ascending order.",
     "ordered: list = []\nfor item in items:\n    place = len(ordered)\n    while place and ordered[place - 1] > item:\n        place -= 1\n"
     "    ordered.insert(place, item)\nreturn ordered"),
    (("maximum",), "maximum", "items: list", "object", "The largest item.",
     "largest = items[0]\nfor item in items[1:]:\n    if item > largest:\n        largest = item\nreturn largest"),
    (("largest",), "largest", "items: list", "object", "The largest item.", "return max(items)"),
    (("even",), "is_even", "n: int", "bool", "Whether n is even.", "return n % 2 == 0"),
    (("sum", "list"), "sum_list", "numbers: list[float]", "float", "The sum of all numbers.",
     "total = 0\nfor number in numbers:\n    total += number\nreturn total"),
    (("multipl",), "multiply", "a: float, b: float", "float", "The product of a and b.", "return a * b"),
    (("subtract",), "subtract", "a: float, b: float", "float", "a less b.", "return a - b"),
    (("add",), "add", "a: float, b: float", "float", "The sum of a and b.", "return a + b"),
    (("sum",), "add", "a: float, b: float", "float", "The sum of a and b.", "return a + b"),
)
_SENTENCES = (
    "An engine that comes in from the line is turned on the table, inspected, and led to a free stall.",
    "The night shift writes down what it found, so that the morning does not have to guess.",
    "Before the fire is lit, somebody checks the water, the valves and the list of repairs.",
    "A boiler that is heated too fast will crack; the schedule leaves an hour for it.",
    "Two parts that were made for each other are kept in the same drawer and changed together.",
    "The foreman trusts a gauge more than a memory, and a second gauge more than the first.",
    "Whatever was taken off an engine is tagged with its number and the date.",
    "A test run on the short track tells more than an afternoon of talk.",
    "The timetable says when the engine is due; the log says when it was ready.",
    "Spare parts are counted on Mondays, and nobody is surprised by the result any more.",
    "When a bearing runs hot, the first question is what was changed since it last ran cool.",
    "The turntable moves slowly, for it carries a hundred tons and no brakes worth the name.",
    "Old drawings are never thrown away, they move to a lower shelf.",
    "An apprentice learns to listen: a healthy engine has a rhythm, a sick one an excuse.",
    "After the repair the same load is pulled up the same hill, and the two times are compared.",
    "Ash is emptied into the pit, where it can be looked through before it is carted away.",
    "Each stall has a lamp, and the lamp burns for as long as somebody works beneath the engine.",
    "The last entry of the day is always the same: all engines accounted for.",
)
_THOUGHTS = (
    "The request is open, so I should choose an angle and keep to it.",
    "I will describe the place first and the work after that.",
    "The reader wants something concrete, so each sentence should name a thing or an action.",
    "Numbers would help, but only those that I can stand behind.",
    "I should vary the rhythm a little and avoid repeating the opening.",
    "It may be best to follow one engine through a day.",
    "A short outline: arrival, inspection, repair, test, departure.",
    "I must not forget the people, they make the difference between a shed and a roundhouse.",
)


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wants made; arguments as JSON text, as they are streamed."""

    name: str
    arguments: str


@dataclass
class Answer:
    """An answer in tokens. `complete`: it ended by itself, and not because the limit was reached."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    tool_call: ToolCall | None = None
    arguments: list[str] = field(default_factory=list)  # tokens of the tool call's arguments
    complete: bool = True
    stop_reason: str | None = None

    @property
    def tokens(self) -> int:
        """All tokens; the tool call's name counts as one."""
        return len(self.reasoning) + len(self.content) + len(self.arguments) + (1 if self.tool_call else 0)


def tokenize(text: str) -> list[str]:
    """Pieces of words, of at most eight letters; joined they are the text again."""
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    """How many tokens a prompt's text has."""
    return sum(1 for _ in _TOKEN.finditer(text))


@lru_cache(maxsize=64)
def _sentence_tokens(text: str) -> tuple[str, ...]:
    return tuple(tokenize(text))


def _filler(sentences: tuple[str, ...], tokens: int, random_order: random.Random) -> list[str]:
    """At least `tokens` tokens of whole sentences in a random order, six sentences to a paragraph."""
    out: list[str] = []
    count = 0
    while len(out) < tokens:
        for sentence in random_order.sample(sentences, len(sentences)):
            if out:
                out.extend(("\n", "\n") if count % 6 == 0 else (" ",))
            out.extend(_sentence_tokens(sentence))
            count += 1
            if len(out) >= tokens:
                break
    return out


def text_of(content: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""


def answer_chat(messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, must_call: str | None, limit: int, least: int, ignore_eos: bool,
                thinks: bool, stop: list[str]) -> Answer:
    """The answer to a conversation, at most `limit` tokens long.

    `must_call` names a tool that has to be called ("" means any); `least` and `ignore_eos` make the answer go on after its natural end.
    """
    last = messages[-1]
    question = next((text_of(m.get("content")) for m in reversed(messages) if m.get("role") == "user"), "")
    rng = random.Random(hashlib.sha256(json.dumps(messages, sort_keys=True, ensure_ascii=False).encode()).digest())  # noqa: S311
    if last.get("role") == "tool":
        thought, said = "The tool has answered. I pass that on.", f"According to the tool: {text_of(last.get('content')).strip()}"
    elif (tool := _wanted_tool(question, tools, must_call)) is not None:
        call = ToolCall(tool["name"], json.dumps(_arguments(tool.get("parameters") or {}, question), ensure_ascii=False))
        answer = Answer(tool_call=call, arguments=tokenize(call.arguments))
        if thinks:
            answer.reasoning = tokenize(f"The question needs the tool {call.name}. I fill in its arguments from the question.")
        return _cut(answer, limit)
    else:
        thought, said = _known(question)
    if said:
        answer = Answer(reasoning=tokenize(thought) if thinks else [], content=tokenize(said))
        wanted = limit if ignore_eos else least
    else:
        wanted = limit if ignore_eos else max(least, _asked_length(question) or rng.randint(700, 1100))
        answer = Answer()
        if thinks:
            thinking = min(int(min(wanted, limit) * 0.4), 4000)
            answer.reasoning = _filler(_THOUGHTS, thinking, rng)[:thinking] if wanted >= 8 else _filler(_THOUGHTS, 1, rng)[:wanted]
    if (missing := wanted - answer.tokens) > 0:
        more = _filler(_SENTENCES, missing, rng)
        if answer.content:
            more = ["\n", "\n", *more]
        answer.content += more[:missing] if ignore_eos else more  # an answer that ends by itself ends with its sentence
    if stop:
        _stop_at(answer, stop)
    cut = _cut(answer, limit)
    if ignore_eos and not cut.stop_reason:
        cut.complete = False
    return cut


def continue_text(prompt: str, *, limit: int, least: int, ignore_eos: bool, stop: list[str]) -> Answer:
    """What follows a plain prompt (/v1/completions)."""
    answer = answer_chat([{"role": "user", "content": prompt}], [], must_call=None, limit=limit, least=least, ignore_eos=ignore_eos, thinks=False, stop=stop)
    return answer


def gibberish(limit: int) -> Answer:
    """What a model says whose KV cache or kernels are broken: one character, over and over, and all of it thinking."""
    return Answer(reasoning=["!"] * min(limit, 256), complete=False)


def _known(question: str) -> tuple[str, str]:
    """Thought and answer for a question that has one; empty texts otherwise."""
    lower = question.lower()
    if re.search(r"\b(python|function|code|program)\b", lower) and re.search(r"\b(write|create|implement|give|define|code)\b", lower):
        return _code(question, lower)
    if match := re.search(r"capital (?:city )?of (?:the )?([a-z ]+)", lower):
        country = next((name for name in CAPITALS if match[1].strip().startswith(name)), None)
        if country:
            name = country.title()
            shown = f"the {name}" if country in {"netherlands", "philippines", "united kingdom", "united states"} else name
            return (f"The user asks for the capital of {shown}. It is {CAPITALS[country]}. I can answer in one sentence.",
                    f"The capital of {shown} is {CAPITALS[country]}.")
    if match := re.search(r"(-?\d+)\s*(\+|-|\*|x|×|times|plus|minus)\s*(-?\d+)", lower):
        a, b = int(match[1]), int(match[3])
        result = {"+": a + b, "plus": a + b, "-": a - b, "minus": a - b}.get(match[2], a * b)
        return f"This is arithmetic: {match[0].strip()} makes {result}.", f"{match[0].strip()} = {result}"
    times = [int(hours) * 60 + int(minutes) for hours, minutes in re.findall(r"\b(\d{1,2}):(\d{2})\b", lower)]
    if len(times) == 2 and "how long" in lower:
        hours, minutes = divmod((times[1] - times[0]) % (24 * 60), 60)
        taken = " ".join(f"{count} {unit}{'s' if count != 1 else ''}" for count, unit in ((hours, "hour"), (minutes, "minute")) if count)
        return f"From the first time to the second it is {hours * 60 + minutes} minutes, that is {taken}.", f"It takes {taken}."
    for words, fact in _FACTS:
        if all(word in lower for word in words):
            return "This is a plain fact. I know it and answer directly.", fact
    return "", ""


def _code(question: str, lower: str) -> tuple[str, str]:
    """A Python function that does what was asked for, under the name that was asked for."""
    for words, name, parameters, result, says, body in _CODE:
        if all(word in lower for word in words):
            break
    else:
        name, parameters, result, says, body = "solve", "items: list", "list", "The items without repeats, in their first order.", \
            "return list(dict.fromkeys(items))"
    asked = re.search(r"(?:named|called|function)\s+`?([a-z_][a-z0-9_]*)`?\s*\(", question) or re.search(r"(?:named|called)\s+`?([a-z_][a-z0-9_]*)`?", question) \
        or re.search(r"`([a-z_][a-z0-9_]*)(?:\([^`]*\))?`", question)
    name = asked[1] if asked else name
    lines = "\n".join("    " + line for line in body.split("\n"))
    code = f'def {name}({parameters}) -> {result}:\n    """{says}"""\n{lines}\n'
    thought = f"I need a small function. {says} I write it plainly, with type hints and a docstring, and without imports."
    return thought, f"```python\n{code}```\n\n`{name}` needs nothing outside the standard library."


def _asked_length(question: str) -> int | None:
    """Tokens for "in 300 words" or "200 tokens"; None if no length was asked for."""
    if match := re.search(r"(\d{1,5})[ -](words?|tokens?)\b", question.lower()):
        return int(int(match[1]) * (1.25 if match[2].startswith("word") else 1))
    return None


def _wanted_tool(question: str, tools: list[dict[str, Any]], must_call: str | None) -> dict[str, Any] | None:
    """The function to call: the named one, or the one whose name and description share most words with the question."""
    functions = [tool["function"] for tool in tools]
    if must_call:
        return next(function for function in functions if function["name"] == must_call)
    words = set(re.findall(r"[a-z]{3,}", question.lower())) - {"the", "and", "what", "for", "you", "are", "tool", "with", "use", "call", "please"}
    best, score = None, 0
    for function in functions:
        about = re.findall(r"[a-z]{3,}", f"{function['name']} {function.get('description') or ''}".lower().replace("_", " "))
        shared = len(words & set(about))
        if function["name"].lower() in question.lower():
            shared += 5
        if shared > score:
            best, score = function, shared
    if best is None and functions and (must_call == "" or re.search(r"\b(use|call)\b.*\b(tool|function)\b", question.lower())):
        return functions[0]
    return best


def _arguments(schema: dict[str, Any], question: str) -> dict[str, Any]:
    """A value for each required property (each property, if none is required), taken from the question where it has one."""
    properties: dict[str, Any] = schema.get("properties") or {}
    names = [name for name in schema.get("required") or properties if name in properties]
    numbers = [float(n) if "." in n else int(n) for n in re.findall(r"-?\d+(?:\.\d+)?", question)]
    return {name: _argument(name, properties[name], question, numbers) for name in names}


def _argument(name: str, schema: dict[str, Any], question: str, numbers: list[Any]) -> Any:
    kind = schema.get("type", "string")
    if choices := schema.get("enum"):
        return next((choice for choice in choices if str(choice).lower() in question.lower()), choices[0])
    if kind in {"integer", "number"}:
        value = numbers.pop(0) if numbers else 1
        return int(value) if kind == "integer" else value
    if kind == "boolean":
        return True
    if kind == "array":
        return [_argument(name, schema.get("items") or {}, question, numbers)]
    if kind == "object":
        return _arguments(schema, question)
    if quoted := re.search(r"[\"'“]([^\"'”]+)[\"'”]", question):
        return quoted[1]
    names = re.findall(r"(?<![.?!]\s)(?<!^)\b[A-Z][\w-]*(?:\s+[A-Z][\w-]*)*", question.strip())
    if names and name.lower() not in {"query", "question", "text", "prompt", "input"}:
        return names[-1]
    return question.strip()


def _stop_at(answer: Answer, stop: list[str]) -> None:
    """Ends the content before the first of the stop texts."""
    text = "".join(answer.content)
    places = [(place, end) for end in stop if end and (place := text.find(end)) >= 0]
    if places:
        place, answer.stop_reason = min(places)
        answer.content = tokenize(text[:place])


def _cut(answer: Answer, limit: int) -> Answer:
    """The answer's first `limit` tokens."""
    if answer.tokens <= limit:
        return answer
    answer.complete = False
    answer.stop_reason = None
    left = limit - len(answer.reasoning)
    answer.reasoning = answer.reasoning[:limit]
    answer.content = answer.content[: max(0, left)]
    left -= len(answer.content)
    if answer.tool_call and left <= 0:
        answer.tool_call, answer.arguments = None, []
    elif answer.tool_call:
        answer.arguments = answer.arguments[: left - 1]
    return answer
