"""Servers that speak the Messages API and know less of it than Anthropic's: no tools, JSON as small models write it."""

from __future__ import annotations

import json
import sys
import time

import pytest
from claude_agent_sdk import ResultMessage
from pydantic import BaseModel

from mle_star.engineer.server import BrainReply, BrainRequest, Fault
from mle_star.models import AgentType, LeakageDetectionOutput, agent_config
from mle_star.prompts import render
from mle_star.sdk.replies import Failure, Turn, outcome_of, read_structured
from mle_star.testing import ScriptedBrain
from tests.sdk.conftest import EXTRACTOR, PLANS, OpenBench

RETRIEVER = agent_config(AgentType.retriever)
SMALL_MODEL = '''Sure! Here are the models:
```json
{"models": [{"model_name": "LightGBM", "example_code": """import lightgbm as lgb
print("fit")
"""}]}
```'''


class WithoutTools(ScriptedBrain):
    """Refuses what carries a tool, as servers do that were never taught any."""

    async def reply(self, request: BrainRequest) -> BrainReply:
        reply = await super().reply(request)
        if request.tools:
            return BrainReply(fault=Fault("status", status=400, message="`tools` is not supported by this model"))
        return reply


async def test_a_server_that_refuses_tools_is_asked_for_json_in_the_text_from_then_on(open_bench: OpenBench) -> None:
    brain = WithoutTools()
    brain.always("extractor", json.dumps(PLANS))
    brain.always("retriever", SMALL_MODEL)
    async with open_bench(brain=brain) as bench:
        assert (await bench.ask(EXTRACTOR)).structured == PLANS
        models = (await bench.ask(RETRIEVER)).structured["models"]
        assert models == [{"model_name": "LightGBM", "example_code": 'import lightgbm as lgb\nprint("fit")\n'}]
        sent = [bool(request.tools) for request in brain.requests]
        assert sent == [True] * (len(sent) - 2) + [False, False], "only until the first call has learnt of it"
        assert "# Form of the reply" in brain.requests[-1].prompt and "example_code" in brain.requests[-1].prompt
        assert sum("knows no tools" in note for note in bench.notes) == 1


async def test_a_model_that_overlooks_the_tool_for_replies_is_understood_and_keeps_the_others(
    open_bench: OpenBench,
) -> None:
    brain = ScriptedBrain(json.dumps(PLANS))
    brain.always("retriever", SMALL_MODEL)
    async with open_bench(brain=brain, client_reuse="clear") as bench:
        for _ in range(2):
            assert (await bench.ask(EXTRACTOR)).structured == PLANS
        first, last = brain.requests[0], brain.requests[-1]
        assert first.wants_structured and not last.wants_structured and "Read" in last.tools
        assert "# Form of the reply" in last.prompt
        assert (await bench.ask(RETRIEVER)).structured["models"]
        assert {"WebSearch", "WebFetch"} <= set(brain.requests[-1].tools)
        assert sum("as text" in note for note in bench.notes) == 1


async def test_one_text_from_a_server_that_uses_tools_takes_none_away(open_bench: OpenBench) -> None:
    brain = ScriptedBrain(PLANS)
    async with open_bench(brain=brain, client_reuse="clear") as bench:
        await bench.ask(EXTRACTOR)
        brain.reply_with("extractor", *[json.dumps(PLANS)] * 6)
        await bench.ask(EXTRACTOR)
        await bench.ask(EXTRACTOR)
        assert brain.requests[-1].tools


async def test_json_as_small_models_write_it_is_repaired_and_prose_is_asked_for_once_more(
    open_bench: OpenBench,
) -> None:
    brain = ScriptedBrain()
    async with open_bench(brain=brain, tool_use="none", client_reuse="clear") as bench:
        brain.reply_with("extractor", "I would rather talk about the weather.", json.dumps(PLANS))
        assert (await bench.ask(EXTRACTOR, "Which block?")).structured == PLANS
        first, second = brain.requests
        assert second.prompt.startswith(first.prompt.partition("# Form")[0].rstrip())
        assert "# Your last reply" in second.prompt and "the weather" in second.prompt
        for written in (
            "{'plans': [{'code_block': 'x = 1', 'plan': 'y'}]}",
            '{"plans": [{"code_block": "x = 1", "plan": "y",},]}',
            '[{"code_block": "x = 1", "plan": "y"}',
        ):
            asked = len(brain.requests)
            brain.always("extractor", written)
            assert (await bench.ask(EXTRACTOR)).structured == PLANS
            assert len(brain.requests) == asked + 1


class Block(BaseModel):
    """What an agent may quote."""

    code: str


def test_half_a_pair_of_surrogates_in_a_reply_can_be_kept() -> None:
    """A script may look for emoji by them, and JSON that quotes it with one backslash says them."""
    found = read_structured(Block, {"code": "r'\ud83d[\ude00-\ude4f]'"}, "")
    assert found == {"code": "r'\\ud83d[\\ude00-\\ude4f]'"}
    assert Block(**found).model_dump_json()
    assert read_structured(Block, json.dumps({"code": "\ud83d"})) == {"code": "\\ud83d"}


@pytest.mark.req("REQ-SF-014")
def test_an_example_that_is_quoted_before_the_answer_is_no_answer() -> None:
    prompt = render(AgentType.leakage, "detection", code="x = 1")
    example = read_structured(LeakageDetectionOutput, prompt)
    assert example["answers"][0]["leakage_status"] == "No Data Leakage", "the prompt holds an example that fits"
    answer = {"answers": [{"leakage_status": "Yes Data Leakage", "code_block": "scaler.fit(data)"}]}
    reply = (
        f"The form is as follows. {prompt[-300:]}\nHere it is:\n```json\n{json.dumps(answer)}\n```\nDone {{so far}}."
    )
    assert read_structured(LeakageDetectionOutput, reply) == answer
    assert read_structured(LeakageDetectionOutput, answer, json.dumps(example)) == answer, "a tool comes before a text"


@pytest.mark.parametrize("piece", ["{", '{"', "]a{"])
async def test_a_reply_that_is_hard_to_repair_is_given_up_soon(piece: str) -> None:
    text = (piece * 40_000)[:40_000]
    result = ResultMessage("success", 1, 1, False, 1, "session", result=text)
    started = time.process_time()
    assert isinstance(outcome_of(EXTRACTOR, Turn(result=result, text=text)), Failure)
    assert time.process_time() - started < 5
    assert sys.getprofile() is None


@pytest.mark.parametrize("stuck", ["[", '{"a":', "[[{"])
def test_a_reply_without_an_end_is_no_reply(stuck: str) -> None:
    assert read_structured(Block, stuck * 200_000) is None and read_structured(Block, "[" * 900 + "]" * 900) is None
    assert read_structured(Block, '{"code": "x"} ' + stuck * 3) == {"code": "x"}
