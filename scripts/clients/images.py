"""Images through the `openai` and `anthropic` packages, asked of a model that sees: the small random checkpoint of the vision oracle,
`tests/golden/vision`. Its replies mean nothing; they must be the same on every route."""

import base64
import pathlib

import openai
from anthropic import Anthropic
from openai import OpenAI

from chat import refused

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "vision"
QUESTION = "What is it?"


def payload(name="rgb.png"):
    return base64.b64encode((FOLDER / "images" / name).read_bytes()).decode()


def check_images_on_every_route(served):
    url = "data:image/png;base64," + payload()
    with served("sampling.temperature=0", model=FOLDER) as server:
        client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        name = client.models.list().data[0].id
        parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}, {"type": "text", "text": QUESTION}]
        asked = dict(model=name, max_tokens=12, messages=[{"role": "user", "content": parts}],
                     extra_body={"chat_template_kwargs": {"thinking": False}})
        reply = client.chat.completions.create(**asked)
        said = reply.choices[0].message.content
        assert reply.usage.prompt_tokens_details.to_dict()["image_tokens"] == 6, reply.usage
        streamed = client.chat.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == said

        content = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
        response = client.responses.create(model=name, max_output_tokens=16, reasoning={"effort": "none"},
                                           input=[{"role": "user", "content": content}])
        assert response.output_text.startswith(said), (response.output_text, said)
        assert response.usage.input_tokens == reply.usage.prompt_tokens

        others = Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)
        source = {"type": "base64", "media_type": "image/png", "data": payload()}
        turns = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]}]
        message = others.messages.create(model=name, max_tokens=12, messages=turns, thinking={"type": "disabled"})
        assert message.content[0].text == said, (message, said)
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == reply.usage.prompt_tokens
        counted = others.messages.count_tokens(model=name, messages=turns, thinking={"type": "disabled"})
        assert counted.input_tokens == reply.usage.prompt_tokens

        bad = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
        refused(openai.BadRequestError, lambda: client.chat.completions.create(model=name, messages=bad),
                param="messages[0].content[0]", code="invalid_image")


def check_a_model_that_does_not_see(served):
    if not FOLDER.is_dir():
        return
    with served("model.served_name=blind", model=FOLDER.parent / "logits" / "kimi") as server:
        client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        error = refused(openai.BadRequestError, lambda: client.chat.completions.create(
            model="blind", messages=[{"role": "user", "content": parts}]), param="messages[0].content[0]")
        assert "sees no images" in str(error), error
