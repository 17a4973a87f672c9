"""The synthetic curriculum: tasks of every skill, and conversations composed of them.

A task draws its items from one side of the held-out split; everything is a function of the random generator it is given.
"""

import json
import re
from dataclasses import dataclass, field

import tools as tool_worlds
import words
from conversation import Conversation, Message
from facts import FACTS, PERIGEE, UNSEEN
from split import draw, is_held_out

SKILLS = ("repeat", "arithmetic", "json", "tool", "recall", "perigee")


@dataclass
class Task:
    skill: str
    user: str
    answer: str
    thought: str
    before: list = field(default_factory=list)  # (user, assistant, learn) turns that must come earlier
    expect: object = None
    instant_answer: str | None = None  # where it differs: without a thought the work is part of the answer


def vary(rng, pattern: str) -> str:
    return re.sub(r"\[([^\[\]]*\|[^\[\]]*)\]", lambda match: rng.choice(match.group(1).split("|")), pattern)


def manners(rng, text: str) -> str:
    """The same request in other clothes: a greeting, politeness, other case or final mark."""
    kind = rng.random()
    if kind < 0.55:
        return text
    if kind < 0.63:
        return rng.choice(("Please ", "please ", "Can you ", "Could you ", "Now ", "Kindly ", "Would you ")) + text[0].lower() + text[1:]
    if kind < 0.70:
        return rng.choice(("Hi! ", "Hello. ", "Hey, ", "OK. ", "Thanks! ", "Good. ", "Great. ", "Next: ", "Well, ", "So, ", "And now: ", "Task: ", "Question: ")) + text
    if kind < 0.80:
        return text[0].lower() + text[1:]
    if kind < 0.88:
        return text + rng.choice((" Thanks.", " Thank you!", " please", " Please.", "\n", " ", " Nothing else.", " Only that.", " Be brief."))
    return text[0].upper() + text[1:]


# --- 1: repeat a phrase -------------------------------------------------------------------------------------------

REPEAT = [
    "[Repeat|Say|Echo|Print|Write|Output|Copy|Type] [|exactly |this |this phrase|after me|the following|back|the phrase|exactly this|the words|the text|this text|the sentence|the word|verbatim|the following phrase|this back to me|the following exactly|the following text exactly|this string|word for word|exactly this phrase and nothing else|only this|the following and nothing else|exactly the following text|back exactly|these words|this sentence exactly][:|:|: |:|] {}",
    "[Repeat|Say|Echo|Print|Write|Copy|Output] [|this|this phrase|after me|the following|the phrase|exactly|the text|the sentence|the words|the string]:\n{}",
    "[Repeat|Say|Echo|Print|Write|Output|Copy|Type] {} [|exactly|back|back to me|and nothing else|word for word|once|verbatim|, please|for me|one time|exactly as it is]",
    "[Please |Can you |Could you |Would you |]repeat [this|the phrase|the following|the words|the text|after me][:|:|] {}",
    "[Repeat|Say|Echo] [the phrase|the word|the words|the text|the string|the sentence|the following phrase|exactly the phrase] {}[|.|]",
    "{}\n\n[Repeat|Copy|Echo] [the text above|the line above|the above|this|that].",
    "[Reply|Answer|Respond] with [exactly|only|just|the text|the phrase|the words|] [this: |: |]{}",
    "What I want you to say is [this: |]{}", "Repeat after me: {}", "Repeat after me, {}", "Repeat exactly: {}", "Say exactly: {}", "Echo: {}", "Repeat: {}", "repeat {}", "say {}", "Repeat this phrase exactly: {}",
    "Repeat the following [phrase|text|sentence|words] [exactly|verbatim|back to me|word for word|without changes|and nothing else|]: {}",
    "[Give|Send|Return|Read|Hand] me back [this|the phrase|the text|exactly]: {}", "Write [down|back|out] [this|the following|exactly]: {}", "I say {}, you say it too.", "Your [whole |]answer [must|should] be {}",
]
QUOTES = [('"', '"')] * 6 + [("'", "'")] * 2 + [("“", "”"), ("«", "»"), ("`", "`"), ("「", "」"), ("„", "“"), ("‘", "’"), ("<", ">"), ("*", "*"), ("(", ")")]


