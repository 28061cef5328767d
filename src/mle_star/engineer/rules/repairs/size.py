"""Scripts that need too much memory or time."""

from __future__ import annotations

import ast
import re

from mle_star.engineer.rules.broken import Broken


def unused(broken: Broken) -> str | None:
    """Leave out what takes the room and is never used."""
    node = broken.statement
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    if len(re.findall(rf"\b{node.targets[0].id}\b", broken.code)) > 1:
        return None
    return broken.with_text(f"{broken.indent}pass" if broken.indent else "")


def with_fewer_words(code: str) -> str:
    """Bound the vocabularies that have no bound; arguments may hold brackets of their own."""
    try:
        calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return code
    lines = code.splitlines(keepends=True)
    starts = [sum(len(line.encode()) for line in lines[:number]) for number in range(len(lines) + 1)]
    places = []
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        bound = any(word.arg in ("max_features", "vocabulary", None) for word in call.keywords)
        end_line, end = call.func.end_lineno, call.func.end_col_offset
        if name in ("TfidfVectorizer", "CountVectorizer") and not bound and not call.args and end_line and end:
            places.append((starts[end_line - 1] + end, bool(call.keywords)))
    text = code.encode()
    for place, more in sorted(places, reverse=True):
        opening = text.index(b"(", place) + 1
        text = text[:opening] + b"max_features=20000" + (b", " if more else b"") + text[opening:]
    return text.decode()


def smaller(broken: Broken) -> str | None:
    """Less memory and less time: no dense copies, bounded vocabularies, capped rows, fewer trees and searches."""
    code = re.sub(r"\.(toarray|todense)\(\)", "", broken.code)
    code = with_fewer_words(code)
    code = re.sub(
        r"PolynomialFeatures\((degree=)?[3-9]",
        r"PolynomialFeatures(\g<1>2" if "degree=" in code else r"PolynomialFeatures(2",
        code,
    )
    code = re.sub(
        r"\b(n_estimators|iterations|max_iter|n_iter|num_boost_round|epochs)=(\d{3,})",
        lambda m: f"{m[1]}={max(int(m[2]) // 5, 50)}",
        code,
    )
    code = re.sub(r"\bcv=(\d+)", "cv=3", code)
    code = re.sub(r"sparse_output=False", "sparse_output=True", code)
    big = re.search(
        r"np\.(zeros|ones|empty|random\.rand|random\.randn)\(\(?[^()]*(\d{5,}|\d+_000|len\([^()]*\)[^()]*len\()", code
    )
    if big and broken.statement is not None and big[0] in broken.text:
        return broken.with_text(f"{broken.indent}pass" if broken.indent else "")
    read = re.search(rf"^(\w+) = pd\.read_\w+\([^\n]*{re.escape(broken.profile.train.name)}[^\n]*$", code, re.MULTILINE)
    if read and ".sample(n=" not in code and broken.profile.rows > 2_000:
        rows = min(broken.limit, max(broken.profile.rows // 3, 1_000))
        fewer = f"{read[1]}.sample(n={rows}, random_state=42).reset_index(drop=True)"
        cap = f"if len({read[1]}) > {rows}:\n    {read[1]} = {fewer}"
        code = code.replace(read[0], f"{read[0]}\n{cap}", 1)
    repeated = re.search(r"pd\.concat\(\[(\w+)\] \* \d+", code)
    if repeated:
        code = re.sub(r"pd\.concat\(\[(\w+)\] \* \d+[^()]*\)", r"\1", code)
    return code if code != broken.code else None
