"""The `openai` package on `/v1/chat/completions`, `/v1/completions` and `/v1/models`."""

import asyncio
import json
import math

import openai
from openai import AsyncOpenAI, OpenAI

from asked import ARGUMENTS, GREEK, MEAL, MODEL, PERSON, PORT, RESULT, SUM, TOOLS, Meal, Note, Person, user

FUNCTIONS = [{"type": "function", "function": {"name": name, "description": about, "parameters": arguments.model_json_schema()}}
             for name, about, arguments in TOOLS]


def client_of(server, **more):
    return OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60, **more)


def create(client, messages=PORT, **more):
    return client.chat.completions.create(**{"model": MODEL, "temperature": 0, "max_tokens": 120, "messages": messages} | more)


def refused(kind, call, **facts):
    """The exception of this kind that the call raises; `facts` are its attributes."""
    try:
        call()
    except kind as error:
        assert type(error) is kind, type(error)
        for name, value in facts.items():
            assert getattr(error, name) == value, (name, getattr(error, name), error)
        return error
    raise AssertionError(f"no {kind.__name__}")


def joined(stream):
    """The choices that a stream's chunks add up to: (content, calls, finish reason), and its usage. What every stream keeps to is checked."""
    choices, usage, ids = {}, None, set()
    for chunk in stream:
        assert usage is None, f"something follows the usage: {chunk}"
        assert chunk.object == "chat.completion.chunk" and chunk.model == MODEL
        ids.add((chunk.id, chunk.created))
        if not chunk.choices:
            usage = chunk.usage
            assert usage is not None, chunk
        for choice in chunk.choices:
            text, calls, finish, role = choices.get(choice.index, ("", [], None, None))
            assert finish is None, f"something follows the end: {chunk}"
            delta = choice.delta
            assert (delta.role == "assistant") == (role is None), f"the role comes first and once: {chunk}"
            for call in delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(calls) and call.type == "function" and call.function.name
                    calls.append([call.id, call.function.name, ""])
                else:
                    assert call.index == len(calls) - 1 and call.function.name is None
                calls[-1][2] += call.function.arguments or ""
            choices[choice.index] = (text + (delta.content or ""), calls, choice.finish_reason, "assistant")
    assert len(ids) == 1, ids
    assert all(finish for _, _, finish, _ in choices.values()), choices
    return [choices[index][:3] for index in sorted(choices)], usage


def calls_of(message):
    return [[call.id, call.function.name, call.function.arguments] for call in message.tool_calls or []]


def check_models(server):
    client = client_of(server)
    [model] = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model") and client.models.retrieve(MODEL) == model
    refused(openai.NotFoundError, lambda: client.models.retrieve("other"), code="model_not_found", status_code=404)


def check_a_reply(server):
    reply = create(client_of(server))
    [choice] = reply.choices
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-") and reply.model == MODEL and reply.created > 1_700_000_000
    assert "8000" in choice.message.content and choice.message.role == "assistant" and choice.message.tool_calls is None
    assert choice.finish_reason == "stop" and choice.index == 0 and choice.logprobs is None
    usage = reply.usage
    assert usage.prompt_tokens > 0 < usage.completion_tokens and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def check_message_forms(server):
    """Parts, names and the developer's role are read as what they are elsewhere."""
    client = client_of(server)
    plain = create(client, [{"role": "system", "content": "Be brief."}] + PORT)
    parts = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
             {"role": "user", "content": [{"type": "text", "text": PORT[0]["content"]}]}]
    other = create(client, parts)
    assert other.choices[0].message.content == plain.choices[0].message.content
    assert other.usage.prompt_tokens == plain.usage.prompt_tokens
    developer = create(client, [{"role": "developer", "content": "Be brief."}, {"role": "user", "name": "ada", "content": PORT[0]["content"]}])
    assert developer.choices[0].finish_reason == "stop" and developer.choices[0].message.content
    # What is new in the public API and means nothing here does not disturb.
    create(client, user="u", store=False, metadata={"a": "b"}, service_tier="auto", verbosity="low", prompt_cache_key="k", safety_identifier="s")