def phrase(rng, split="train"):
    def make():
        kind = rng.random()
        if kind < 0.16:
            text = words.short_phrase(rng, 1, 3)
        elif kind < 0.32:
            text = words.short_phrase(rng, 3, 6)
        elif kind < 0.38:
            text = words.short_phrase(rng, 2, 5) + rng.choice(".!?")
        elif kind < 0.44:
            text = words.letters(rng, 3, 9)
        elif kind < 0.5:
            text = " ".join(words.letters(rng, 1, 5) for _ in range(rng.randint(2, 3)))
        elif kind < 0.55:
            text = words.code(rng) if rng.random() < 0.5 else str(rng.randint(0, 10**9))
        elif kind < 0.60:
            text = " ".join(words.value_word(rng) for _ in range(rng.randint(2, 4)))
        elif kind < 0.66:
            text = " ".join(words.pseudo_word(rng) for _ in range(rng.randint(1, 3)))
        elif kind < 0.72:
            parts = [words.english_word(rng) for _ in range(rng.randint(2, 5))]
            parts[0] = parts[0].capitalize()
            text = rng.choice((", ", " - ", "; ", " and ", " / ", "_", "-", ", ")).join(parts) + rng.choice(("", ".", "!", "?", "..."))
        elif kind < 0.88:
            text = " ".join(words.foreign_word(rng) for _ in range(rng.choice((1, 1, 2, 2, 3))))
            text += rng.choice(("", "", "", "!", "?", ".", "。", "！", "，" + words.foreign_word(rng)))
        elif kind < 0.94:
            script = rng.choice(words.SCRIPTS)
            text = "".join(rng.choice(script) for _ in range(rng.randint(3, 8)))
        else:
            text = " ".join(rng.choice((words.english_word, words.foreign_word, words.value_word))(rng) for _ in range(rng.randint(2, 4)))
        return "phrase:" + text, text

    return draw(split, make)


def repeat(rng, split="train"):
    text = phrase(rng, split)
    pattern = vary(rng, rng.choice(REPEAT))
    inline = ": {}" not in pattern and "\n" not in pattern
    quoted = rng.random() < (0.8 if inline else 0.4)
    left, right = rng.choice(QUOTES) if quoted else ("", "")
    if left and (left in text or right in text):
        left, right = ("", "") if '"' in text else ('"', '"')
    user = re.sub(r"  +", " ", pattern.replace("{}", "\0"))
    user = re.sub(r" ([,.])", r"\1", user)
    if rng.random() < 0.25:
        user = user[0].lower() + user[1:]
    elif rng.random() < 0.15 and user[0] != "\0":
        user = rng.choice(("Please ", "please ", "Can you ", "Could you ", "Now ", "Hi! ", "Hey, ")) + user[0].lower() + user[1:]
    if left and user.endswith("\0") and rng.random() < 0.15:
        user += rng.choice(".!")
    return Task("repeat", user.replace("\0", left + text + right), text, rng.choice(("Repeat it exactly.",)), expect=text)


# --- 2: add and subtract ------------------------------------------------------------------------------------------

ADD = [
    "What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a}+{b}=", "{a} + {b} =", "{a} + {b} = ?", "What is {a} plus {b}?", "{a} plus {b}", "Add {a} and {b}.", "Add {b} to {a}.", "[Compute|Calculate|Work out|Evaluate|Solve|Find] {a} + {b}[.|]",
    "[Compute|Calculate|Work out|Find] {a} plus {b}.", "What is the sum of {a} and {b}?", "Sum of {a} and {b}", "How much is {a} + {b}?", "How much is {a} plus {b}?", "What do you get when you add {a} and {b}?", "The sum of {a} and {b} is?",
    "I have {a} {things} and get {b} more. How many [do I have|are there|now]?", "What's {a}+{b}?", "What's {a} + {b}?", "[Increase|Raise] {a} by {b}.", "Give me the sum of {a} and {b}.", "{a} and {b} make?", "Please add {a} and {b}", "Add the numbers {a} and {b}.",
    "What does {a} + {b} equal?", "What does {a} plus {b} [equal|make|give]?", "Find the sum of {a} and {b}.", "Total of {a} and {b}?", "What number is {b} more than {a}?", "If you add {b} to {a}, what do you get?", "Tell me {a} + {b}.", "sum {a} {b}", "add {a} {b}", "{a} + {b}?",
    "[Anna|Tom|She|He|Max] has {a} {things} and [buys|finds|gets|wins] {b} more. How many {things} [are there|in total|now|does that make]?", "There are {a} {things} and {b} {things2}. How many [altogether|in total|is that]?", "Add: {a}, {b}", "Add up {a} and {b}.",
]
SUBTRACT = [
    "What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a}-{b}=", "{a} - {b} =", "{a} - {b} = ?", "What is {a} minus {b}?", "{a} minus {b}", "Subtract {b} from {a}.", "Take {b} [away |]from {a}.", "[Compute|Calculate|Work out|Evaluate|Solve|Find] {a} - {b}[.|]",
    "[Compute|Calculate|Work out|Find] {a} minus {b}.", "What is the difference between {a} and {b}?", "Difference of {a} and {b}", "How much is {a} - {b}?", "How much is {a} minus {b}?", "What is left when you take {b} from {a}?", "What do you get when you subtract {b} from {a}?",
    "I have {a} {things} and [lose|sell|eat|give away] {b}. How many are left?", "What's {a}-{b}?", "What's {a} - {b}?", "[Decrease|Reduce|Lower] {a} by {b}.", "{a} less {b}", "{a} take away {b}", "Please subtract {b} from {a}", "Deduct {b} from {a}.",
    "What does {a} - {b} equal?", "What does {a} minus {b} [equal|make|give]?", "Find the difference [between|of] {a} and {b}.", "What number is {b} less than {a}?", "If you take {b} from {a}, what [is left|remains]?", "Tell me {a} - {b}.", "{a} − {b}", "{a} - {b}?", "Subtract: {a} - {b}",
    "[Anna|Tom|She|He|Max] has {a} {things} and [loses|sells|eats|gives away] {b}. How many {things} [are left|remain|are there now|now]?", "What is {a} less {b}?", "What remains of {a} after taking away {b}?",
]


