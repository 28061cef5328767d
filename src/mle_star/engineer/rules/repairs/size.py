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


def smaller(broken: Broken) -> str | None:
    """Less memory and less time: no dense copies, bounded vocabularies, capped rows, fewer trees and searches."""
    code = re.sub(r"\.(toarray|todense)\(\)", "", broken.code)
    code = re.sub(r"(TfidfVectorizer|CountVectorizer)\((?![^()]*max_features)", r"\1(max_features=20000, ", code)
    code = code.replace(", )", ")")
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