def check_a_stream_is_the_reply(server):
    client = client_of(server)
    whole = create(client)
    chunks = list(create(client, stream=True, stream_options={"include_usage": True}))
    assert all(chunk.usage is None for chunk in chunks[:-1])
    [(text, calls, finish)], usage = joined(chunks)
    assert (text, calls, finish) == (whole.choices[0].message.content, [], "stop")
    counts = lambda usage: (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    assert counts(usage) == counts(whole.usage)
    # One piece per step, not all at once.
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 3
    assert joined(create(client, stream=True))[1] is None


def check_the_stream_helper(server):
    client = client_of(server)
    request = {"model": MODEL, "messages": PORT, "temperature": 0, "max_tokens": 60}
    text = ""
    with client.chat.completions.stream(**request) as stream:
        kinds = []
        for event in stream:
            kinds.append(event.type)
            if event.type == "content.delta":
                text += event.delta
                assert event.snapshot == text
        final = stream.get_final_completion()
    assert kinds[-1] == "content.done" and "8000" in text and final.choices[0].message.content == text


def check_the_async_client(server):
    async def ask():
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
            async def streamed():
                stream = await create(client, SUM, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*[create(client, PORT) for _ in range(8)], *[streamed() for _ in range(8)])

    replies = asyncio.run(ask())
    assert len({reply.choices[0].message.content for reply in replies[:8]}) == 1 and "8000" in replies[0].choices[0].message.content
    assert len(set(replies[8:])) == 1 and "42" in replies[8], replies[8]


def check_many_choices(server):
    client = client_of(server)
    more = {"n": 3, "temperature": 1.5, "seed": 5, "max_tokens": 24}
    whole = create(client, **more)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert all(choice.finish_reason in ("stop", "length") for choice in whole.choices)
    assert whole.usage.completion_tokens > max(len(choice.message.content.split()) for choice in whole.choices)
    # The same seed draws the same, and the streamed choices come interleaved.
    choices, usage = joined(create(client, **more, stream=True, stream_options={"include_usage": True}))
    assert [(c.message.content, [], c.finish_reason) for c in whole.choices] == choices
    assert usage.completion_tokens == whole.usage.completion_tokens
    # One other seed may happen to draw the same few words.
    others = [create(client, **more | {"seed": seed}) for seed in range(6, 12)]
    assert any([c.message.content for c in other.choices] != [c.message.content for c in whole.choices] for other in others)


def check_ends(server):
    client = client_of(server)
    whole = create(client).choices[0].message.content
    before = whole.split("8000")[0]
    for stop in ["8000", ["nowhere", "8000"]]:
        [choice] = create(client, stop=stop).choices
        assert (choice.message.content, choice.finish_reason) == (before, "stop")
        assert joined(create(client, stop=stop, stream=True))[0] == [(before, [], "stop")]
    for field in ["max_tokens", "max_completion_tokens"]:
        reply = create(client, **{"max_tokens": None, field: 2})
        assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 2)
        assert whole.startswith(reply.choices[0].message.content)