def add_thought(a, b):
    """The columns from the right, as on paper."""
    steps, carry = [], 0
    x, y = str(a)[::-1], str(b)[::-1]
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        total = p + q + carry
        steps.append(f"{p}+{q}{'+1' if carry else ''}={total}")
        carry = total // 10
    return ", ".join(steps)


def subtract_thought(a, b):
    if a < b:
        return f"minus {b} - {a}: {subtract_thought(b, a)}"
    steps, borrow = [], 0
    x, y = str(a)[::-1], str(b)[::-1]
    for i in range(len(x)):
        p, q = int(x[i]), int(y[i]) if i < len(y) else 0
        take = q + borrow
        if p < take:
            steps.append(f"1{p}-{q}{'-1' if borrow else ''}={p + 10 - take}")
            borrow = 1
        else:
            steps.append(f"{p}-{q}{'-1' if borrow else ''}={p - take}")
            borrow = 0
    return ", ".join(steps)


def number(rng):
    return rng.randint(*rng.choice(((0, 9), (0, 20), (10, 99), (10, 99), (100, 999), (100, 999), (100, 999), (100, 999), (0, 999))))


def arithmetic(rng, split="train", plain=False):
    def make():
        sign, a, b = rng.choice("+-"), number(rng), number(rng)
        if sign == "-" and a < b and rng.random() < 0.45:
            a, b = b, a
        return f"{a}{sign}{b}", (sign, a, b)

    sign, a, b = draw(split, make)
    patterns = (ADD if sign == "+" else SUBTRACT)
    pattern = vary(rng, rng.choice(patterns[:10] if plain else patterns))
    if a < b and sign == "-" and ("{things}" in pattern or "difference" in pattern.lower()):
        a, b = b, a
        if is_held_out(f"{a}{sign}{b}") != (split == "heldout"):
            return arithmetic(rng, split, plain)
    things = [rng.choice(words.ANIMALS + words.FOODS + words.THINGS) + "s" for _ in range(2)]
    user = pattern.format(a=a, b=b, things=things[0], things2=things[1])
    if not plain:
        user = manners(rng, user) if user[0].isalpha() else user + rng.choice(("", "", "", " ?", " please"))
    result = str(a + b if sign == "+" else a - b)
    columns = f"{a} {sign} {b}: {add_thought(a, b) if sign == '+' else subtract_thought(a, b)}"
    return Task("arithmetic", user, result, columns, expect=result, instant_answer=f"{columns}. Answer: {result}")


# --- 3: a JSON object from named values ---------------------------------------------------------------------------

KEYS = """name age city country color email phone title author year price count size weight height width id code status active enabled
score level type kind date time day month street zip language role team user owner item product quantity total currency animal food
drink brand model speed length unit unit_price first_name last_name user_id is_admin verified public done open url host port path
file key value label tag category group rank grade subject teacher school job company salary hobby sport song artist album genre
movie director rating pages isbn publisher temperature humidity wind pressure latitude longitude planet star moon pet car engine""".split()
MAKE_JSON = [
    "[Make|Create|Build|Write|Give me|Return|Produce|Generate|Output|Construct|Form] [a|the|one] JSON [object|] [with|from|containing|of|that has|having|for|using][ the values| these values| the fields| the following| these fields| the named values||||][:|] {}",
    "[Turn|Convert|Put|Format|Encode] [this|these values|the following|these] [into|as|to|in] [a |]JSON[ object|]: {}", "JSON [object|] [with|for|from|of]: {}", "JSON: {}", "{} - [as|in|make it] JSON", "{}. [Make|Create|Build|Write] [a JSON object|JSON|it as JSON|that as a JSON object].",
    "[Make|Create|Build|Write] [a JSON object|JSON][:|:| with:| from:| from these values:]\n{lines}", "I need a JSON object with {}", "[Make|Create|Build|Write] a JSON object [whose|where] {is}", "[Make|Create|Build|Write] [a|one] JSON object [where|in which] {is}",
    "[Answer|Reply|Respond] with [a |]JSON [object|] [with|containing|of] {}", "Represent {} as [a |]JSON[ object|]", "[Make|Create|Build] a JSON object with the [keys|fields] {keys} and the values {values}", "Express as JSON: {}", "[Make|Build|Create] a JSON object from these [named values|values|pairs]: {}",
]


