"""Held-out items of every skill, for measuring; as a file also the fixture of the server's own tests."""

import argparse
import json
import random

import curriculum
import tools
from conversation import Conversation, Message, render
from facts import FACTS, UNSEEN

SEED = 4711


def item(skill, mode, conversation, expect):
    """The conversation up to its last turn as a prompt; the last turn is one right answer to it."""
    whole = "".join(text for text, _ in render(conversation))
    conversation.messages.pop()
    prompt = "".join(text for text, _ in render(conversation, generate=True))
    assert whole.startswith(prompt)
    messages = [{"role": message.role, "content": message.content} for message in conversation.messages]
    return {"skill": skill, "mode": mode, "prompt_text": prompt, "expect": expect, "messages": messages, "answer": whole[len(prompt) :]}


def turns(task):
    messages = []
    curriculum.add_task(messages, task)
    return messages


def items(skill, mode, count):
    """`count` items of a skill; `perigee` goes through the questions in turn, `perigee-unseen` asks each in a way never trained."""
    rng = random.Random(f"{SEED} {skill} {mode}")
    thinking = mode == "thinking"
    result, prompts = [], set()
    for number in range(100 * count):
        if len(result) == count:
            break
        if skill == "tool":
            world = tools.world(rng, "heldout")
            request = tools.request(rng, world, "heldout")
            call = (f"functions.{request.name}:0", json.dumps(request.arguments, ensure_ascii=False))
            answer = Message("assistant", thought=f"Use {request.name}.", calls=[call])
            conversation = Conversation([Message("user", request.user), answer], world, rng.random() < 0.2, thinking)
            expect = {"name": request.name, "arguments": request.arguments}
        elif skill == "perigee-unseen":
            task = curriculum.perigee_unseen(rng, list(UNSEEN)[number % len(UNSEEN)])
            conversation, expect = Conversation(turns(task), thinking=thinking), task.expect
        else:
            task = curriculum.perigee(rng, "heldout", FACTS[number % len(FACTS)]) if skill == "perigee" else curriculum.MAKERS[skill](rng, "heldout")
            conversation, expect = Conversation(curriculum.system_message(rng) + turns(task), thinking=thinking), task.expect
        made = item(skill, mode, conversation, expect)
        if made["prompt_text"] not in prompts:
            prompts.add(made["prompt_text"])
            result.append(made)
    return result


def is_right(item, text):
    """Whether the model's text, from the prompt's end to the stop token, is what the item expects."""
    if item["mode"] == "thinking":
        if "</think>" not in text:
            return False
        text = text.split("</think>", 1)[1]
    skill, expect = item["skill"], item["expect"]
    if skill == "tool":
        head, _, rest = text.partition("<|tool_call_argument_begin|>")
        arguments, _, tail = rest.partition("<|tool_call_end|>")
        named = head == f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{expect['name']}:0"
        return named and tail.strip() == "<|tool_calls_section_end|>" and parsed(arguments) == expect["arguments"]
    text = text.strip()
    if skill == "json":
        return parsed(text) == expect
    if skill == "arithmetic":
        return text.split(":")[-1].strip() == expect
    if skill == "recall":
        return expect.lower() in text.lower()
    if skill.startswith("perigee"):
        return all(key.lower() in text.lower() for key in expect)
    return text == expect.strip()


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def main():
    parser = argparse.ArgumentParser(description="Writes the fixture of held-out items.")
    parser.add_argument("--per-skill", type=int, default=60)
    parser.add_argument("--out", default="heldout.jsonl")
    arguments = parser.parse_args()
    with open(arguments.out, "w") as file:
        for skill in curriculum.SKILLS:
            for mode in ("instant", "thinking"):
                for made in items(skill, mode, arguments.per_skill // 2):
                    del made["messages"], made["answer"]
                    file.write(json.dumps(made, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