def check_logprobs(server):
    client = client_of(server)
    more = {"logprobs": True, "top_logprobs": 4}
    reply = create(client, **more)
    [choice] = reply.choices
    entries = choice.logprobs.content
    # The end of the turn is a token without text.
    assert b"".join(bytes(entry.bytes) for entry in entries).decode().startswith(choice.message.content)
    assert len(entries) == reply.usage.completion_tokens
    for entry in entries:
        top = entry.top_logprobs
        assert len(top) == 4 and [t.logprob for t in top] == sorted((t.logprob for t in top), reverse=True)
        assert entry.logprob <= 0 and entry.logprob == top[0].logprob and entry.token == top[0].token
        assert 0.2 < sum(math.exp(t.logprob) for t in top) < 1.0001
    streamed = [entry for chunk in create(client, **more, stream=True) for c in chunk.choices if c.logprobs for entry in c.logprobs.content]
    assert streamed == entries
    assert create(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def check_a_call_and_its_result(server):
    client = client_of(server)
    reply = create(client, MEAL, tools=FUNCTIONS)
    [choice] = reply.choices
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert (call.type, call.function.name, Meal.model_validate_json(call.function.arguments)) == ("function", "find_restaurant", GREEK)
    # Streamed, it is the same call.
    [(text, calls, finish)], _ = joined(create(client, MEAL, tools=FUNCTIONS, stream=True))
    assert (text, calls, finish) == ("", calls_of(choice.message), "tool_calls")
    # With its result, the model answers in words; the message goes back as the client's own object.
    told = MEAL + [choice.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    answer = create(client, told, tools=FUNCTIONS)
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].message.content.strip() and answer.choices[0].message.tool_calls is None
    assert answer.usage.prompt_tokens > reply.usage.prompt_tokens


def check_tool_choices(server):
    client = client_of(server)
    choose = lambda choice, messages=MEAL, **more: create(client, messages, tools=FUNCTIONS, tool_choice=choice, **more)
    [choice] = choose("none").choices
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    # Forced where nothing asks for it.
    [choice] = choose("required", PORT).choices
    assert choice.finish_reason == "tool_calls"
    for _, name, arguments in calls_of(choice.message):
        ARGUMENTS[name].model_validate_json(arguments)
    named = {"type": "function", "function": {"name": "check"}}
    for temperature in [0, 1.5]:
        [choice] = choose(named, temperature=temperature, seed=3).choices
        [[_, name, arguments]] = calls_of(choice.message)
        assert name == "check" and Note.model_validate_json(arguments) and choice.finish_reason == "tool_calls"
    error = refused(openai.BadRequestError, lambda: choose({"type": "function", "function": {"name": "other"}}), param="tool_choice")
    assert "other" in error.message
    refused(openai.BadRequestError, lambda: create(client, tool_choice="required"), param="tool_choice")


def check_parallel_calls(server):
    """The model was taught one call at a time: what ends its calls is made unlikely, so that it goes on to the next."""
    client = client_of(server)
    shown = create(client, MEAL, tools=FUNCTIONS, extra_body={"return_token_ids": True}).choices[0]
    [section_end] = [token for token in shown.token_ids if server.post("/detokenize", {"tokens": [token]})["prompt"] == "<|tool_calls_section_end|>"]
    more = {"tools": FUNCTIONS, "tool_choice": "required", "logit_bias": {str(section_end): -100}}
    [choice] = create(client, MEAL, **more).choices
    calls = calls_of(choice.message)
    assert len(calls) > 1 and len({call[0] for call in calls}) == len(calls) and choice.finish_reason == "tool_calls", calls
    for _, name, arguments in calls:
        ARGUMENTS[name].model_validate_json(arguments)
    assert joined(create(client, MEAL, **more, stream=True))[0] == [("", calls, "tool_calls")]
    # All their results go back at once, in another order.
    results = [{"role": "tool", "tool_call_id": call[0], "content": RESULT} for call in calls]
    assert create(client, MEAL + [choice.message] + results[::-1], tools=FUNCTIONS).choices[0].finish_reason == "stop"
    [choice] = create(client, MEAL, **more, parallel_tool_calls=False).choices
    assert calls_of(choice.message) == calls[:1] and choice.finish_reason == "tool_calls"


def check_calls_through_the_helpers(server):
    """Pydantic models as strict tools, parsed; and the events of the stream helper."""
    client = client_of(server)
    tools = [openai.pydantic_function_tool(arguments, name=name, description=about) for name, about, arguments in TOOLS]
    request = {"model": MODEL, "messages": MEAL, "temperature": 0, "max_tokens": 120, "tools": tools}
    [call] = client.chat.completions.parse(**request).choices[0].message.tool_calls
    assert call.function.parsed_arguments == GREEK
    with client.chat.completions.stream(**request) as stream:
        events = list(stream)
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.parsed_arguments == GREEK
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    [done] = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert "".join(delta.arguments_delta for delta in deltas) == done.arguments == call.function.arguments and len(deltas) > 1


def check_json(server):
    client = client_of(server)
    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": Person.model_json_schema()}}
    for more in [{}, {"temperature": 2, "seed": 1}, {"temperature": 2, "seed": 2, "max_tokens": 24}]:
        [choice] = create(client, PERSON, response_format=schema, **more).choices
        person = Person.model_validate_json(choice.message.content)
        assert choice.finish_reason == "stop" and (more or person == Person(name="Ada", age=36)), choice
        [(text, _, _)], _ = joined(create(client, PERSON, response_format=schema, **more, stream=True))
        assert text == choice.message.content
    [choice] = create(client, PERSON, response_format={"type": "json_object"}).choices
    assert isinstance(json.loads(choice.message.content), dict)
    parsed = client.chat.completions.parse(model=MODEL, messages=PERSON, temperature=0, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)
    with client.chat.completions.stream(model=MODEL, messages=PERSON, temperature=0, response_format=Person) as stream:
        events = list(stream)
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ada", age=36)
    assert [event.parsed for event in events if event.type == "content.done"] == [Person(name="Ada", age=36)]


def check_reasoning(server):
    client = client_of(server)
    for more in [{"reasoning_effort": "high"}, {"extra_body": {"chat_template_kwargs": {"thinking": True}}}]:
        reply = create(client, SUM, **more)
        message = reply.choices[0].message
        assert message.reasoning_content and "42" in message.content
        assert 0 < reply.usage.completion_tokens_details.reasoning_tokens < reply.usage.completion_tokens
        deltas = [chunk.choices[0].delta for chunk in create(client, SUM, **more, stream=True)]
        thought = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
        said = [delta.content or "" for delta in deltas]
        assert "".join(thought) == message.reasoning_content and "".join(said) == message.content
        last_thought = max(i for i, text in enumerate(thought) if text)
        assert not any(text for text in said[:last_thought]), "the answer comes behind the thought"
    assert create(client, SUM, reasoning_effort="none").usage.completion_tokens_details.reasoning_tokens == 0


def check_what_is_absent_is_null(server):
    client = client_of(server)
    reply = create(client)
    message = reply.choices[0].message
    assert (message.reasoning_content, message.reasoning, reply.system_fingerprint) == (None, None, None)
    assert (reply.prompt_logprobs, reply.prompt_token_ids, reply.choices[0].token_ids) == (None, None, None)
    for chunk in create(client, stream=True):
        assert all(choice.token_ids is None for choice in chunk.choices)


def check_what_other_servers_have(server):
    client = client_of(server)
    more = lambda **extra: create(client, extra_body=extra).choices[0].message
    whole = create(client).choices[0].message.content
    before = whole[:whole.index("80")]
    assert more(stop_regex="[0-9]{2}").content == before and "8000" not in more(bad_words=["8000"]).content
    assert more(n_predict=2, max_tokens=None).content in whole and more(repeat_penalty=5).content != whole
    thoughts = {"thinking": {"type": "enabled"}}
    apart, inside = more(**thoughts), more(**thoughts, separate_reasoning=False)
    assert inside.content.startswith("<think>") and apart.reasoning_content in inside.content and inside.reasoning_content is None
    ignored = client.chat.completions.with_raw_response.create(model=MODEL, messages=PORT, max_tokens=2, extra_body={"temprature": 1})
    assert ignored.headers["x-perigee-ignored-fields"] == "temprature"
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "check"}}]}}
    [call] = create(client, MEAL, tools=FUNCTIONS, tool_choice=only).choices[0].message.tool_calls
    assert call.function.name == "check"