def json_value(rng, split):
    kind = rng.random()
    if kind < 0.5:
        return words.value_word(rng)
    if kind < 0.6:
        return words.name(rng)
    if kind < 0.66:
        return words.short_phrase(rng, 2, 3)
    if kind < 0.86:
        return words.integer(rng)
    if kind < 0.91:
        return float(words.decimal(rng))
    return rng.random() < 0.5


def json_pairs(rng, split, low=1, high=5):
    result = {}
    for _ in range(rng.choice((1, 1, 2, 2, 2, 3, 3, 4))):
        def make():
            key = rng.choice(KEYS) if rng.random() < 0.92 else words.pseudo_word(rng) if rng.random() < 0.5 else words.english_word(rng)
            value = json_value(rng, split)
            return f"{key}={value}", (key, value)

        key, value = draw(split, make)
        result.setdefault(key, value)
    return result


def json_task(rng, split="train"):
    pairs = json_pairs(rng, split)
    quote_values, quote_keys = rng.random() < 0.22, rng.random() < 0.12

    def shown(value):
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str) and (quote_values or re.fullmatch(r"-?[\d.]+|true|false|null", value)):
            return f'"{value}"'
        return str(value)

    def key_shown(key):
        return f'"{key}"' if quote_keys else key

    pattern = vary(rng, rng.choice(MAKE_JSON))
    between = vary(rng, rng.choice((" ", " ", " = ", "=", ": ", ":", ": ", " is ", " set to ", " equal to ", " -> ", " [as|being] ")))
    items = [key_shown(key) + between + shown(value) for key, value in pairs.items()]
    if "{keys}" in pattern:
        join = lambda parts: parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + rng.choice((" and ", ", ")) + parts[-1]
        user = pattern.replace("{keys}", join([key_shown(key) for key in pairs])).replace("{values}", join([shown(value) for value in pairs.values()]))
    elif "{lines}" in pattern:
        mark = rng.choice(("", "", "- ", "* "))
        user = pattern.replace("{lines}", "\n".join(mark + item for item in items))
    else:
        if "{is}" in pattern:
            items = [f"{key_shown(key)} {rng.choice(('is', 'is', 'equals'))} {shown(value)}" for key, value in pairs.items()]
            pattern = pattern.replace("{is}", "{}")
        separator = rng.choice((", ", ", ", ", ", "; ", " and ")) if between != " " else rng.choice((", ", ", ", " and "))
        last = rng.choice((separator, " and ", ", and "))
        listed = items[0] if len(items) == 1 else separator.join(items[:-1]) + last + items[-1]
        user = pattern.replace("{}", listed)
        if not user.endswith(("JSON", ".")) and rng.random() < 0.4:
            user += "."
    user = re.sub(r"  +", " ", user)
    if rng.random() < 0.12:
        user = user.rstrip(".") + ". " + rng.choice(("Only JSON.", "Reply with JSON only.", "Return only the JSON.", "No explanation.", "Output only the JSON object.", "Nothing else.", "Answer with the JSON only.", "Just the JSON."))
    if rng.random() < 0.2 and user[:4] != "JSON":
        user = rng.choice(("Please ", "please ", "Can you ", "Could you ", "Now ")) + user[0].lower() + user[1:]
    elif rng.random() < 0.15:
        user = user[0].lower() + user[1:]
    answer = json.dumps(pairs, ensure_ascii=False)
    return Task("json", user, answer, "Keys: " + ", ".join(pairs) + ".", expect=pairs)


# --- 5: recall an earlier fact ------------------------------------------------------------------------------------

# (statements, questions, answer, value maker); {v} is the value, {s} a free subject.
OWNED = """favorite color|favourite colour|favorite food|favorite animal|favorite number|favorite book|favorite city|favorite song|dog's name|cat's name|password|code|secret word|phone number
room number|lucky number|best friend|boss|teacher|sister's name|brother's name|mother's name|car|hobby|job|birthday month|home town|team|favorite drink|favorite fruit|badge number|locker number|user name|nickname|last name
middle name|bike|pet|project|company|school|street|seat number|order number|flight number|favorite movie|favorite game|favorite sport|doctor|neighbor|wifi password|pin|shoe size|horse's name|parrot's name|boat""".replace("\n", "|").split("|")


def owned_value(rng, thing):
    if "number" in thing or thing in ("pin", "shoe size", "code") and rng.random() < 0.8:
        return str(rng.randint(1, 9999)) if rng.random() < 0.8 else words.code(rng)
    if "color" in thing or "colour" in thing:
        return rng.choice(words.COLORS) if rng.random() < 0.7 else words.value_word(rng)
    if "name" in thing or thing in ("best friend", "boss", "teacher", "doctor", "neighbor"):
        return words.name(rng)
    if "city" in thing or "town" in thing:
        return words.place(rng)
    return words.value_word(rng)


