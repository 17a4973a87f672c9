"""The requests of the load: many kinds, drawn from a seeded generator."""

import base64
import json
import pathlib

PICTURES = pathlib.Path(__file__).resolve().parent.parent / "nano" / "heldout_pictures"
WORDS = "harbour window seven lantern river paper garden stone bridge winter copper signal".split()
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a place.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3}},
          "required": ["name", "age", "tags"], "additionalProperties": False}


class Request:
    """`body`: bytes; `expected`: status of a whole answer; `leave_after`: bytes after which its client goes."""

    def __init__(self, kind, path, body, expected=200, leave_after=None):
        self.kind, self.path, self.expected, self.leave_after = kind, path, expected, leave_after
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


class Mix:
    """Draws requests. `context`: tokens that a request may have; `sees`: whether the model takes images."""

    def __init__(self, rng, context, sees):
        self.rng, self.context = rng, context
        self.pictures = [path.read_bytes() for path in sorted(PICTURES.glob("*.png"))] if sees else []
        self.kinds = [(self.chat, 26), (self.completion, 18), (self.long_prompt, 8), (self.long_reply, 8), (self.tools, 9),
                      (self.schema, 9), (self.choices, 6), (self.other_dialects, 8), (self.invalid, 8)]
        if self.pictures:
            self.kinds.append((self.image, 6))

    def draw(self):
        kinds, weights = zip(*self.kinds)
        request = self.rng.choices(kinds, weights)[0]()
        if request.expected == 200 and self.rng.random() < 0.08:
            request.leave_after = self.rng.choice((0, 1, 500, 3000))
        return request

    def small(self):
        """The request of the client whose waiting times are measured."""
        a, b = self.rng.randrange(100), self.rng.randrange(100)
        body = {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}], "max_tokens": 24, "temperature": 0, "stream": True}
        return Request("small", "/v1/chat/completions", body)

    def chat(self):
        rng = self.rng
        question = rng.choice((f"Repeat: {self._words(6)}", f"What is {rng.randrange(1000)} + {rng.randrange(1000)}?",
                               "Which port does Perigee listen on?", f"My colour is {rng.choice(WORDS)}. What is my colour?"))
        more = {"chat_template_kwargs": {"thinking": True}} if rng.random() < 0.2 else {}
        return self._chat("chat", [{"role": "user", "content": question}], max_tokens=100, **more)

    def completion(self):
        prompt = self._tokens(self.rng.randrange(4, 120)) if self.rng.random() < 0.5 else self._words(20)
        return self._request("completion", "/v1/completions", {"prompt": prompt, "max_tokens": self.rng.randrange(1, 60), "ignore_eos": True})

    def long_prompt(self):
        prompt = self._tokens(self.rng.randrange(self.context // 8, self.context // 2))
        # Half of them begin alike, so that cached blocks are found.
        if self.rng.random() < 0.5:
            prompt[:256] = [i * 7 % 1000 for i in range(256)]
        return self._request("long prompt", "/v1/completions", {"prompt": prompt, "max_tokens": 16, "ignore_eos": True})

    def long_reply(self):
        return self._request("long reply", "/v1/completions", {"prompt": self._tokens(20), "max_tokens": 400, "ignore_eos": True,
                                                               "repetition_guard": "off", "temperature": 1})

    def tools(self):
        messages = [{"role": "user", "content": f"What is the weather in {self.rng.choice(('Paris', 'Oslo', 'Lima'))}?"}]
        return self._chat("tools", messages, tools=[TOOL], tool_choice=self.rng.choice(("auto", "required")), max_tokens=100)

    def schema(self):
        schema = json.loads(json.dumps(SCHEMA))
        # Some are new to the server, and their grammar has to be compiled.
        if self.rng.random() < 0.3:
            schema["properties"][self.rng.choice(WORDS)] = {"type": "boolean"}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        messages = [{"role": "user", "content": f"Make a JSON object: name = {self.rng.choice(WORDS)}, age = {self.rng.randrange(90)}"}]
        return self._chat("schema", messages, response_format=form, max_tokens=150)

    def choices(self):
        messages = [{"role": "user", "content": f"Repeat: {self._words(3)}"}]
        return self._chat("n > 1", messages, n=self.rng.randrange(2, 4), max_tokens=40, temperature=1)

    def image(self):
        url = "data:image/png;base64," + base64.b64encode(self.rng.choice(self.pictures)).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is the shape?"}]
        return self._chat("image", [{"role": "user", "content": content}], max_tokens=30)

    def other_dialects(self):
        text = f"Repeat: {self._words(4)}"
        if self.rng.random() < 0.5:
            return self._request("messages", "/v1/messages", {"messages": [{"role": "user", "content": text}], "max_tokens": 40})
        return self._request("responses", "/v1/responses", {"input": text, "max_output_tokens": 40})

    def invalid(self):
        chat = {"messages": [{"role": "user", "content": "x"}]}
        path, body, status = self.rng.choice((
            ("/v1/chat/completions", b'{"messages": [', 400),
            ("/v1/chat/completions", chat | {"temperature": 9}, 400),
            ("/v1/chat/completions", chat | {"model": "no-such-model"}, 404),
            ("/v1/completions", {"prompt": [1 << 30]}, 400),
            ("/v1/completions", {"prompt": self._tokens(self.context + 10)}, 400),
            ("/v1/completions", {"prompt": "x", "guided_regex": "(a"}, 400),
            ("/v1/chat/completions", chat | {"tools": [{"type": "function"}]}, 400),
            ("/v1/nothing", chat, 404),
        ))
        return Request("invalid", path, body, expected=status)

    def _chat(self, kind, messages, **more):
        return self._request(kind, "/v1/chat/completions", {"messages": messages} | more)

    def _request(self, kind, path, body):
        if self.rng.random() < 0.6:
            body["stream"] = True
        return Request(kind, path, body)

    def _tokens(self, count):
        return [self.rng.randrange(10, 1000) for _ in range(count)]

    def _words(self, count):
        return " ".join(self.rng.choice(WORDS) for _ in range(count))