def check_errors(server):
    client = client_of(server)
    bad = lambda param, code, **more: refused(openai.BadRequestError, lambda: create(client, **more), param=param, code=code, type="invalid_request_error")
    bad("temperature", "invalid_value", temperature=3)
    bad("messages", "invalid_type", messages="hello")
    bad("messages[0].role", "invalid_value", messages=[{"role": "king", "content": "x"}])
    bad("stop", "invalid_value", stop=[""])
    bad("top_logprobs", "invalid_value", top_logprobs=3)
    bad("response_format.type", "invalid_value", response_format={"type": "yaml"})
    bad("response_format.shema", "invalid_value", response_format={"type": "json_object", "shema": {}})
    bad("mirostat", "unsupported_parameter", extra_body={"mirostat": 2})
    bad("max_tokens", "max_tokens_too_small", max_tokens=2, response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema()}})
    # As an error before the stream, not in it.
    bad("temperature", "invalid_value", temperature=3, stream=True)
    error = refused(openai.BadRequestError, lambda: create(client, user("word " * 5000)), code="context_length_exceeded")
    assert "maximum context length" in error.message and error.request_id
    refused(openai.NotFoundError, lambda: create(client, model="other"), code="model_not_found", param="model")
    refused(openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="x"), code="unknown_url")