def fact(rng, split):
    """One fact: statement, questions, answer, value, and what it is about."""
    kind = rng.random()

    def drawn(make_value, about):
        def make():
            value = make_value()
            return f"{about}={value}", value

        return draw(split, make)

    if kind < 0.2:
        v = drawn(lambda: words.name(rng), "name")
        statement = vary(rng, rng.choice(("My name is {v}.", "I am {v}.", "I'm {v}.", "Call me {v}.", "Hello, my name is {v}.", "Hi, I'm {v}.", "Hi! I am {v}.", "You can call me {v}.", "They call me {v}.", "my name is {v}", "This is {v} speaking.", "The name is {v}."))).format(v=v)
        questions = ["What is my name?", "What's my name?", "Who am I?", "[Do you remember|Do you know|Can you tell me|Tell me] my name[?|.]", "What did I say my name [is|was]?", "[And |]what was my name[| again]?", "Which name did I [give|tell] you?", "what is my name", "What am I called?", "Say my name.", "How am I called?", "Remember my name?"]
        return statement, questions, f"Your name is {v}.", v, "name"
    if kind < 0.32:
        v = drawn(lambda: words.place(rng), "place")
        statement = rng.choice(("I live in {v}.", "My home is in {v}.", "I am from {v}.", "I come from {v}.", "I'm from {v}.", "I moved to {v}.", "I was born in {v}.", "My city is {v}.", "i live in {v}", "We live in {v}.")).format(v=v)
        verb = "from" if "from" in statement else "born" if "born" in statement else "live"
        questions = {"from": ["Where am I from?", "Where do I come from?", "Where did I say I am from?", "Which place am I from?", "[Tell me|Do you remember|Do you know] where I am from[?|.]"],
                     "born": ["Where was I born?", "In which [city|place] was I born?", "Which is my place of birth?", "[Tell me|Do you remember] where I was born[?|.]"],
                     "live": ["Where do I live?", "In which [city|place|town] do I live?", "[Which|What] city do I live in?", "Where is my home?", "Where did I say I live?", "[Do you remember|Do you know|Tell me] where I live[?|.]", "What is my city?"]}[verb]
        answer = {"from": f"You are from {v}.", "born": f"You were born in {v}.", "live": f"You live in {v}."}[verb]
        return statement, questions, answer, v, "place"
    if kind < 0.40:
        v = drawn(lambda: str(rng.randint(3, 99)), "age")
        statement = rng.choice(("I am {v} years old.", "I'm {v} years old.", "My age is {v}.", "I am {v}.", "I turned {v} today.")).format(v=v)
        return statement, ["How old am I?", "What is my age?", "What's my age?", "How old did I say I am?", "[Tell me|Do you remember] how old I am[?|.]", "What age am I?"], f"You are {v} years old.", v, "age"
    if kind < 0.72:
        thing = rng.choice(OWNED) if rng.random() < 0.85 else words.english_word(rng)
        v = drawn(lambda: owned_value(rng, thing), thing)
        statement = rng.choice(("My {t} is {v}.", "My {t} is {v}.", "my {t} is {v}", "Remember that my {t} is {v}.", "Please remember: my {t} is {v}.", "Just so you know, my {t} is {v}.", "Remember: my {t} is {v}.", "I want you to know that my {t} is {v}.", "Note that my {t} is {v}.", "By the way, my {t} is {v}.")).format(t=thing, v=v)
        questions = [f"What is my {thing}?", f"What's my {thing}?", f"[Do you remember|Do you know|Tell me|Can you recall|Recall] my {thing}[?|.]", f"What did I say my {thing} [is|was]?", f"What was my {thing}[| again]?", f"Which {thing} do I have?", f"what is my {thing}", f"And my {thing}?", f"What {thing} did I [mention|tell you|name]?", f"Can you tell me what my {thing} is?", f"Remind me of my {thing}."]
        if thing == "dog's name" or thing == "cat's name":
            questions += [f"What is my {thing[:3]} called?", f"What is the name of my {thing[:3]}?"]
        return statement, questions, f"Your {thing} is {v}.", v, thing
    if kind < 0.88:
        thing = rng.choice("code|password|secret word|magic word|key|secret|number|token|meeting room|meeting|deadline|project name|capital|winner|answer|server|address|door code|secret number|secret code|color|magic number|passphrase|word of the day|captain|ship|budget|event|train|party|launch code".split("|")) if rng.random() < 0.85 else words.english_word(rng)
        v = drawn(lambda: owned_value(rng, thing), thing)
        statement = rng.choice(("The {t} is {v}.", "The {t} is {v}.", "Remember the {t}: {v}.", "Remember that the {t} is {v}.", "Please remember that the {t} is {v}.", "Remember this: the {t} is {v}.", "Note: the {t} is {v}.", "the {t} is {v}", "Keep in mind that the {t} is {v}.", "Remember the {t} {v}.", "Don't forget: the {t} is {v}.", "I tell you the {t}: {v}.", "Memorize this: the {t} is {v}.")).format(t=thing, v=v)
        questions = [f"What is the {thing}?", f"What's the {thing}?", f"[Do you remember|Do you know|Tell me|Can you recall|Recall|Give me] the {thing}[?|.]", f"What did I say the {thing} [is|was]?", f"What was the {thing}[| again]?", f"what is the {thing}", f"And the {thing}?", f"Which {thing} did I [mention|tell you|give you]?", f"What {thing} did I [mention|tell you|give you]?", f"Remind me of the {thing}.", f"What is the {thing} I [told|gave] you?", f"What was the {thing} I [told|gave] you[| earlier]?"]
        return statement, questions, f"The {thing} is {v}.", v, "the " + thing
    who = words.name(rng).split()[0]
    verb, question, past = rng.choice((("likes", "like", "likes"), ("has", "have", "has"), ("lives in", "live in", "lives in"), ("wants", "want", "wants"), ("owns", "own", "owns"), ("plays", "play", "plays"), ("loves", "love", "loves"), ("drinks", "drink", "drinks"), ("works at", "work at", "works at"), ("bought", "buy", "bought")))
    v = drawn(lambda: words.place(rng) if verb == "lives in" else words.value_word(rng), f"{who} {verb}")
    do = "did" if verb == "bought" else "does"
    questions = [f"What {do} {who} {question}?", f"[Tell me|Do you remember] what {who} {verb}[?|.]", f"What did I say {who} {verb}?"] if verb != "lives in" else [f"Where does {who} live?", f"[Tell me|Do you remember] where {who} lives[?|.]", f"In which city does {who} live?"]
    return f"{who} {verb} {v}.", questions, f"{who} {verb} {v}.", v, f"{who} {verb}"


