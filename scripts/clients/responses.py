"""The `openai` package on `/v1/responses`."""

import asyncio

import openai
from openai import AsyncOpenAI

from asked import ARGUMENTS, GREEK, MEAL, MODEL, PERSON, PORT, RESULT, SUM, TOOLS, Meal, Person
from chat import client_of, refused

FUNCTIONS = [{"type": "function", "name": name, "description": about, "parameters": arguments.model_json_schema(), "strict": False}
             for name, about, arguments in TOOLS]


def create(client, given=PORT, **more):
    return client.responses.create(**{"model": MODEL, "input": given, "temperature": 0, "max_output_tokens": 120} | more)


def in_order(events):
    """What every stream keeps to: numbers without gaps, a frame of created and completed, items that open, grow and close in turn."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    open_item, open_part, items = None, None, 0
    output, cut = events[-1].response.output, kinds[-1] == "response.incomplete"
    for event in events[2:-1]:
        if event.type == "response.output_item.added":
            assert open_item is None and event.output_index == items
            open_item = event.item.id
        elif event.type == "response.output_item.done":
            assert event.item.id == open_item and open_part is None and event.output_index == items
            assert (event.item.id, event.item.status) == (output[items].id, "incomplete" if cut and items + 1 == len(output) else "completed")
            open_item, items = None, items + 1
        elif event.type == "response.content_part.added":
            assert open_part is None and event.item_id == open_item
            open_part = event.content_index
        elif event.type == "response.content_part.done":
            assert event.content_index == open_part and event.item_id == open_item
            open_part = None
        else:
            assert event.item_id == open_item and event.output_index == items, event
    assert open_item is None and items == len(output)
    return kinds


def check_a_response(server):
    response = create(client_of(server), "Which port does Perigee listen on?", instructions="Be brief.")
    assert response.object == "response" and response.id.startswith("resp_") and response.status == "completed" and response.error is None
    [item] = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed") and "8000" in response.output_text
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.input_tokens > 0 < usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0 and usage.input_tokens_details.cached_tokens <= usage.input_tokens
    assert response.instructions == "Be brief." and response.max_output_tokens == 120 and response.temperature == 0


def check_a_conversation(server):
    """What came out goes in again, as the client's own objects."""
    client = client_of(server)
    first = create(client)
    again = PORT + first.output + SUM
    second = create(client, again)
    assert "42" in second.output_text and second.usage.input_tokens > first.usage.input_tokens


def check_a_stream_is_the_response(server):
    client = client_of(server)
    whole = create(client)
    events = list(create(client, stream=True))
    kinds = in_order(events)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text and len(deltas) > 3
    assert kinds.count("response.output_text.done") == 1 and events[-1].response.usage.output_tokens == whole.usage.output_tokens
    with client.responses.stream(model=MODEL, input=PORT, temperature=0, max_output_tokens=120) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == whole.output_text


def check_the_async_client(server):
    async def ask():
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
            whole = await create(client, SUM)
            async with client.responses.stream(model=MODEL, input=SUM, temperature=0) as stream:
                events = [event async for event in stream]
                final = await stream.get_final_response()
            return whole, events, final

    whole, events, final = asyncio.run(ask())
    in_order(events)
    assert "42" in whole.output_text and final.output_text == whole.output_text


