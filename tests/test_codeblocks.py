"""Taking code out of replies, finding blocks in scripts and putting them back."""

import ast
import gc
import json
import re
import textwrap
import time
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mle_star.engineer.design import settings_in
from mle_star.method import codeblocks as cb
from mle_star.method.excerpts import changed_lines, excerpt, new_lines
from mle_star.models import ExtractorOutput, SolutionPhase, SolutionScript
from mle_star.phase2_outer import validate_code_block
from mle_star.sdk.replies import read_structured
from tests.conftest import as_kept


def fence(code: str, tag: str = "python") -> str:
    """`code` in a fence that is longer than any run of backticks in it."""
    ticks = "```"
    while ticks in code:
        ticks += "`"
    return f"{ticks}{tag}\n{code}\n{ticks}"


def cut(text: str) -> str:
    """Without blank lines at its ends."""
    return re.sub(r"\A(?:[^\S\n]*\n)+|(?:\n[^\S\n]*)+\Z|\A\s*\Z", "", text)


LONG = "\n".join(f"value_{i} = {i} * 2  # a line of the script " for i in range(1200))  # some 50 KB
NESTED_FENCES = ["```\n```a\n```\n```\n", "```py\nx\n```py\ny\n```\n```\n", "> ```\n", " - ```\n"]
CODE = st.text(
    st.sampled_from(list("abcxyz =()[]{}#'\"\\`~\n\n  \t%:.-+*0123456789éß\u2028\x0c")), min_size=0, max_size=200
).filter(lambda text: cut(text) != "")
PROSE = st.text(st.sampled_from(list("abc xyz.,:!\n#-*1")), max_size=60)


@pytest.mark.req("REQ-SF-005")
@given(code=CODE, before=PROSE, after=PROSE, tag=st.sampled_from(["python", "", "py", "Python"]))
def test_what_is_extracted_from_a_rendered_fence_is_what_went_in(code: str, before: str, after: str, tag: str) -> None:
    assert cb.extract_code_block(f"{before}\n\n{fence(code, tag)}\n\n{after}") == cut(code)


DOCSTRING = 'def f():\n    """Use:\n\n    ```\n    f()\n    ```\n    """\n    return 1'
NESTED = "doc = '''\n```python\ninner\n```\n'''"
REPLIES = [
    "~~~python\nx = 1\n~~~", "```python\nx = 1\ny = 2", "```python\nx = 1\r\ny = 2\r\n```", "```python\n```",
    "```\n\n```", "Sure:\n```python\nx = 1\n```\nand then\n```python\nlonger = 2\n```\nbye", "  print(1)\n\n", "",
    "Run ```x``` inline", "```python\na = '''\n```python\ninner\n```\n'''\n```\nafter",
    "````python\na = '''\n```\n'''\n````", "x = 1", "Sorry", "```python\na = '''\n~~~\n'''\n```",
    "1. do\n   ```python\n   x = 1\n   ```\n", "> ```python\n> x = 1\n> ```\n", "x = (",
    "Look:\n    ```python\n    x = 1\n    ```\n", "```json\n[1, 2]\n```", "I am not sure", "sorry, none", "a\0b = 1",
    "```bash\npip install everything at once\n```\n```python\nx = 1\n```", "'just a string'",
    "```bash\npip install x\n```", "```python\nx = 1\n\nwell, again:\n\n```python\nx = 1\ny = 2\n```",
    "Here:\r```python\rx = 1\ry = 2\r```\rDone.", f"```python\n{DOCSTRING}\n```",
    f"```python\n{NESTED}\n```\ntext\n```python\n{NESTED}\nmore = 1\n```", "import pandas as pd\nprint(pd)",
    "```python\nz = 1\n```text\nno python!\n```python\na = 1\nb = 2\n```text\nnor here!", "```train.py\nx\n```",
    "```python\nfoo bar(\n```python\nalso not(", "```\n# first\npip install x\n$ sudo apt-get install y\n```",
    "```python\n!pip install x\n```", "Run this:\n```sh\npython train.py\n```\nand look at\n```json\n[1, 2]\n```",
    "```bash\npip install a b c d e f\n```\n```py\nx\n```", "```{.python .numberLines}\nx\n```",
    "```python:train.py\nx\n```", "```Python3.11 title=a\nx\n```", "```python\n# the feature is gone\n```",
]  # fmt: skip
"""An indented fence ends no block, and fences that do not pair up leave the longest piece of Python."""