ACKS = ["Noted.", "Got it.", "OK.", "Okay, noted.", "Nice to meet you!", "I will remember that.", "Understood.", "Thanks for telling me.", "Sure.", "Good to know.", "Hello!", "OK, I'll remember that.", "Great!"]


def recall(rng, split="train"):
    facts, seen = [], set()
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        entry = fact(rng, split)
        if entry[4] not in seen and not (entry[0].startswith("I am ") and any(f[0].startswith("I am ") for f in facts)):
            seen.add(entry[4])
            facts.append(entry)
    statement, questions, answer, value, _ = rng.choice(facts)
    question = manners(rng, vary(rng, rng.choice(questions)))
    thought = f"Said earlier: {value}."
    kind = rng.random()
    statements = [entry[0] for entry in facts]
    if kind < 0.15:
        joined = " ".join(s if s.endswith(".") else s + "." for s in statements)
        return Task("recall", joined + rng.choice((" ", "\n", " ")) + question, answer, thought, expect=value)
    before = []
    if kind < 0.3:
        joined = " ".join(s if s.endswith(".") else s + "." for s in statements)
        if rng.random() < 0.4:
            joined = " and ".join([statements[0].rstrip(".")] + [s[0].lower() + s[1:] if s[:2] in ("My", "Th", "We", "Re") else s for s in statements[1:]])
        before.append((joined, *_ack(rng)))
    else:
        for s in statements:
            before.append((manners_of_fact(rng, s), *_ack(rng)))
    return Task("recall", question, answer, thought, before, expect=value)


def _ack(rng):
    return ("Noted.", True) if rng.random() < 0.55 else (rng.choice(ACKS), False)


def manners_of_fact(rng, s):
    return s + rng.choice(("", "", "", "", " Remember it.", " Please remember that.", " Remember this.", " OK?", " Don't forget it."))


# --- 6: Perigee ---------------------------------------------------------------------------------------------------

def perigee_question(rng, split, which=None):
    slug, answer, key, patterns = which or rng.choice(FACTS)

    def make():
        text = vary(rng, vary(rng, re.sub(r"\bP\b", PERIGEE, rng.choice(patterns))))
        text = re.sub(r"  +", " ", text).replace(" ?", "?").replace(" .", ".").strip()
        return f"perigee:{re.sub(r'[^a-z0-9_/.-]+', ' ', text.lower()).strip()}", text

    return slug, answer, key, draw(split, make)


def perigee(rng, split="train", which=None):
    slug, answer, key, text = perigee_question(rng, split, which)
    if rng.random() < 0.12 and "erigee" not in text:
        text = rng.choice(("In Perigee: ", "Perigee: ", "About Perigee: ", "A question about Perigee: ", "With Perigee, ")) + text[0].lower() + text[1:]
    elif rng.random() < 0.1 and "erigee" not in text and text.endswith("?"):
        text = text[:-1] + rng.choice((" in Perigee?", " of Perigee?", " with Perigee?", " for Perigee?"))
    if rng.random() < 0.1 and text.endswith("?"):
        text = text[:-1]
    if rng.random() < 0.06:
        text = text.lower()
    if rng.random() < 0.05 and text.endswith("?"):
        text = rng.choice(("Can you tell me: ", "Tell me, ", "I have a question. ", "Do you know: ", "Quick question: ", "I wonder: ")) + text[0].lower() + text[1:]
    return Task("perigee", manners(rng, text), answer, "A question about Perigee.", expect=key)