def check_a_call_and_its_result(server):
    client = client_of(server)
    response = create(client, MEAL, tools=FUNCTIONS)
    [call] = response.output
    assert (call.type, call.name, call.status, Meal.model_validate_json(call.arguments)) == ("function_call", "find_restaurant", "completed", GREEK)
    events = list(create(client, MEAL, tools=FUNCTIONS, stream=True))
    kinds = in_order(events)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments == call.arguments and done.name == call.name and len(deltas) > 1
    assert "response.output_text.delta" not in kinds
    told = MEAL + response.output + [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    answer = create(client, told, tools=FUNCTIONS)
    assert [item.type for item in answer.output] == ["message"] and answer.output_text.strip()


def check_tool_choices(server):
    client = client_of(server)
    assert [item.type for item in create(client, MEAL, tools=FUNCTIONS, tool_choice="none").output] == ["message"]
    for choice in ["required", {"type": "function", "name": "check"}]:
        calls = create(client, PORT, tools=FUNCTIONS, tool_choice=choice).output
        assert calls and all(item.type == "function_call" for item in calls)
        for call in calls:
            ARGUMENTS[call.name].model_validate_json(call.arguments)
    assert [call.name for call in calls] == ["check"]


def check_json(server):
    client = client_of(server)
    parsed = client.responses.parse(model=MODEL, input=PERSON, temperature=0, text_format=Person)
    assert parsed.output_parsed == Person(name="Ada", age=36)
    with client.responses.stream(model=MODEL, input=PERSON, temperature=0, text_format=Person) as stream:
        assert stream.get_final_response().output_parsed == Person(name="Ada", age=36)
    tools = [openai.pydantic_function_tool(arguments, name=name, description=about) for name, about, arguments in TOOLS]
    tools = [{"type": "function", **tool["function"]} for tool in tools]
    with client.responses.stream(model=MODEL, input=MEAL, temperature=0, tools=tools) as stream:
        [call] = stream.get_final_response().output
    assert Meal.model_validate_json(call.arguments) == GREEK


def check_reasoning(server):
    client = client_of(server)
    response = create(client, SUM, reasoning={"effort": "high"})
    thought, said = response.output
    assert (thought.type, said.type) == ("reasoning", "message") and thought.content[0].text and "42" in response.output_text
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    events = list(create(client, SUM, reasoning={"effort": "high"}, stream=True))
    in_order(events)
    assert "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == thought.content[0].text
    assert "42" in create(client, SUM + response.output + SUM).output_text


def check_a_cut_response(server):
    client = client_of(server)
    response = create(client, max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason, response.usage.output_tokens) == ("incomplete", "max_output_tokens", 2)
    assert response.output[-1].status == "incomplete"
    assert in_order(list(create(client, max_output_tokens=2, stream=True)))[-1] == "response.incomplete"


def check_logprobs(server):
    client = client_of(server)
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    response = create(client, **more)
    [part] = response.output[0].content
    # The end of the turn is no text.
    assert b"".join(bytes(entry.bytes) for entry in part.logprobs).decode() == part.text == response.output_text
    assert all(len(entry.top_logprobs) == 3 and entry.token == entry.top_logprobs[0].token for entry in part.logprobs)
    events = list(create(client, **more, stream=True))
    streamed = [entry.logprob for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert streamed == [entry.logprob for entry in part.logprobs]
    assert events[-1].response.output[0].content[0].logprobs == part.logprobs


def check_fields_of_chat(server):
    client = client_of(server)
    whole = create(client).output_text
    before = whole[:whole.index("80")]
    assert create(client, extra_body={"stop": ["80"]}).output_text == before
    assert create(client, extra_body={"structured_outputs": {"regex": "[a-f]{3}"}}).output_text.strip("abcdef") == ""
    assert create(client, extra_body={"logit_bias": {"100": 100}}, max_output_tokens=3).output_text != whole[:3]


def check_errors(server):
    client = client_of(server)
    bad = lambda param, code, **more: refused(openai.BadRequestError, lambda: create(client, **more), param=param, code=code)
    bad("temperature", "invalid_value", temperature=3)
    refused(openai.NotFoundError, lambda: create(client, previous_response_id="resp_1"), param="previous_response_id")
    bad("n", "unsupported_parameter", extra_body={"n": 2})
    bad("top_logprobs", "invalid_value", top_logprobs=3)
    bad("background", "invalid_value", background=True, store=False)
    bad("input[0].role", "invalid_value", given=[{"role": "king", "content": "x"}])
    bad("max_output_tokens", "invalid_value", max_output_tokens=0)
    bad("text.format.type", "invalid_value", text={"format": {"type": "yaml"}})
    bad("reasoning.effort", "invalid_value", reasoning={"effort": "some"})
    bad("tools[0].name", "invalid_value", tools=[{"type": "function", "name": "a b", "parameters": {}}])
    # What only its own service can run is left out.
    assert create(client, tools=[{"type": "web_search"}]).status == "completed"
    bad("temperature", "invalid_value", temperature=3, stream=True)
    refused(openai.NotFoundError, lambda: create(client, model="other"), code="model_not_found")
    refused(openai.NotFoundError, lambda: client.responses.retrieve("resp_1"))
    stored = create(client)
    assert client.responses.retrieve(stored.id).output_text == stored.output_text
    assert create(client, "And again?", previous_response_id=stored.id).status == "completed"
    refused(openai.BadRequestError, lambda: client.responses.cancel(stored.id), code="response_not_in_background")
    client.responses.delete(stored.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(stored.id))
    later = create(client, background=True)
    while later.status == "in_progress":
        later = client.responses.retrieve(later.id)
    assert later.status in ("completed", "incomplete") and later.output_text == create(client).output_text
    cancelled = client.responses.cancel(create(client, background=True).id)
    # A short reply may have ended first.
    assert cancelled.status in ("cancelled", "completed", "incomplete")
