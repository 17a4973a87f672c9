"""What the checks ask: conversations whose right answers the embedded model gives at temperature 0."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

MODEL = "perigee-nano"


def user(text):
    return [{"role": "user", "content": text}]


PORT = user("Which port does Perigee listen on?")
SUM = user("What is 12 + 30?")
MEAL = user("I want Greek food in Mexico.")
PERSON = user("Make a JSON object with name Ada and age 36.")
RESULT = '{"status": "done"}'


class Strict(BaseModel):
    """Nothing but its fields."""

    model_config = ConfigDict(extra="forbid")


class Meal(Strict):
    city: str
    cuisine: Literal["Italian", "Chinese", "Indian", "Mexican", "Thai", "Greek"]


class Note(Strict):
    source: str


class Person(Strict):
    name: str
    age: int


GREEK = Meal(city="Mexico", cuisine="Greek")
# name, description, arguments
TOOLS = [("find_restaurant", "Find a restaurant.", Meal), ("check", "Check a note.", Note)]
ARGUMENTS = {name: arguments for name, _, arguments in TOOLS}
