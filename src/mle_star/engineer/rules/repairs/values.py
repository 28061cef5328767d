"""Values and shapes that a step cannot take: targets, texts among numbers, parts that do not belong together."""

from __future__ import annotations

import re

from mle_star.engineer.rules.broken import Broken


def target_without_gaps(broken: Broken) -> str | None:
    """Learn from the rows that have a target: where rows are split, else where a model is fitted."""
    for pattern in (r"^([ \t]*).*train_test_split\((\w+), (\w+)", r"^([ \t]*).*\.(?:split|fit)\((\w+), (\w+)"):
        found = re.search(pattern, broken.code, re.MULTILINE)
        if found:
            rows, truth = found[2], found[3]
            line = f"{found[1]}{rows}, {truth} = {rows}[pd.notna({truth})], {truth}[pd.notna({truth})]"
            return broken.code[: found.start()] + f"{line}\n" + broken.code[found.start() :]
    return None


def encode_target(broken: Broken) -> str | None:
    """Number the classes, for learners and metrics that want numbers."""
    target = broken.profile.targets[0]
    column = rf"\[['\"]{re.escape(target)}['\"]\]|\[\w+\]|\.{re.escape(target)}"
    pattern = rf"^(\s*)(y\w*|target\w*|labels?) = (\w+)({column})(\.values|\.to_numpy\(\))?$"
    made = re.search(pattern, broken.code, re.MULTILINE)
    if made is None:
        return None
    name = made[2]
    line = f"{made[0]}\n{made[1]}{name} = pd.Series(pd.factorize({name}, sort=True)[0], index={made[3]}.index)"
    code = broken.code.replace(made[0], line, 1)
    return re.sub(r",?\s*pos_label=['\"][^'\"]+['\"]", "", code)


def whole_target(broken: Broken) -> str | None:
    """Classes that came as floats become whole numbers; a target of numbers gets a regressor."""
    if broken.profile.kind in ("binary", "multiclass"):
        return encode_target(broken)
    swapped = re.sub(r"\b(\w+)Classifier\b", r"\1Regressor", broken.code)
    swapped = re.sub(r"\bLogisticRegression\([^()]*\)", "Ridge()", swapped)
    swapped = re.sub(r"import LogisticRegression\b", "import Ridge", swapped)
    return swapped if swapped != broken.code else None


def numbers_in_line(broken: Broken) -> str | None:
    """Columns that hold text are read as numbers where they are computed with."""
    text = re.sub(
        r"(?<![\w.(])((?:\w+)\[['\"][^'\"]+['\"]\])(?=\s*[-+*/<>]|\.(?:mean|median|std|sum|round|abs|clip|quantile)\()",
        r'pd.to_numeric(\1, errors="coerce")', broken.text,
    )  # fmt: skip
    text = re.sub(r"([-+*/<>]=?\s*)(\w+\[['\"][^'\"]+['\"]\])(?!\s*=)", r'\1pd.to_numeric(\2, errors="coerce")', text)
    return broken.with_text(text) if text != broken.text else None


def text_in_line(broken: Broken) -> str | None:
    """Columns that are joined to text become text."""
    text = re.sub(r"(?<!=\s)(\b\w+\[['\"][^'\"]+['\"]\])(?=\s*\+|\s*$)", r"\1.astype(str)", broken.text)
    text = re.sub(r"(\+\s*)(\w+\[['\"][^'\"]+['\"]\])(?!\.astype)", r"\1\2.astype(str)", text)
    return broken.with_text(text) if text != broken.text else None


def same_length(broken: Broken) -> str | None:
    """Pair the parts that belong together: training rows with training targets, held-out with held-out."""
    text = broken.text
    for part, pattern in (("train", r"_(train|tr)\b"), ("val", r"_(val|valid|test|te)\b")):
        frames = re.findall(rf"\b\w+{pattern}", text)
        if not frames:
            continue
        names = re.findall(rf"\b([Xx]\w*?|pred\w*|p)({pattern})?", text)
        suffix = re.search(pattern, text)
        assert suffix is not None
        candidate = f"y{suffix[0]}"
        if re.search(rf"\b{candidate}\b", broken.code) and re.search(r"\by\b(?!_)", text) and names:
            return broken.with_text(re.sub(r"\by\b(?!_)", candidate, text))
        other = "y_train" if part == "val" else ""
        if other and re.search(rf"\b{other}\b", text) and ".fit(" not in text:
            return broken.with_text(re.sub(rf"\b{other}\b", candidate, text))
    held = re.search(r"\b(y_(?:val|valid|test|te))\b", broken.code)
    if held and re.search(r"\by\b(?!_)", text) and re.search(r"pred|proba", text):
        return broken.with_text(re.sub(r"\by\b(?!_)", held[1], text))
    if re.search(r"train_test_split\(X, y", text) or re.search(r"\.fit\(X, y", text):
        return broken.before("y = y.loc[X.index]")
    if re.search(r"\.fit\(X_train, y_val|\.fit\(X_train, y_test", text):
        return broken.with_text(re.sub(r"y_(val|test)\b", "y_train", text))
    return None


def as_table(broken: Broken) -> str | None:
    """One column as a table of one column."""
    text = re.sub(
        r"(\.(?:fit|fit_transform|transform|predict|predict_proba)\()(\w+\[)(['\"][^'\"]+['\"])\]",
        r"\1\2[\3]]",
        broken.text,
    )
    if text == broken.text:
        text = re.sub(
            r"(\.(?:fit|fit_transform|transform|predict)\()([\w.]+)([,)])", r"\1np.asarray(\2).reshape(-1, 1)\3", text
        )
        return broken.with_import("import numpy as np", broken.with_text(text))
    return broken.with_text(text)


def flat(broken: Broken) -> str | None:
    """Probabilities or columns where one number a row is wanted."""
    text = broken.text
    held = re.search(r"\((\w+), (\w+)", text)
    made = re.search(rf"^\s*{held[2]} = .*predict_proba\(.*\)$", broken.code, re.MULTILINE) if held else None
    if held and made:
        new = (
            f"{held[2]}[:, 1]" if broken.profile.kind == "binary" and "roc_auc" in text else f"{held[2]}.argmax(axis=1)"
        )
        return broken.with_text(text.replace(held[0], f"({held[1]}, {new}", 1))
    if held and "score" in text:
        return broken.with_import(
            "import numpy as np",
            broken.with_text(text.replace(held[0], f"(np.ravel({held[1]}), np.ravel({held[2]})", 1)),
        )
    values = re.search(r"= (.*predict_proba\([^()]*\))$", text)
    if values:
        return broken.with_text(text.replace(values[1], f"{values[1]}[:, 1]"))
    one = re.search(r"(['\"]\w+['\"]: )(\w+)", text)
    return (
        broken.with_text(re.sub(r"(['\"]\w+['\"]: )(pred\w*|preds|p|proba\w*)\b", r"\1np.ravel(\2)", text))
        if one
        else None
    )


def labels_from_numbers(broken: Broken) -> str | None:
    """Class numbers out of probabilities or numbers, for metrics that count labels."""
    found = re.search(r"(\w+_score|log_loss)\((\w+), ([^,()]+(?:\([^()]*\))?[^,()]*)", broken.text)
    if found is None:
        return None
    new = f"(np.asarray({found[3].strip()}) > 0.5).astype(int)"
    if broken.profile.kind == "multiclass":
        new = f"np.rint({found[3].strip()}).astype(int)"
    text = broken.text.replace(found[0], f"{found[1]}({found[2]}, {new}", 1)
    return broken.with_import("import numpy as np", broken.with_text(text))
