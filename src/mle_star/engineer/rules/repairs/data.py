"""Columns and files that are not there, or are written in another way."""

from __future__ import annotations

import ast
import difflib
import re

from mle_star.engineer.rules.broken import Broken


def mend_column(broken: Broken) -> str | None:
    """Use the column that is meant; leave it out where no column comes near."""
    missing = re.findall(r"'([^']+)'", broken.message) or re.findall(r'"([^"]+)"', broken.message)
    if not missing:
        return by_position(broken)
    known = [*broken.profile.train.columns, *(broken.profile.test.columns if broken.profile.test else ())]
    code = broken.code
    for name in missing:
        if not re.search(rf"['\"]{re.escape(name)}['\"]", code):
            continue
        meant = column_meant(name, known)
        if meant is not None and meant != name:
            code = code.replace(f'"{name}"', f'"{meant}"').replace(f"'{name}'", f"'{meant}'")
        elif name in known:
            code = _absent_from_test(broken, code, name)
        else:
            code = _without_column(code, name)
    return code if code != broken.code else None


def column_meant(name: str, known: list[str]) -> str | None:
    """The column that a wrong name means, if one comes near."""
    plain = {re.sub(r"[^a-z0-9]", "", column.lower()): column for column in reversed(known)}
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    if key in plain:
        return plain[key]
    close = difflib.get_close_matches(key, plain, 1, 0.72)
    return plain[close[0]] if close else None


def _absent_from_test(broken: Broken, code: str, name: str) -> str:
    """A column that only the training table has: dropping it must not insist, choosing it must not happen."""
    text = broken.text
    if ".drop(" in text and "errors=" not in text:
        return broken.with_text(
            re.sub(r"\.drop\((.*?)\)", r'.drop(\1, errors="ignore")', text, count=1, flags=re.DOTALL)
        )
    frame = re.search(r"(\w+)\[(\w+)\]", text)
    if frame and re.search(r"test", frame[1], re.IGNORECASE):
        return broken.with_text(
            text.replace(frame[0], f"{frame[1]}[[column for column in {frame[2]} if column in {frame[1]}.columns]]")
        )
    listing = re.sub(rf"(['\"]){re.escape(name)}\1,\s*|,\s*(['\"]){re.escape(name)}\2", "", text)
    return broken.with_text(listing) if listing != text else code


def _without_column(code: str, name: str) -> str:
    """The code without any mention of a column: taken out of lists, statements about it alone dropped."""
    quoted = rf"['\"]{re.escape(name)}['\"]"
    listed = re.sub(rf"{quoted},\s*|,\s*{quoted}(?=\s*\])", "", code)
    listed = re.sub(rf"\.drop\((columns=)?\[?{quoted}\]?(, axis=1)?\)", "", listed)
    return dropped(listed, quoted, keep=r"\.fit\(|print\(") if re.search(quoted, listed) else listed


def dropped(code: str, pattern: str, keep: str) -> str:
    """The code without the plain statements that match, but for those that must stay."""
    lines = code.splitlines()
    plain = [n for n in ast.walk(ast.parse(code)) if isinstance(n, (ast.Assign, ast.Expr, ast.AugAssign))]
    for node in sorted(plain, key=lambda n: -n.lineno):
        text = ast.unparse(node)
        if re.search(pattern, text) and not re.search(keep, text):
            indent = " " * node.col_offset
            lines[node.lineno - 1 : node.end_lineno] = [f"{indent}pass"] if indent else []
    return "\n".join(lines) + "\n"


def by_position(broken: Broken) -> str | None:
    """Row numbers were used as labels: take rows by position."""
    text = broken.text.replace(".loc[", ".iloc[")
    text = re.sub(r"\b(\w+)\[(\w*(?:idx|index|indices|ix|fold|train_i|val_i|fit|held)\w*)\]", r"\1.iloc[\2]", text)
    return broken.with_text(text) if text != broken.text else None


