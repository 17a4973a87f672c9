"""The `anthropic` package on `/v1/messages`."""

import asyncio

import anthropic
from anthropic import Anthropic, AsyncAnthropic

from asked import ARGUMENTS, GREEK, MEAL, MODEL, PERSON, PORT, RESULT, SUM, TOOLS, Meal, Note, Person, user
from chat import refused

FUNCTIONS = [{"name": name, "description": about, "input_schema": arguments.model_json_schema()} for name, about, arguments in TOOLS]


def client_of(server, **more):
    return Anthropic(base_url=server.url, **{"api_key": "none", "max_retries": 0, "timeout": 60} | more)


# The package knows no sampling any more, the server does.
GREEDY = {"temperature": 0}


def create(client, messages=PORT, **more):
    return client.messages.create(**{"model": MODEL, "messages": messages, "max_tokens": 120, "extra_body": GREEDY} | more)


def stream_of(client, messages=PORT, **more):
    return client.messages.stream(**{"model": MODEL, "messages": messages, "max_tokens": 120, "extra_body": GREEDY} | more)


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def in_order(events):
    """What every stream keeps to: one frame, and blocks that open, grow and close in turn."""
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    assert events[0].message.content == [] and events[0].message.usage.output_tokens == 0 and events[0].message.stop_reason is None
    blocks, is_open = 0, False
    for event in events:
        if event.type == "content_block_start":
            assert not is_open and event.index == blocks
            is_open = True
        elif event.type == "content_block_delta":
            assert is_open and event.index == blocks
        elif event.type == "content_block_stop":
            assert is_open and event.index == blocks
            is_open, blocks = False, blocks + 1
    assert not is_open
    return kinds


def check_a_message(server):
    message = create(client_of(server), system="Be brief.")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL) and message.id.startswith("msg_")
    assert [block.type for block in message.content] == ["text"] and "8000" in text_of(message)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None) and message.usage.output_tokens > 0
    # What is new in the public API and means nothing here does not disturb.
    cached = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    other = create(client_of(server), system=cached, metadata={"user_id": "u"}, service_tier="auto", extra_headers={"anthropic-beta": "some-2026-01-01"})
    assert text_of(other) == text_of(message)


def check_counting(server):
    client = client_of(server)
    for request in [{"messages": PORT}, {"messages": MEAL, "tools": FUNCTIONS, "system": "Be brief."}]:
        counted = client.messages.count_tokens(model=MODEL, **request).input_tokens
        # What is new in the prefix cache, and the second time what comes from it, is counted apart.
        for again in range(2):
            usage = create(client, max_tokens=8, **request).usage
            assert (usage.cache_read_input_tokens if again else usage.cache_creation_input_tokens) > 0 or counted < 64, usage
            assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == counted, (usage, counted)


def check_a_stream_is_the_message(server):
    client = client_of(server)
    whole = create(client)
    events = list(create(client, stream=True))
    kinds = in_order(events)
    deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert "".join(deltas) == text_of(whole) and len(deltas) > 3 and kinds.count("content_block_start") == 1
    [end] = [event for event in events if event.type == "message_delta"]
    assert (end.delta.stop_reason, end.usage.output_tokens) == ("end_turn", whole.usage.output_tokens)
    with stream_of(client) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(final) == text_of(whole) and final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens


def check_the_async_client(server):
    async def ask():
        async with AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
            async def streamed():
                async with stream_of(client, SUM) as stream:
                    return await stream.get_final_text()

            return await asyncio.gather(create(client, SUM), *[streamed() for _ in range(4)])

    whole, *streamed = asyncio.run(ask())
    assert "42" in text_of(whole) and set(streamed) == {text_of(whole)}