@pytest.mark.req("REQ-SF-005")
def test_fences_are_read_by_the_rules_and_only_python_counts_as_code() -> None:
    lines = list[str]()
    for reply in REPLIES:
        lines += [f"{cb.has_extractable_code(reply)}, {reply!r}", f"    {cb.extract_code_block(reply)!r}"]
    as_kept("method/replies.txt", "\n".join(lines))
    for deep in ("(" * 5000 + ")" * 5000, "x = " + "-" * 20_000 + "1"):  # the parser runs out of memory, or of depth
        assert not cb.has_extractable_code(deep)
    assert cb.has_code_fence("gone:\n```python\n```") and cb.has_code_fence("> ```py\n> x\n> ```"), "empty ones, too"
    assert not cb.has_code_fence("there is no subsampling") and not cb.has_code_fence("```bash\nls\n```")


@pytest.mark.req("REQ-SF-005")
def test_fences_are_read_line_by_line_to_the_letter() -> None:
    tilde, text = "```python\nx = 1\n~~~\nmore = 2\n", "```text\na long text, no code\n```\n```python\ny = 1\n```"
    nested, inside = '~~~python\ns = """\n```bash\nls\n```\n"""\n~~~', 's = """\n```bash\nls\n```\n"""'
    codes = {tilde: "x = 1", text: "a long text, no code", nested: inside, "```\nopen = 1": "open = 1"}
    for end in ("\n", "\r", "\r\n"):
        assert {one: cb.extract_code_block(one.replace("\n", end), by_line=True) for one in codes} == codes
    assert [cb.extract_code_block(reply) for reply in (tilde, text)] == ["x = 1\n~~~\nmore = 2", "y = 1"]
    assert not cb.has_extractable_code("```python\n~~~\nx = 1", by_line=True)
    assert cb.has_extractable_code("```text\nwords\n```", by_line=True)


@given(st.text(st.sampled_from(list("`~ \nab\tpython>-1.")), max_size=120))
def test_no_reply_is_too_odd_to_be_read(response: str) -> None:
    assert isinstance(cb.extract_code_block(response), str) and cb.has_extractable_code(response) in (True, False)


def test_compiles_says_what_python_would_and_inherits_none_of_our_imports() -> None:
    able = ("x = 1", "s = '\\d'", "from __future__ import annotations\nx: int = 1")
    assert [cb.compiles(code) for code in (*able, "x = ", "return 1", "\0")] == [True] * 3 + [False] * 3


class Lost:
    """What parses once it is collected, as the report of a task does that nobody waits for."""

    def __del__(self) -> None:
        ast.parse("(f(a) + g(b)) * [c for c in d]")


@pytest.mark.parametrize("read", [cb.parsed, settings_in])
def test_what_is_parsed_in_the_midst_of_parsing_does_no_harm(read: Callable[[str], object]) -> None:
    code, usual = "\n".join(f"X{i} = f(a, g(b + {i}) * [c for c in d])" for i in range(300)), gc.get_threshold()
    gc.freeze()  # what other tests have left is not looked through each time
    for threshold in range(50, 70):
        for lost in (Lost() for _ in range(20)):
            vars(lost)["itself"] = lost
        del lost
        try:
            gc.set_threshold(threshold, 1, 1)
            assert read(code)
        finally:
            gc.set_threshold(*usual)
            gc.collect()  # none of them parses in another test
    gc.unfreeze()


@pytest.mark.req("REQ-P2O-031", "REQ-P2O-032")
@pytest.mark.parametrize(
    ("most", "read"),
    [
        (0.5, lambda: cb.extract_code_block(fence(LONG)) == LONG),
        (0.05, lambda: validate_code_block(LONG[-25_000:], SolutionScript(content=LONG, phase=SolutionPhase.init))),
        (5, lambda: cb.locate_block("\n".join(line.rstrip() for line in LONG.split("\n")[1100:1150]), LONG)),
        *((5, lambda one=one: isinstance(cb.has_extractable_code(one * 5000), bool)) for one in NESTED_FENCES),
    ],
)
def test_long_scripts_and_replies_full_of_fences_are_read_quickly(most: float, read: Callable[[], object]) -> None:
    started = time.process_time()
    assert read() and time.process_time() - started < most


def replaced(script: str, old: str, new: str) -> str:
    """The script as `replace_block` leaves it."""
    whole = SolutionScript(content=script, phase=SolutionPhase.init)
    return whole.replace_block(*cb.replacement(script, old, new)).content