# --- files -----------------------------------------------------------------------------------------------


def mend_path(broken: Broken) -> str | None:
    """Read the file that is there; make the folder that is not."""
    found = re.search(r"['\"]([^'\"]+\.\w+)['\"]", broken.message) or re.search(r"(\./\S+\.\w+)", broken.message)
    profile = broken.profile
    if found and re.search(r"(^|/)final/|submission\.csv$", found[1]) and "read_" not in broken.text:
        return _write_submission(broken)
    if re.search(r"non-existent directory|\bfinal\b", broken.message) and not found:
        return broken.with_import("import os", broken.before('os.makedirs("./final", exist_ok=True)'))
    if not found:
        return None
    tables = [profile.train, profile.test, profile.sample, *profile.extras]
    names = {table.name for table in tables if table is not None}
    wanted = found[1].rsplit("/", 1)[-1]
    close = wanted if wanted in names else next(iter(difflib.get_close_matches(wanted, names, 1, 0.5)), None)
    if close is None:
        role = profile.sample if "sub" in wanted else profile.test if "test" in wanted else profile.train
        close = role.name if role is not None else None
    if close is None:
        return None
    code = broken.code.replace(found[1], f"./input/{close}")
    if code == broken.code:
        code = re.sub(rf"([\w.]+\([^()]*)?{re.escape(wanted)}", lambda m: m[0].replace(wanted, close), broken.code)
        code = re.sub(r"(['\"])(\.\.?/|/kaggle/|data/|/data/)?[\w/-]*input/?\1", '"./input"', code)
    return code if code != broken.code else None


def _write_submission(broken: Broken) -> str | None:
    """See that the folder is there and that a frame named like a submission is written into it."""
    code = broken.code
    if "makedirs" not in code and ".mkdir(" not in code:
        code = broken.with_import("import os", code)
        place = re.search(r"^(?!import|from|#|\s|$|\"\"\")", code, re.MULTILINE)
        start = place.start() if place else len(code)
        code = code[:start] + 'os.makedirs("./final", exist_ok=True)\n' + code[start:]
    if "final/submission.csv" not in code:
        written = re.sub(r"\.to_csv\((['\"])[^'\"]*\1", '.to_csv("./final/submission.csv"', code)
        frame = re.search(r"^(sub\w*) = ", code, re.MULTILINE)
        if written != code:
            code = written
        elif frame:
            code = code.rstrip() + f'\n{frame[1]}.to_csv("./final/submission.csv", index=False)\n'
    return code if code != broken.code else None


def mend_separator(broken: Broken) -> str | None:
    """Read the table the way it is written."""
    tables = (broken.profile.train, broken.profile.test, broken.profile.sample, *broken.profile.extras)
    meant = next((t for t in tables if t is not None and t.name in broken.text and t.form == "csv"), None)
    if meant is not None:
        start, _, rest = broken.text.partition("pd.read_csv(")
        return broken.with_text(start + meant.reader + rest.partition(")")[2])
    return broken.with_text(re.sub(r"(read_csv\([^()]*)\)", r'\1, sep=None, engine="python")', broken.text))


def mend_encoding(broken: Broken) -> str | None:
    """Read with an encoding that knows every byte; write UTF-8."""
    text = re.sub(r",?\s*encoding=['\"][\w-]+['\"]", "", broken.text)
    if "Encode" in broken.kind:
        new = re.sub(r"(to_csv\([^()]*|open\([^()]*)\)", r'\1, encoding="utf-8")', text)
    else:
        new = re.sub(r"(read_csv\([^()]*|read_table\([^()]*|open\([^()]*|read_text\()(\))", _with_latin, text)
    return broken.with_text(new) if new != broken.text else None


def _with_latin(found: re.Match[str]) -> str:
    start = found[1]
    return f'{start}{"" if start.endswith("(") else ", "}encoding="latin-1")'