def check_headers(server):
    client = client_of(server)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=PORT, temperature=0, extra_headers={"x-request-id": "check-1"})
    assert raw.status_code == 200 and raw.headers["content-type"] == "application/json" and raw.headers["x-request-id"] == "check-1"
    parsed = raw.parse()
    assert parsed.id == "chatcmpl-check-1" and "8000" in parsed.choices[0].message.content and create(client)._request_id
    with client.chat.completions.with_streaming_response.create(model=MODEL, messages=PORT, temperature=0, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream") and response.headers["cache-control"] == "no-cache"
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"


def check_a_client_that_leaves(server):
    """Closing a stream ends its sequence: no metric counts it as running any more."""
    stream = create(client_of(server), user("Repeat after me: the lamps went out"), max_tokens=1500, stream=True, extra_body={"ignore_eos": True, "repetition_guard": "off"})
    next(iter(stream))
    stream.close()
    server.until(lambda: server.gauge("vllm:num_requests_running") == 0, "the end of the sequence")


def check_keys_and_overload(served):
    """Two settings of their own: a key, and room for one request that runs and one that waits."""
    with served("server.api_keys=[\"right\"]") as server:
        wrong = client_of(server)
        refused(openai.AuthenticationError, lambda: create(wrong), status_code=401, code="invalid_api_key")
        assert create(wrong.with_options(api_key="right")).choices
    with served("scheduler.max_num_seqs=1", "scheduler.max_queue_len=1") as server:
        client = client_of(server)
        endless = lambda: create(client, max_tokens=1900, stream=True, extra_body={"ignore_eos": True, "repetition_guard": "off"})
        running = endless()
        next(iter(running))
        async def overload():
            async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as other:
                waiting = asyncio.create_task(create(other, PORT))
                # The request goes out while this thread waits in another.
                await asyncio.to_thread(server.until, lambda: server.gauge("vllm:num_requests_waiting") == 1, "a request that waits")
                error = refused(openai.RateLimitError, endless, code="queue_full", status_code=429)
                assert 0 < int(error.response.headers["retry-after"]) <= 60
                # With the first one gone, the one that waited has its turn.
                running.close()
                return await waiting

        assert "8000" in asyncio.run(overload()).choices[0].message.content


def check_text_completions(server):
    client = client_of(server)
    ask = lambda prompt, **more: client.completions.create(**{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8} | more)
    reply = ask(["one two", "three four"], n=2)
    assert reply.object == "text_completion" and [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.choices[0].text == reply.choices[1].text and reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert "".join(chunk.choices[0].text for chunk in ask("one two", stream=True)) == reply.choices[0].text
    ids = server.post("/tokenize", {"prompt": "one two", "add_special_tokens": False})["tokens"]
    scored = ask(ids, echo=True, logprobs=2, max_tokens=1)
    logprobs = scored.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == len(ids) + 1
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert scored.choices[0].text.startswith("one two") and ask(ids).choices[0].text == reply.choices[0].text
