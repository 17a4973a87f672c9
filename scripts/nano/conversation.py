"""A conversation and its rendering: the chat format of the Kimi K2 family, cut into learned and given text."""

import json
from dataclasses import dataclass, field

from declaration import compact_json, typescript


@dataclass
class Message:
    role: str
    content: str = ""
    thought: str | None = None
    calls: list = field(default_factory=list)  # (id, arguments as JSON text)
    call_id: str | None = None  # of a tool result
    after_thought: str | None = None  # the content where the thought is written, if it differs
    learn: bool = True  # assistant turns only: whether its words are a target


@dataclass
class Conversation:
    messages: list
    tools: list = field(default_factory=list)
    json_tools: bool = False
    thinking: bool = False


def call_arguments(arguments) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def render(conversation: Conversation, generate: bool = False):
    """The rendered text as (text, learned) segments; with `generate` the prompt for the next turn follows."""
    segments = []

    def given(text):
        segments.append((text, False))

    if conversation.tools:
        declare = compact_json if conversation.json_tools else typescript
        given(f"<|im_system|>tool_declare<|im_middle|>{declare(conversation.tools)}<|im_end|>")
    messages = conversation.messages
    answers = [i for i, message in enumerate(messages) if message.role == "assistant" and not message.calls]
    # While training the last answer is the one being written; everything before the answer preceding it is history.
    writing = [i for i in answers if generate or i != len(messages) - 1]
    last_answer = writing[-1] if writing else -1
    for i, message in enumerate(messages):
        if message.role == "assistant":
            given("<|im_assistant|>assistant<|im_middle|><think>")
            if conversation.thinking and i > last_answer and message.thought is not None:
                segments.append((f"{message.thought}</think>", message.learn))
                text = message.content if message.after_thought is None else message.after_thought
            else:
                given("</think>")
                text = message.content
            if message.calls:
                calls = "".join(f"<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>" for id, arguments in message.calls)
                text += f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
            segments.append((text + "<|im_end|>", message.learn))
        elif message.role == "tool":
            given(f"<|im_system|>tool<|im_middle|>## Return of {message.call_id}\n{message.content}<|im_end|>")
        else:
            token = "<|im_user|>" if message.role == "user" else "<|im_system|>"
            given(f"{token}{message.role}<|im_middle|>{message.content}<|im_end|>")
    if generate:
        given("<|im_assistant|>assistant<|im_middle|><think>" + ("" if conversation.thinking else "</think>"))
    return segments