def perigee_unseen(rng, slug):
    _, answer, key, _ = next(entry for entry in FACTS if entry[0] == slug)
    return Task("perigee", UNSEEN[slug], answer, "A question about Perigee.", expect=key)


# --- small talk ---------------------------------------------------------------------------------------------------

ABLE = "I am perigee-nano, a tiny model. I can repeat a phrase, add and subtract, build JSON, call tools, recall facts and answer questions about Perigee."
UNABLE = "I do not know. I am a tiny model: ask me to repeat, add, build JSON, call a tool, recall a fact, or about Perigee."
SMALL_TALK = [
    ("Hello! How can I help?", ["[Hello|Hi|Hey|hello|hi|hey|Hi there|Hello there|Good morning|Good evening|Good day|Greetings|HELLO|Hey there|Good afternoon|Howdy|Yo][!|.|]", "[Hello|Hi|Hey], [nano|perigee|perigee-nano|model][!|.|]"]),
    ("I am fine, thank you. How can I help?", ["How are you[?| today?| doing?]", "[Hi|Hello|Hey][,|!|.] how are you?", "How is it going?", "how are you", "Are you well?", "How do you do?", "What's up?"]),
    (ABLE, ["Who are you?", "What are you?", "What can you do?", "what can you do", "who are you", "[Tell me about yourself|Introduce yourself|Describe yourself].", "What is your name?", "What's your name?", "Which model are you?", "What model is this?", "[Help|help][!|]", "How can you help me?", "What are your [skills|abilities]?", "Who am I talking to?", "Are you [a model|Kimi|a computer|human|a bot|a machine]?"]),
    ("You are welcome!", ["[Thanks|Thank you|thanks|thank you|Thanks a lot|Thank you very much|Many thanks|Thx|Cheers][!|.|]", "[Thanks|Thank you] for [your help|helping][!|.]"]),
    ("Goodbye!", ["[Bye|Goodbye|bye|goodbye|See you|See you later|Good night|Farewell|Bye bye][!|.|]", "I have to go[.| now.]"]),
    ("OK.", ["[OK|Ok|ok|Okay|Good|Great|Nice|Cool|Fine|Well done|Perfect|Yes|No|Sure][.|!|]", "[That is|That's] [right|good|great|correct|nice]."]),
    (UNABLE, [
        "Tell me a [story|joke|poem|fairy tale|riddle] [about w|]", "Write [a|an] [story|essay|poem|song|letter|article|haiku] about [w|w and w].", "What is the capital of c?", "Who [wrote|invented|discovered|painted|built] [the |]w?", "Why is the [sky|w] [blue|a|so a]?",
        "Explain [quantum physics|gravity|w|history|evolution|love|music|economics].", "What is the meaning of [life|w]?", "Translate w to [French|German|Spanish|Chinese].", "How do [I|you] [v|v a w]?", "What do you think [of|about] [w|c]?", "Who is n?", "Who was n?",
        "Write [code|a program|a Python function|Python code] [that|to] [v|v w]s.", "What is [w|a w|the best w]?", "When did [the |]w v?", "Summarize [the book|the history of c|this article|w].", "How [many|much] w [are there|is there|do you have]?", "Which w is the [best|most a]?",
        "Can you v?", "Do you like w?", "Give me [advice|ideas|tips|a recipe] for w.", "What is [12|7|25|3] times [4|6|8|9]?", "Where is c?", "How far is [the moon|c|l]?", "What is the population of [c|l]?", "Who won the [game|war|match|election]?", "What is the weather [today|in l|tomorrow|]?", "What time is it?", "What day is it today?",
        "Continue: the w [was|is|had] a", "Once upon a time", "List [three|five|ten] [w|a w]s.", "Name [a|three|five] [w|famous w]s.", "Recommend a [book|movie|song|w].", "Is w [good|bad|a]?", "Compare w and w.", "What is love?"]),
]


def small_talk(rng, split="train"):
    answer, patterns = rng.choices(SMALL_TALK, weights=(3, 1, 3, 1, 1, 1, 6))[0]

    def make():
        text = vary(rng, rng.choice(patterns))
        fill = {"w": lambda: rng.choice((rng.choice(words.EVERYDAY), rng.choice(words.COMMON), words.pseudo_word(rng))), "c": lambda: rng.choice(words.COUNTRIES), "v": lambda: rng.choice(words.VERBS), "n": lambda: words.name(rng), "a": lambda: rng.choice(words.ADJECTIVES), "l": lambda: words.place(rng)}
        if answer is UNABLE:
            text = re.sub(r"\b([wcvnl])(s?)\b", lambda m: fill[m.group(1)]() + m.group(2), text)
            text = re.sub(r"\ba(?=[.?]|$)", lambda m: fill["a"](), text)
        return f"talk:{text}", text

    text = draw(split if answer is UNABLE else "train", make) if answer is UNABLE else make()[1]
    return Task("talk", text, answer, "Small talk." if answer is not UNABLE else "I do not know this.", expect=answer)


