"""Sample values for every prompt, shared by the tests of the prompts."""

from typing import Any

from markdown_it import MarkdownIt

from mle_star.models import AgentType, MetricDirection
from mle_star.prompts import BLOCK_NOT_FOUND, PromptRegistry, render

SCRIPT = 'import pandas as pd\n\ntrain = pd.read_csv("./input/train.csv")\nprint({"rows": len(train)})\n'
TRACEBACK = "Traceback (most recent call last):\n  File \"solution.py\", line 3\nKeyError: 'Age'"
SAMPLES: dict[str, Any] = {
    "task_description": "Predict who survives. Files: {train, test}.csv",
    "M": 4,
    "model_name": "LightGBM",
    "example_code": "model = LGBMClassifier(**{'n_estimators': 100})",
    "base_code": "base = 1",
    "reference_code": "reference = 2",
    "solution_script": SCRIPT,
    "previous_ablations": ["The scaler hardly matters.", "The encoder matters most."],
    "ablation_code": "print('Ablation baseline: 0.82')",
    "raw_result": "Ablation baseline: 0.82",
    "ablation_summary": "The encoder matters most.",
    "previous_code_blocks": ["scaler = StandardScaler()"],
    "code_block": "model = Ridge()",
    "plan": "Average the predictions of both models.",
    "plans": ["plan A", "plan B"],
    "scores": [0.82, None],
    "L": 2,
    "solutions": ["first = 1", 'second = """\n```\n"""'],
    "code": SCRIPT,
    "bug": TRACEBACK,
    "initial solution": SCRIPT,
    "task description": "Predict who survives. The .xyz file holds the geometry.",
    "final solution": SCRIPT,
    "code block with subsampling": "train = train.sample(n=30000, random_state=42)",
    "reference discussion": "We used a ridge regression.",
    "metric": "accuracy",
    "direction": MetricDirection.maximize,
    "subsample_limit": 30000,
    "flagged_block": "scaler.fit(everything)",
    "note": BLOCK_NOT_FOUND,
}
NAMES = [prompt.name for prompt in PromptRegistry()]


def sample(name: str, *, optional: bool = True, **changes: Any) -> str:
    """The prompt called `name`, filled with the samples."""
    prompt = next(prompt for prompt in PromptRegistry() if prompt.name == name)
    names = (*prompt.variables, *(prompt.optional if optional else ()))
    values = {key: SAMPLES[key] for key in names if key in SAMPLES}
    return render(AgentType(prompt.agent_type), prompt.variant, **{**values, **changes})


def sections(text: str) -> dict[str, str]:
    """The top-level sections of a prompt by heading, read as Markdown; what stands before them has none."""
    lines, tokens = text.split("\n"), MarkdownIt("commonmark").parse(text)
    heads = [
        (token.map[0], tokens[number + 1].content)
        for number, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h1" and token.map
    ]
    ends = [*[line for line, _ in heads[1:]], len(lines)]
    found = {title: "\n".join(lines[line + 1 : end]) for (line, title), end in zip(heads, ends, strict=True)}
    return {"": "\n".join(lines[: heads[0][0]]), **found}


def parts(text: str) -> dict[str, str]:
    """The sections of a prompt: fenced text if there is one, else the lines."""
    found = {}
    for title, body in sections(text).items():
        fences = [token.content for token in MarkdownIt("commonmark").parse(body) if token.type == "fence"]
        plain = title in ("", "Answer", "Metric") or not fences
        found[title] = body.strip("\n") if plain and title else body if plain else fences[0][:-1]
    return found