def check_a_call_and_its_result(server):
    client = client_of(server)
    message = create(client, MEAL, tools=FUNCTIONS)
    [call] = message.content
    assert (message.stop_reason, call.type, call.name, Meal.model_validate(call.input)) == ("tool_use", "tool_use", "find_restaurant", GREEK)
    # The helper adds the pieces of the input up.
    with stream_of(client, MEAL, tools=FUNCTIONS) as stream:
        events = list(stream)
        final = stream.get_final_message()
    pieces = [event.partial_json for event in events if event.type == "input_json"]
    assert Meal.model_validate_json("".join(pieces)) == GREEK and len(pieces) > 1
    assert (final.content[0].input, final.content[0].id, final.stop_reason) == (call.input, call.id, "tool_use")
    in_order(list(create(client, MEAL, tools=FUNCTIONS, stream=True)))
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": RESULT}]}
    told = MEAL + [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = create(client, told, tools=FUNCTIONS)
    assert answer.stop_reason == "end_turn" and text_of(answer).strip()
    # Two calls and their results in one turn.
    calls = [call.model_dump() | {"id": f"toolu_{number}"} for number in range(2)]
    results = [result | {"tool_use_id": call["id"], "is_error": number == 1} for number, call in enumerate(calls)]
    told = MEAL + [{"role": "assistant", "content": calls}, {"role": "user", "content": results + [{"type": "text", "text": "Well?"}]}]
    assert create(client, told, tools=FUNCTIONS).stop_reason == "end_turn"


def check_tool_choices(server):
    client = client_of(server)
    choose = lambda choice, messages=PORT, **more: create(client, messages, tools=FUNCTIONS, tool_choice=choice, **more)
    assert all(block.type == "text" for block in choose({"type": "none"}, MEAL).content)
    message = choose({"type": "any"})
    assert message.stop_reason == "tool_use"
    for call in message.content:
        ARGUMENTS[call.name].model_validate(call.input)
    for sampling in [GREEDY, {"temperature": 1}]:
        [call] = choose({"type": "tool", "name": "check"}, extra_body=sampling).content
        assert call.name == "check" and Note.model_validate(call.input)
    assert len(choose({"type": "any", "disable_parallel_tool_use": True}).content) == 1
    strict = [tool | {"strict": True} for tool in FUNCTIONS]
    [call] = create(client, MEAL, tools=strict).content
    assert Meal.model_validate(call.input) == GREEK


def check_json(server):
    client = client_of(server)
    request = {"output_config": {"format": {"type": "json_schema", "schema": Person.model_json_schema()}}}
    for more in [{}, {"extra_body": {"temperature": 1}}, {"max_tokens": 30}]:
        Person.model_validate_json(text_of(create(client, PERSON, **request, **more)))
    parsed = client.messages.parse(model=MODEL, messages=PERSON, max_tokens=120, output_format=Person, extra_body=GREEDY)
    assert parsed.parsed_output == Person(name="Ada", age=36)


def check_thinking(server):
    client = client_of(server)
    on = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    message = create(client, SUM, **on, max_tokens=1200)
    thought, said = message.content
    assert (thought.type, said.type) == ("thinking", "text") and thought.thinking and "42" in said.text
    events = list(create(client, SUM, **on, max_tokens=1200, stream=True))
    in_order(events)
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert "".join(delta.thinking for delta in deltas if delta.type == "thinking_delta") == thought.thinking
    assert [delta.type for delta in deltas].count("signature_delta") == 1
    with stream_of(client, SUM, max_tokens=1200, **on) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"] and final.content[0].thinking == thought.thinking
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens
    hidden = create(client, SUM, thinking=on["thinking"] | {"display": "omitted"}, max_tokens=1200)
    assert [block.type for block in hidden.content] == ["text"] and text_of(hidden) == said.text
    # The thought goes back with its turn.
    told = SUM + [{"role": "assistant", "content": message.content}] + SUM
    assert "42" in text_of(create(client, told, thinking={"type": "disabled"}))
    assert all(block.type == "text" for block in create(client, SUM, thinking={"type": "disabled"}).content)


def check_ends(server):
    client = client_of(server)
    whole = text_of(create(client))
    message = create(client, stop_sequences=["nowhere", "8000"])
    assert (message.stop_reason, message.stop_sequence, text_of(message)) == ("stop_sequence", "8000", whole.split("8000")[0])
    with stream_of(client, stop_sequences=["8000"]) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "8000")
    message = create(client, max_tokens=2)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 2)
    # What the assistant began is continued.
    word = whole.split(" ")[0]
    begun = create(client, PORT + [{"role": "assistant", "content": word}])
    assert word + text_of(begun) == whole


def check_errors(server):
    client = client_of(server)
    def bad(place, **more):
        error = refused(anthropic.BadRequestError, lambda: create(client, **more))
        assert error.body["type"] == "error" and error.body["error"]["type"] == "invalid_request_error" and place in error.message
        return error

    assert bad("temperature", extra_body={"temperature": 3}).request_id
    bad("messages[0].role", messages=[{"role": "king", "content": "x"}])
    bad("messages[0].content[0]", messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}])
    bad("tool_choice", tools=FUNCTIONS, tool_choice={"type": "tool", "name": "other"})
    bad("temperature", extra_body={"temperature": 3}, stream=True)
    bad("stop_sequences", stop_sequences=[""])
    bad("tools[0].input_schema", tools=[{"name": "f", "input_schema": []}])
    bad("output_config.format", output_config={"format": {"type": "json_schema", "schema": {"contains": {}}}})
    assert "maximum context length" in bad("context", messages=user("word " * 5000)).message
    error = refused(anthropic.NotFoundError, lambda: create(client, model="other"))
    assert error.body["error"]["type"] == "not_found_error"


def check_keys_and_headers(served):
    with served("server.api_keys=[\"right\"]") as server:
        refused(anthropic.AuthenticationError, lambda: create(client_of(server)))
        # Both ways of sending one.
        for key in [{"api_key": "right"}, {"api_key": None, "auth_token": "right"}]:
            client = client_of(server, **key)
            raw = client.messages.with_raw_response.create(model=MODEL, messages=PORT, max_tokens=8)
            assert raw.headers["content-type"] == "application/json" and raw.headers["request-id"] == raw.headers["x-request-id"]
            assert raw.parse()._request_id == raw.headers["request-id"]
            assert [model.id for model in client.models.list()] == [MODEL]