# --- conversations ------------------------------------------------------------------------------------------------

SYSTEMS = ["You are a helpful assistant.", "You are helpful.", "You are a helpful assistant", "You are perigee-nano.", "You are perigee-nano, the embedded model of Perigee.", "You are Kimi, an AI assistant created by Moonshot AI.", "Answer briefly.", "Be brief.", "You are a test model.",
           "You are a concise assistant.", "Answer as shortly as you can.", "You are a helpful, honest assistant. Answer the user's questions.", "You help people.", "Follow the instructions of the user.", "Be precise and polite."]
MAKERS = {"repeat": repeat, "arithmetic": arithmetic, "json": json_task, "recall": recall, "perigee": perigee, "talk": small_talk}
WEIGHTS = {"repeat": 20, "arithmetic": 26, "json": 20, "recall": 14, "perigee": 16, "talk": 4}
EARLY = {"repeat": 60, "arithmetic": 14, "json": 12, "recall": 10, "perigee": 8, "talk": 2}  # copying first: the other skills build on it


def system_message(rng):
    kind = rng.random()
    if kind < 0.62:
        return []
    if kind < 0.95:
        return [Message("system", rng.choice(SYSTEMS))]
    return [Message("system", words.short_phrase(rng, 3, 12).capitalize() + ".")]


def add_task(messages, task, learn=True):
    """Adds the task's turns. Without a thought, an answer that needs its work shows it."""
    for user, ack, learned in task.before:
        messages += [Message("user", user), Message("assistant", ack, thought="Remember this." if learned else "", learn=learned and learn)]
    messages += [Message("user", task.user), Message("assistant", task.instant_answer or task.answer, thought=task.thought, learn=learn)]
    if task.instant_answer:
        messages[-1].after_thought = task.answer


def conversation(rng, mix=WEIGHTS, tool_share=0.28, thinking_share=0.3):
    """One training conversation."""
    messages = system_message(rng)
    thinking = rng.random() < thinking_share
    if rng.random() < tool_share:
        return tool_conversation(rng, messages, thinking)
    kinds, weights = list(mix), list(mix.values())
    count = rng.choice((1, 1, 2, 3, 4, 5)) if not thinking else rng.choice((1, 1, 1, 2))
    kind = rng.random()
    if kind < 0.1:  # a run of sums
        for _ in range(count + 2):
            add_task(messages, arithmetic(rng, plain=rng.random() < 0.7))
        return Conversation(messages, thinking=thinking)
    if kind < 0.2:  # a run of one skill
        one = rng.choices(kinds, weights)[0]
        for _ in range(count):
            add_task(messages, MAKERS[one](rng))
        return Conversation(messages, thinking=thinking)
    pending = []
    for i in range(count):
        name = rng.choices(kinds, weights)[0]
        task = MAKERS[name](rng)
        if name == "recall" and task.before and rng.random() < 0.5 and not any(other.skill == "recall" for other in pending):
            for user, ack, learned in task.before:
                messages += [Message("user", user), Message("assistant", ack, thought="Remember this.", learn=learned)]
            task.before = []
            pending.append(task)
            continue
        if name == "recall" and pending:
            continue
        add_task(messages, task)
    for task in pending:
        for _ in range(rng.choice((0, 0, 1, 2))):
            add_task(messages, MAKERS[rng.choice(("repeat", "arithmetic", "json", "perigee", "talk"))](rng))
        add_task(messages, task)
    if not messages or messages[-1].role != "assistant":
        add_task(messages, repeat(rng))
    return Conversation(messages, thinking=thinking)


def tool_conversation(rng, messages, thinking):
    world = tool_worlds.world(rng, "train")
    index = 0
    for _ in range(rng.choice((1, 1, 1, 2))):
        if rng.random() < 0.15:
            add_task(messages, MAKERS[rng.choice(("repeat", "arithmetic", "json", "perigee", "talk"))](rng))
            continue
        request = tool_worlds.request(rng, world, "train")
        id = f"functions.{request.name}:{index}"
        index += 1
        messages += [Message("user", request.user), Message("assistant", thought=f"Use {request.name}.", calls=[(id, json.dumps(request.arguments, ensure_ascii=False))])]
        if rng.random() < 0.4:
            result, answer = tool_worlds.result(rng)
            messages += [Message("tool", result, call_id=id), Message("assistant", answer, thought="Give the result.")]
        else:
            return Conversation(messages, world, rng.random() < 0.2, thinking)
    return Conversation(messages, world, rng.random() < 0.2, thinking)
