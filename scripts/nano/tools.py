"""Worlds of declared tools, and requests that need exactly one of them."""

import json
import re
from dataclasses import dataclass

import words
from split import draw


@dataclass
class Request:
    name: str
    arguments: dict
    user: str


# name, description, {parameter: (type, what to draw)}, ways of asking. Required are the parameters that every request names.
KNOWN = [
    ("get_weather", "Get the weather[.| of a city.| for a city.| in a city.]", {"city": "place"}, ["What is the weather in {city}?", "What's the weather like in {city}?", "Weather in {city}?", "How is the weather in {city} [today|now|]?", "Tell me the weather in {city}.", "Is it raining in {city}?", "weather {city}", "I want to know the weather in {city}.", "How warm is it in {city}?", "Get the weather for {city}.", "Check the weather in {city}."]),
    ("get_weather", "Get the [current |]weather.", {"city": "place", "unit": ["celsius", "fahrenheit"]}, ["What is the weather in {city} in {unit}?", "Weather in {city}, in {unit}.", "Tell me the weather of {city} in {unit}.", "How warm is it in {city} in {unit}?", "What's the weather like in {city}? Use {unit}."]),
    ("get_forecast", "Get the weather forecast for some days.", {"city": "place", "days": "small"}, ["Forecast for {city} for {days} days.", "Give me the {days} day forecast for {city}.", "What will the weather be in {city} over the next {days} days?", "What is the forecast in {city} for the next {days} days?"]),
    ("get_time", "Get the [current |]time in a city.", {"city": "place"}, ["What time is it in {city}?", "Tell me the time in {city}.", "What's the time in {city}?", "time in {city}", "Current time in {city}?", "How late is it in {city}?"]),
    ("send_email", "Send an email.", {"to": "name1", "subject": "phrase"}, ["Send an email to {to} with [the |]subject {subject}.", "Email {to} about {subject}.", "Write an email to {to} with the subject {subject}.", "Send {to} an email about {subject}."]),
    ("send_message", "Send a [text |]message to somebody.", {"to": "name1", "text": "phrase"}, ["Send {to} the message {text}.", "Send a message to {to}: {text}", "Tell {to}: {text}", "Message {to} saying {text}.", "Text {to}: {text}", "Send {to} a message saying {text}."]),
    ("set_alarm", "Set an alarm.", {"time": "clock"}, ["Set an alarm for {time}.", "Wake me [up |]at {time}.", "I need an alarm at {time}.", "alarm at {time}", "Set my alarm to {time}."]),
    ("set_timer", "Start a timer.", {"minutes": "small"}, ["Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Timer: {minutes} minutes.", "Start a timer of {minutes} minutes.", "Set a {minutes} minute timer."]),
    ("search_web", "Search the web.", {"query": "phrase"}, ["Search the web for {query}.", "Search for {query}.", "Look up {query} [online|on the web|].", "Find {query} on the internet.", "Web search: {query}", "Google {query}."]),
    ("search", "Search for [documents|information|something].", {"query": "phrase"}, ["Search for {query}.", "Find {query}.", "Look up {query}.", "search {query}", "Can you search for {query}?"]),
    ("play_music", "Play a song.", {"song": "phrase"}, ["Play {song}.", "Play the song {song}.", "Put on {song}.", "I want to hear {song}.", "Play me {song}, please."]),
    ("translate", "Translate a text.", {"text": "phrase", "language": ["French", "German", "Spanish", "Italian", "Chinese", "Japanese", "Russian"]}, ["Translate {text} to {language}.", "Translate {text} into {language}.", "How do you say {text} in {language}?", "What is {text} in {language}?"]),
    ("add_event", "Add an event to the calendar.", {"title": "phrase", "date": "date"}, ["Add {title} to my calendar on {date}.", "Put {title} in the calendar for {date}.", "Create an event {title} on {date}.", "Schedule {title} for {date}."]),
    ("book_flight", "Book a flight.", {"origin": "place", "destination": "place"}, ["Book a flight from {origin} to {destination}.", "I want to fly from {origin} to {destination}.", "Get me a flight from {origin} to {destination}.", "Fly me from {origin} to {destination}."]),
    ("book_table", "Reserve a table in a restaurant.", {"people": "small", "time": "clock"}, ["Book a table for {people} [people |]at {time}.", "Reserve a table at {time} for {people} people.", "I need a table for {people} at {time}."]),
    ("convert_currency", "Convert an amount of money.", {"amount": "int", "from": "currency", "to": "currency"}, ["Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "Change {amount} {from} into {to}.", "What are {amount} {from} in {to}?"]),
    ("turn_on", "Turn [on |]a device[ on|].", {"device": "thing"}, ["Turn on the {device}.", "Switch on the {device}.", "Turn the {device} on.", "{device} on, please.", "Switch the {device} on."]),
    ("set_light", "Switch the light of a room.", {"room": ["kitchen", "bedroom", "bathroom", "garage", "hall", "office"], "on": "bool_on"}, ["Turn the light in the {room} {on}.", "Switch the {room} light {on}.", "Light {on} in the {room}.", "Turn {on} the light in the {room}."]),
    ("set_volume", "Set the volume.", {"level": "small"}, ["Set the volume to {level}.", "Volume {level}.", "Change the volume to {level}.", "Turn the volume to {level}.", "Make the volume {level}."]),
    ("set_temperature", "Set the temperature of the heating.", {"degrees": "small"}, ["Set the temperature to {degrees} degrees.", "Heat to {degrees} degrees.", "Set the heating to {degrees}.", "Make it {degrees} degrees."]),
    ("create_note", "Create a note.", {"text": "phrase"}, ["Make a note: {text}", "Note down {text}.", "Create a note saying {text}.", "Write a note: {text}", "Take a note: {text}"]),
    ("get_stock_price", "Get the price of a stock.", {"symbol": "symbol"}, ["What is the stock price of {symbol}?", "Price of {symbol}?", "How much is {symbol} stock?", "What's the price of {symbol} stock?", "Get the {symbol} stock price.", "Stock price for {symbol}."]),
    ("calculate", "[Calculate|Evaluate] an expression.", {"expression": "expression"}, ["Calculate {expression}.", "What is {expression}?", "Compute {expression}.", "Work out {expression}.", "How much is {expression}?"]),
    ("add_numbers", "Add two numbers.", {"a": "int", "b": "int"}, ["Add {a} and {b}.", "What is {a} plus {b}?", "Sum of {a} and {b}?", "What is {a} + {b}?", "Use the tool to add {a} and {b}."]),
    ("multiply", "Multiply two numbers.", {"a": "int", "b": "int"}, ["Multiply {a} by {b}.", "What is {a} times {b}?", "Multiply {a} and {b}.", "{a} times {b}?", "How much is {a} times {b}?"]),
    ("get_user", "[Find|Get|Look up] a user [by id|by number|].", {"id": "int"}, ["Get user {id}.", "Look up user {id}.", "Show me the user with id {id}.", "Who is user {id}?", "Find the user {id}.", "Fetch the user number {id}."]),
    ("delete_file", "Delete a file.", {"path": "path"}, ["Delete the file {path}.", "Remove {path}.", "Delete {path}.", "Please delete {path}."]),
    ("read_file", "Read a file.", {"path": "path"}, ["Read the file {path}.", "Show me {path}.", "What is in {path}?", "Open {path}.", "Read {path}.", "Print the contents of {path}."]),
    ("order_food", "Order food.", {"item": "food", "quantity": "small"}, ["Order {quantity} {item}.", "I would like {quantity} {item}.", "Get me {quantity} {item}, please.", "Please order {quantity} {item}."]),
    ("find_restaurant", "Find a restaurant.", {"city": "place", "cuisine": ["Italian", "Chinese", "Indian", "Mexican", "Thai", "Greek"]}, ["Find a {cuisine} restaurant in {city}.", "Where can I eat {cuisine} food in {city}?", "I want {cuisine} food in {city}.", "Look for a {cuisine} restaurant in {city}."]),
    ("call_phone", "Call somebody [by phone|on the phone|].", {"name": "name1"}, ["Call {name}.", "Phone {name}.", "Ring {name} up.", "Give {name} a call.", "I want to talk to {name} on the phone."]),
    ("get_population", "Get the population of a country.", {"country": "country"}, ["What is the population of {country}?", "How many people live in {country}?", "Population of {country}?", "Tell me the population of {country}."]),
    ("get_distance", "Get the distance between two cities.", {"start": "place", "end": "place"}, ["How far is it from {start} to {end}?", "Distance from {start} to {end}?", "What is the distance between {start} and {end}?"]),
    ("create_user", "Create a user account.", {"name": "name1", "age": "small", "admin": "bool"}, ["Create a user named {name}, age {age}, admin {admin}.", "Add the user {name} with age {age} and admin {admin}.", "Create user {name}, {age} years old, admin {admin}."]),
    ("define_word", "Look up a word in the dictionary.", {"word": "word"}, ["Define {word}.", "What does {word} mean?", "What is the meaning of {word}?", "Look up {word} in the dictionary.", "Meaning of {word}?"]),
    ("get_news", "Get the news about a topic.", {"topic": "word"}, ["News about {topic}?", "What is the news about {topic}?", "Show me news on {topic}.", "Get the latest news about {topic}."]),
    ("remind", "Set a reminder.", {"text": "phrase", "time": "clock"}, ["Remind me at {time}: {text}", "Remind me to {text} at {time}.", "Set a reminder at {time} to {text}."]),
    ("track_package", "Track a package.", {"number": "symbol"}, ["Where is my package {number}?", "Track package {number}.", "Track the package {number}."]),
    ("roll_dice", "Roll dice.", {"sides": "small"}, ["Roll a dice with {sides} sides.", "Roll a {sides} sided dice.", "Throw a dice with {sides} sides."]),
]
VERBS = """get find set create delete update send start stop open close read write list show add remove check count fetch load save move copy rename
lock unlock book cancel order buy sell print scan track measure convert compare merge split sort filter search lookup query register
invite block archive export import upload download reset enable disable pause resume rotate paint cook clean charge repair ship pack""".split()
NOUNS = """user file order ticket invoice report light door alarm song video photo table room flight train hotel package message email note task
event account device sensor robot pump valve engine backup server database record product price stock customer contact group channel
playlist recipe book page map route parcel drone camera printer garden window oven heater fan boat signal badge license plan job
queue cluster model token key secret policy budget survey poll game score player team course lesson exam sample test batch""".split()
PARAMETERS = {
    "name": "name1", "city": "place", "country": "country", "title": "phrase", "text": "phrase", "query": "phrase", "id": "int", "count": "small", "amount": "int", "size": "small", "level": "small", "color": "color",
    "date": "date", "time": "clock", "path": "path", "user": "name1", "owner": "name1", "to": "name1", "from": "place", "speed": "int", "price": "number", "weight": "number", "width": "int", "height": "int", "priority": ["low", "medium", "high"],
    "mode": ["fast", "slow", "auto"], "unit": ["celsius", "fahrenheit"], "format": ["json", "csv", "xml", "pdf"], "status": ["open", "closed", "pending"], "kind": "word", "category": "word", "label": "word", "tag": "word", "code": "symbol",
    "active": "bool", "verbose": "bool", "force": "bool", "urgent": "bool", "public": "bool", "language": ["French", "German", "Spanish", "English"], "channel": "word", "room": "word", "item": "thing", "reason": "phrase", "limit": "int",
    "duration": "small", "distance": "int", "temperature": "int", "year": "int", "month": ["January", "March", "June", "October"], "day": ["Monday", "Tuesday", "Friday", "Sunday"], "direction": ["north", "south", "east", "west", "up", "down", "left", "right"],
    "value": "any", "key": "word", "target": "word", "source": "word", "destination": "place", "product": "thing", "animal": "animal", "email": "email", "number": "int",
}
DESCRIBED = ["", "", "", "The {p}.", "{P}.", "The {p} to use.", "{P} of the {n}.", "Name of the {p}."]


def value_of(rng, kind, split):
    def make():
        value = _value(rng, kind)
        return f"value:{value}", value

    if isinstance(kind, list):
        return rng.choice(kind)
    if kind in ("bool", "bool_on", "currency", "color", "small", "country"):
        return _value(rng, kind)
    return draw(split, make)


def _value(rng, kind):
    if kind == "place":
        return words.place(rng)
    if kind == "name1":
        return words.name(rng)
    if kind == "phrase":
        return words.short_phrase(rng, 1, 3) if rng.random() < 0.85 else " ".join(words.value_word(rng) for _ in range(rng.randint(1, 3)))
    if kind == "small":
        return rng.randint(1, 60)
    if kind == "int":
        return abs(words.integer(rng))
    if kind == "number":
        return float(words.decimal(rng)) if rng.random() < 0.7 else rng.randint(1, 500)
    if kind in ("bool", "bool_on"):
        return rng.random() < 0.5
    if kind == "clock":
        return rng.choice((f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}", f"{rng.randint(1, 12)}:{rng.randint(0, 59):02}", f"{rng.randint(1, 12)} {rng.choice(('am', 'pm'))}", f"{rng.randint(1, 12)}{rng.choice(('am', 'pm'))}"))
    if kind == "date":
        return rng.choice((f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}", f"{rng.choice(('January', 'March', 'May', 'July', 'October', 'December'))} {rng.randint(1, 28)}", rng.choice(("Monday", "Tuesday", "Wednesday", "Friday", "Sunday"))))
    if kind == "currency":
        return rng.choice(("USD", "EUR", "GBP", "JPY", "CHF", "CNY", "dollars", "euros", "yen", "pounds"))
    if kind == "thing":
        return rng.choice(words.THINGS) if rng.random() < 0.85 else words.english_word(rng)
    if kind == "food":
        return rng.choice(words.FOODS) if rng.random() < 0.7 else words.english_word(rng)
    if kind == "animal":
        return rng.choice(words.ANIMALS)
    if kind == "color":
        return rng.choice(words.COLORS)
    if kind == "country":
        return rng.choice(words.COUNTRIES)
    if kind == "symbol":
        return rng.choice((words.letters(rng, 3, 5).upper(), rng.choice("ABCDEFGHKMPRSTX") + words.code(rng)))
    if kind == "path":
        stem = words.english_word(rng)
        return rng.choice(("", "/tmp/", "/home/", "data/", "docs/", "")) + stem + rng.choice((".txt", ".md", ".json", ".csv", ".log", ".py", ""))
    if kind == "email":
        return f"{words.english_word(rng)}@{words.english_word(rng)}.{rng.choice(('com', 'org', 'net'))}"
    if kind == "expression":
        return f"{rng.randint(1, 999)} {rng.choice('+-*/')} {rng.randint(1, 999)}"
    if kind == "word":
        return words.english_word(rng) if rng.random() < 0.75 else words.value_word(rng)
    return words.value_word(rng)


def schema(kind):
    if isinstance(kind, list):
        return {"type": "string", "enum": kind}
    return {"type": {"small": "integer", "int": "integer", "number": "number", "bool": "boolean", "bool_on": "boolean"}.get(kind, "string")}


@dataclass
class Tool:
    name: str
    description: str
    parameters: dict
    asks: list
    optional: dict

    def declared(self, rng):
        properties = {}
        for key, kind in {**self.parameters, **self.optional}.items():
            properties[key] = schema(kind)
            said = rng.choice(DESCRIBED) if rng.random() < 0.25 else ""
            if said:
                shown = key.replace("_", " ")
                properties[key]["description"] = said.format(p=shown, P=shown.capitalize(), n=self.name.split("_")[-1])
        function = {"name": self.name, "parameters": {"type": "object", "properties": properties, "required": list(self.parameters)}}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": function}


class World(list):
    """The declared tools (as OpenAI JSON) with what is needed to ask for them."""

    tools: list


def _vary(rng, text):
    return re.sub(r"\[([^\[\]]*\|[^\[\]]*)\]", lambda match: rng.choice(match.group(1).split("|")), text)


def known_tool(rng):
    name, description, parameters, asks = rng.choice(KNOWN)
    if rng.random() < 0.15:
        name = "".join(part.capitalize() if i else part for i, part in enumerate(name.split("_"))) if rng.random() < 0.5 else name.replace("_", "-")
    optional = {}
    if rng.random() < 0.1:
        extra = rng.choice(list(PARAMETERS))
        if extra not in parameters:
            optional[extra] = PARAMETERS[extra]
    description = _vary(rng, description) if rng.random() < 0.93 else ""
    if rng.random() < 0.1:
        description = description.rstrip(".")
    return Tool(name, description, dict(parameters), asks, optional)


def invented_tool(rng):
    """A tool made up on the spot; its requests name the action in words and each value beside its parameter."""
    verb = rng.choice(VERBS) if rng.random() < 0.93 else words.pseudo_word(rng, 2) if rng.random() < 0.6 else words.english_word(rng)
    noun = rng.choice(NOUNS) if rng.random() < 0.88 else words.pseudo_word(rng, 2) if rng.random() < 0.5 else words.english_word(rng)
    style = rng.random()
    name = f"{verb}_{noun}" if style < 0.75 else verb + noun.capitalize() if style < 0.87 else verb if style < 0.94 else f"{noun}-{verb}"
    article = rng.choice(("a", "the", "the", ""))
    action = f"{verb} {article} {noun}".replace("  ", " ")
    description = rng.choice((action.capitalize() + ".", action.capitalize(), action.capitalize() + ".", f"{verb.capitalize()}s {article} {noun}.".replace("  ", " "), f"Use this to {action}.", ""))
    parameters = {}
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2))):
        kind = rng.random()
        if kind < 0.88:
            key = rng.choice(list(PARAMETERS))
            parameters[key] = PARAMETERS[key]
        else:
            key = words.pseudo_word(rng) if kind < 0.94 else words.english_word(rng) + rng.choice(("_id", "_name", "", "_count"))
            parameters[key] = rng.choice(("word", "word", "int", "bool", "phrase", "name1", "place", [words.english_word(rng) for _ in range(3)]))
    optional = {}
    if rng.random() < 0.1:
        key = rng.choice(list(PARAMETERS))
        if key not in parameters:
            optional[key] = PARAMETERS[key]
    asks = []
    openings = [action.capitalize(), f"Please {action}", action, f"I want to {action}", f"Can you {action}", f"{verb.capitalize()} my {noun}", f"{verb.capitalize()} {noun}", f"{verb.capitalize()} this {noun}", f"Use {name}", f"Call {name}", f"Use the {name} tool", f"Call the tool {name}", f"Run {name}"]
    for opening in openings:
        if not parameters:
            asks.append(opening + rng.choice((".", "", "!", " now.")))
            continue
        between = rng.choice((" ", " ", " ", " = ", "=", ": ", " is ", " set to "))
        join = rng.choice((" with ", " with ", ", ", ": ", " for ", " using ", " where ", ". "))
        parts = [(key if rng.random() < 0.7 else key.replace("_", " ")) + between + "{" + key + "}" for key in parameters]
        if rng.random() < 0.15:
            rng.shuffle(parts)
        if len(parts) == 1 and rng.random() < 0.35:
            asks.append(opening + rng.choice((" {x}", " for {x}", " named {x}", " with {x}", ": {x}", " in {x}")).replace("x", list(parameters)[0]) + rng.choice((".", "")))
            continue
        listed = parts[0] if len(parts) == 1 else rng.choice((", ", ", ", " and ", "; ")).join(parts[:-1]) + rng.choice((" and ", ", ")) + parts[-1]
        asks.append(opening + join + listed + rng.choice((".", "", "", ".")))
    return Tool(name, description, parameters, asks, optional)


def world(rng, split):
    tools, names = [], set()
    wanted = rng.choice((1, 2, 2, 3))
    while len(tools) < wanted:
        tool = known_tool(rng) if rng.random() < 0.65 else invented_tool(rng)
        if tool.name not in names and len(tool.parameters) + len(tool.optional) <= 4 and not (names & CLASHES.get(tool.name, set())):
            names.add(tool.name)
            tools.append(tool)
    result = World(tool.declared(rng) for tool in tools)
    result.tools = tools
    return result


CLASHES = {"search": {"search_web"}, "search_web": {"search"}, "calculate": {"add_numbers", "multiply"}, "add_numbers": {"calculate"}, "multiply": {"calculate"}}


def request(rng, world, split, index=None):
    tool = rng.choice(world.tools)
    values = {key: value_of(rng, kind, split) for key, kind in tool.parameters.items()}
    ask = _vary(rng, rng.choice(tool.asks))
    quoted = rng.random() < 0.2

    def shown(key):
        value = values[key]
        if isinstance(value, bool):
            return ("on" if value else "off") if tool.parameters[key] == "bool_on" else str(value).lower()
        text = str(value)
        return f'"{text}"' if quoted and tool.parameters[key] in ("phrase", "word", "any", "path") else text

    user = re.sub(r"\{([^{}]+)\}", lambda match: shown(match.group(1)), ask).replace(" .", ".").replace(" ?", "?")
    if rng.random() < 0.12:
        user = user[0].lower() + user[1:]
    elif rng.random() < 0.08:
        user = rng.choice(("Please ", "Can you ", "Could you ", "Hi! ", "Hey, ")) + user[0].lower() + user[1:]
    return Request(tool.name, values, user)


def result(rng):
    """A tool's return and the answer that reports it."""
    if rng.random() < 0.3:
        text = words.short_phrase(rng, 1, 4) if rng.random() < 0.7 else str(words.integer(rng))
        return text, f"The result is {text}."
    pairs = {}
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        key = rng.choice("weather temperature status result price time date total city id message name count value error ok distance wind unit level answer".split()) if rng.random() < 0.8 else words.english_word(rng)
        pairs[key] = rng.choice((lambda: words.value_word(rng), lambda: words.integer(rng), lambda: words.short_phrase(rng, 1, 2), lambda: float(words.decimal(rng))))()
    text = json.dumps(pairs, ensure_ascii=False) if rng.random() < 0.8 else json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))
    said = ", ".join(f"the {key} is {value}" for key, value in pairs.items())
    return text, said[0].upper() + said[1:] + "."
