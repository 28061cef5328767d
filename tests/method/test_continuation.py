"""Pieces of a reply that was cut at the limit of tokens, made one reply again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.method.codeblocks import extract_code_block, joined
from mle_star.models import ExtractorOutput
from mle_star.sdk.replies import read_structured

SCRIPT = '''import json

def doubled(x):
    """Twice.

    ```python
    doubled(2)
    ```
    """
    return 2 * x

print(json.dumps({"a": doubled(1)}))'''
SIMPLE = SCRIPT.replace("    ```python\n", "").replace("    ```\n", "")
REPLY = f"Here it is.\n\n```python\n{SCRIPT}\n```\nDone."


@given(place=st.integers(0, len(REPLY)), other=st.integers(0, len(REPLY)))
def test_a_reply_that_goes_on_where_it_was_cut_is_as_if_it_had_not_been(place: int, other: int) -> None:
    first, second = sorted((place, other))
    whole = joined(joined(REPLY[:first], REPLY[first:second]), REPLY[second:])
    assert extract_code_block(whole) == SCRIPT


@given(place=st.integers(0, len(SIMPLE)), words=st.sampled_from(["", "Continuing where I left off:\n\n"]))
def test_a_piece_that_opens_the_fence_again_goes_on_in_the_same_block(place: int, words: str) -> None:
    before = f"Here it is.\n\n```python\n{SIMPLE[:place]}"
    line = SIMPLE.rfind("\n", 0, place) + 1
    is_blank = not SIMPLE[line:place].strip()  # of a cut inside the indentation nobody knows what the rest repeats
    for start in {0, line, line if is_blank else place}:  # all of it once more, the line that was cut, or its rest
        code = extract_code_block(joined(before, f"{words}```python\n{SIMPLE[start:]}\n```\nDone."))
        assert code == SIMPLE


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("```python\nx = 1", "y = 2\n```", "x = 1\ny = 2"),  # the line break was lost
        ("```python\nx = 1", "```python\ny = 2\n```", "x = 1\ny = 2"),
        ("```\nx = 1\n", "```\ny = 2\n```", "x = 1\ny = 2"),  # a bare fence opens, as another one closes
        ("```python\nx = 1\n", "```\nRun it:\n```bash\npython x.py\n```", "x = 1"),  # ... and here it closes
        ("```python\nx = 1\n", "y = 2\n", "x = 1\ny = 2"),  # never closed
        ("```python\nx = 1\n```\nThen ", "```python\nx = 1\ny = 2\n```", "x = 1\ny = 2"),  # no block was open
        ("~~~python\nx = [", "~~~python\n1]\n~~~", "x = [1]"),
    ],
)
def test_pieces_are_joined_in_the_likeliest_way(before: str, after: str, code: str) -> None:
    assert extract_code_block(joined(before, after)) == code


def test_json_that_was_cut_is_read_as_one_value() -> None:
    value = {"plans": [{"code_block": "x = 1", "plan": "try 2"}]}
    text = json.dumps(value)
    for place in range(len(text)):
        for again in ("", "```json\n"):
            whole = joined(f"```json\n{text[:place]}", f"{again}{text[place:]}\n```")
            assert read_structured(ExtractorOutput, whole) == value