SCRIPT = (
    "import os\n\nscaler = StandardScaler()   \nX = scaler.fit_transform(X)\t\n\n"
    "if X:\n    y = 1\n    z = 2\nprint(1)\n"
)
BLOCKS = [
    "import os", "import os\n\nscaler = StandardScaler()\nX", "X = scaler.fit_transform(X)  \n\nif X:\n",
    "```python\n    y = 1\n    z = 2\n```", "y = 1\n    z = 2", "y = 1\r\n    z = 2\r\n", "\n\nprint(1)\n\n",
]  # fmt: skip


@pytest.mark.req("REQ-P2O-018")
def test_a_block_is_found_in_spite_of_trailing_blanks() -> None:
    as_kept("method/blocks.txt", "\n".join(f"{block!r}\n    {cb.locate_block(block, SCRIPT)!r}" for block in BLOCKS))


@pytest.mark.req("REQ-P2O-018")
@given(
    lines=st.lists(st.tuples(st.sampled_from(["a", "  b = 1", "c()", ""]), st.sampled_from(["", " ", "\t ", "\r"]))),
    window=st.tuples(st.integers(0, 8), st.integers(1, 6)),
)
def test_what_is_found_is_a_slice_that_reads_the_same(lines: list[tuple[str, str]], window: tuple[int, int]) -> None:
    script = "\n".join(text + blanks for text, blanks in lines)
    block = "\n".join(text for text, _ in lines[window[0] : window[0] + window[1]])
    assume(block.strip())
    found = cb.locate_block(block, script)
    assert found is not None and found in script
    assert cut("\n".join(line.rstrip() for line in found.split("\n"))) == cut(block)


@given(
    head=st.lists(st.sampled_from(["import os", "", "# note"]), max_size=3),
    old=st.lists(st.sampled_from(["a = 1", "b = 2", "c = [3]"]), min_size=1, max_size=3),
    new=st.lists(st.sampled_from(["d = 4", "e = 5", "", "f(6)"]), min_size=1, max_size=3),
    tail=st.lists(st.sampled_from(["print(7)", ""]), max_size=2),
    depth=st.integers(0, 2),
)
def test_replacing_back_restores(head: list[str], old: list[str], new: list[str], tail: list[str], depth: int) -> None:
    body, changed, indent = "\n".join(old), cut("\n".join(new)), "    " * depth
    assume(changed)
    wrap = "".join("    " * level + f"if {level}:\n" for level in range(depth))
    inside, other = textwrap.indent(body, indent), textwrap.indent(changed, indent)
    script = "\n".join([*head, wrap + inside, *tail])
    there = replaced(script, inside, other)
    assert there == script.replace(inside, other, 1) and replaced(there, other, inside) == script
    # A block that lost its indentation on the way lands in the same place.
    assert replaced(script, inside, changed) == there == replaced(script, inside.lstrip(), changed)


FUNCTION = "def train(x):\n    y = x\n    return y\n\nprint(train(1))\n"
REPLACED = [
    ("a = 1\nb = 2\na = 1\n", "a = 1", "a = 9"),
    ("a = (\nb = 1\nb = 1\n", "b = 1", "b = 2"),  # even when nothing compiles
    # indentation that was lost on the way
    (FUNCTION, "    y = x\n    return y", "y = x * 2\nif y > 3:\n    y = 3\nreturn y"),
    ("if ready:\n    x = 1\n    y = 2\nprint(1)\n", "    y = 2", "y = 3"),  # although it would compile outside
    ("x = 1\ny = 2\n", "y = 2", "    y = 3\n    z = 4"),
    ("def f():\n    s = ''\n    return s\n", "    s = ''", "s = '''one\ntwo\n'''"),  # the insides of strings stay
    ("if a:\n    s = 0\n", "    s = 0", "    s = '''\n    one'''"), ("if a:\n    x = 1\n", "    x = 1", "x = ("),
    # a line end that belonged to the block
    ("x = 1\ny = 2\n", "x = 1\n", "x = 9"), ("a = 1\nb = 2\nc = 3\n", "b = 2\n", "b = 4\n"),
    # whole lines come first, and no word is cut
    ("max_level = 0.5\nlevel = 0.5\n", "level = 0.5", "NEW = 1"), ("y = s.fit(x)\n", "fit(x)", "NEW = 1"),
    ("SCORE = 0.83\nSCORE = 0.8\n", "SCORE = 0.8", "NEW = 1"),
    ("f(a=1)\nif b:\n    a=1  \n", "a=1", "NEW = 1"), ("x = f(a, b)\n", "f(a, b)", "NEW = 1"),
]  # fmt: skip


@pytest.mark.req("REQ-P2I-022", "REQ-SF-021")
def test_a_block_is_replaced_where_it_stood_and_as_it_was_meant() -> None:
    lines = [f"{script!r}, {old!r}, {new!r}\n    {replaced(script, old, new)!r}" for script, old, new in REPLACED]
    as_kept("method/replaced.txt", "\n".join(lines))
    assert all(cb.locate_block(f"{old} ", script) is not None for script, old, _ in REPLACED)


MISSING = [
    ("max_level = 0.5", "level = 0.5"), ("SCORE = 0.83", "SCORE = 0.8"), ("x = 10.5", "x = 10"), ("x = 1", " "),
    ("x = 1", ""), ("x = 1", "nowhere"), ("x = 1", "  \n "), ("x = 1", "```python\n```"), ("x = 1", "x  = 1"),
    (SCRIPT, "y = 1\nz = 2"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "old"), MISSING)
def test_what_is_missing_or_part_of_a_word_or_number_is_no_block(script: str, old: str) -> None:
    assert cb.locate_block(old, script) is None
    with pytest.raises(ValueError, match="block not found"):
        cb.replacement(script, old, "y")


START = "import a\n\ndef fit():\n    x = 1\n    y = 2\n    return x + y\n\nprint(fit())\n"
INSIDE = "    x = 1\n    y = 2"
MOVED = [
    (INSIDE, INSIDE), (INSIDE, "    x = 7"), ("x = 1\n    y = 2", "x = 7\n    y = 8"), ("    x = 1\n", ""), ("1", "12"),
    ("    y = 2\n", "    y = 3\n    z = 4\n"), ("x", "longer"), (INSIDE, f"    w = 0\n{INSIDE}"),
]  # fmt: skip


def test_the_block_of_a_changed_script_stands_in_its_place() -> None:
    lines = []
    for block, new in MOVED:
        script = START.replace(block, new, 1)
        changed = (script, f"import b\n{script}end()\n")  # the rest of the script as well
        lines.append(f"{block!r}, {new!r}: {[cb.block_in(one, START, block) for one in changed]}")
    as_kept("method/moved.txt", "\n".join(lines))
    assert cb.block_in(f"import b\n{START[9:]}end()\n", START, "import a") == "import b"
    assert cb.block_in(f"import b\n{START.replace('fit())', '7)')}", START, "print(fit())\n") == "print(7)"
    assert (cb.block_in("all is new", START, "    x = 1"), cb.block_in(START, START, "not there")) == ("all is new", "")
    steps = "go()\n" * 300  # in a long script a line that comes often counts as any other
    assert cb.block_in(f"import b\n{steps}y = 2\n{steps}", f"import a\n{steps}x = 1\n{steps}", "x = 1") == "y = 2"


WHOLE = '''import json

def doubled(x):
    """Twice.

    ```python
    doubled(2)
    ```
    """
    return 2 * x

print(json.dumps({"a": doubled(1)}))'''
SIMPLE = WHOLE.replace("    ```python\n", "").replace("    ```\n", "")
ANSWER = f"Here it is.\n\n```python\n{WHOLE}\n```\nDone."


@example(ANSWER.index('```\n    """') + 1, 0)  # inside a fence
@given(place=st.integers(0, len(ANSWER)), other=st.integers(0, len(ANSWER)))
def test_a_reply_that_goes_on_where_it_was_cut_is_as_if_it_had_not_been(place: int, other: int) -> None:
    first, second = sorted((place, other))
    assume(ANSWER.index("```python\n    doubled") not in (first, second))  # a fence may also open the block again
    assert cb.extract_code_block(cb.joined(cb.joined(ANSWER[:first], ANSWER[first:second]), ANSWER[second:])) == WHOLE


@given(place=st.integers(0, len(SIMPLE)), words=st.sampled_from(["", "Continuing where I left off:\n\n"]))
def test_a_piece_that_opens_the_fence_again_goes_on_in_the_same_block(place: int, words: str) -> None:
    before, line = f"Here it is.\n\n```python\n{SIMPLE[:place]}", SIMPLE.rfind("\n", 0, place) + 1
    is_blank = not SIMPLE[line:place].strip()  # of a cut inside the indentation nobody knows what the rest repeats
    for start in {0, line, line if is_blank else place}:  # all of it once more, the line that was cut, or its rest
        assert cb.extract_code_block(cb.joined(before, f"{words}```python\n{SIMPLE[start:]}\n```\nDone.")) == SIMPLE


PIECES = [
    ("```python\nx = 1", "y = 2\n```"), ("~~~python\nx = [", "~~~python\n1]\n~~~"),
    ("```python\nx = 1", "```python\ny = 2\n```"), ("```python\nx = 1\n", "y = 2\n"),
    ("```\nx = 1\n", "```\ny = 2\n```"),  # a bare fence opens, as another one closes
    ("```python\nx = 1\n", "```\nRun it:\n```bash\npython x.py\n```"),  # ... and here it closes
    ("```python\nx = 1\n```\nThen ", "```python\nx = 1\ny = 2\n```"),
]  # fmt: skip


def test_pieces_are_joined_in_the_likeliest_way() -> None:
    lines = [f"{one!r} + {two!r}\n    {cb.extract_code_block(cb.joined(one, two))!r}" for one, two in PIECES]
    as_kept("method/joined.txt", "\n".join(lines))


def test_json_that_was_cut_is_read_as_one_value() -> None:
    value = {"plans": [{"code_block": "x = 1", "plan": "try 2"}]}
    text = json.dumps(value)
    for place in range(len(text)):
        for again in ("", "```json\n"):
            whole = cb.joined(f"```json\n{text[:place]}", f"{again}{text[place:]}\n```")
            assert read_structured(ExtractorOutput, whole) == value


CANDIDATES = [
    ("LightGBM", ""), ("ResNet", "SVC(1); SVC(2); KNeighborsRegressor()"), ("something", "x = 1"),
    ("A strong baseline", "m = make()\nx = RandomForestClassifier(9)  # SVC()\nSimpleImputer()"),
]  # fmt: skip
SHAPED = """
x = fit(rate=3e-4, depth=12)  # deeper | x = fit(rate=-0.1, depth=6) | x = fit(rate='0.1', depth=6) | x = fit(depth=6) |
x = fit(rate=True, depth=6) | x = fit(rate=0.1, depth=6
"""


def test_candidates_are_known_by_family_and_what_they_use_and_scripts_of_one_shape_differ_in_numbers_alone() -> None:
    built = [(name, cb.built_in(code)) for name, code in CANDIDATES]
    lines = [f"{name}: {cb.family_of(name, used)!r}, {used}" for name, used in built]
    for other in SHAPED.replace("\n", " ").split(" | "):
        lines.append(f"{other.strip()}: {cb.shape_of(other.strip()) == cb.shape_of('x = fit(rate=0.1, depth=6)')}")
    as_kept("method/alike.txt", "\n".join(lines))
    long = "x = " + " + ".join("a" * 1500)  # Python reads it; what goes through its tree by calls does not
    assert cb.shape_of(long) == cb.shape_of(long) != cb.shape_of(f"{long} + 1")


REST = "  # a remark that makes this line so long that leaving it out is worth its while for everybody" * 3
LINKED = """\
import lightgbm as lgb

def clean(table):
    table["a"] = table["a"].fillna(0)
    return table

train = clean(read("train"))
words = count_words(train)REST
depth = 3
params = {"depth": depth, "rounds": 100}
for a, b in folds.split(train):
    model = lgb.train(params, train[a])
    seen = model.predict(train[b])
chart = words.draw()REST
scaler = Scaler()
scaled = scaler.fit_transform(train)REST
near = scaler.transform(words)REST
print(f"Final Validation Performance: {score(seen)}")""".replace("REST", REST)


def test_an_excerpt_shows_what_lines_rest_on_and_what_uses_them_and_new_lines_are_told_from_known_ones() -> None:
    script, lines = LINKED + "".join(f"\nother_{n} = {n} * {n}" for n in range(30)), list[str]()
    for line in ("depth = 3", "words =", "chart =", "near =", "    model =", '    table["a"]'):
        text = excerpt(script, {next(n for n, text in enumerate(LINKED.splitlines(), 1) if text.startswith(line))})
        lines += [f"--- {line}", text.replace(REST, " ...")]
        left = [one for one in text.splitlines() if one.strip() and " lines ..." not in one]
        assert all(one in script.splitlines() for one in left)
    as_kept("method/excerpts.txt", "\n".join(lines))
    assert excerpt(LINKED + "\n(", {1}) == LINKED + "\n(", "what cannot be parsed is shown whole"
    assert (changed_lines("a\nb\nc", "a\nB\nc\nd"), changed_lines("a\nb\nc", "a\nc\nc")) == ({2, 4}, {2})
    assert new_lines(f"a\nblend\n{'c' * 200}\nd", [f"a\nb\n{'c' * 200}\nd"]).splitlines() == [
        "a", "blend", "# ... 2 lines ...",
    ]  # fmt: skip
