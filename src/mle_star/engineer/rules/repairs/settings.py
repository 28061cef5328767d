"""Options and attributes that have another name today, or none."""

from __future__ import annotations

import ast
import difflib
import re

from mle_star.engineer.rules.broken import Broken
from mle_star.engineer.rules.repairs.data import column_meant
from mle_star.engineer.rules.repairs.edits import Change, everywhere, first_of, sub
from mle_star.engineer.rules.repairs.values import numbers_in_line

COMMON_OPTIONS = (
    "n_estimators learning_rate max_depth random_state n_jobs test_size min_samples_leaf max_iter n_splits shuffle "
    "stratify num_leaves"
)
RENAMED_OPTIONS = {"sparse": "sparse_output", "base_estimator": "estimator"}
_UNKNOWN = re.compile(
    r"(?:unexpected keyword argument|Unknown parameter:?|invalid parameter|got unexpected) ?'?\"?(\w+)", re.IGNORECASE
)


def without_keyword(broken: Broken) -> str | None:
    """Leave out a setting that the function does not know; use the right spelling where one comes near."""
    found = _UNKNOWN.search(broken.message)
    if found is None:
        return None
    name = found[1]
    if name == "squared":
        return _without_squared(broken)
    if name in RENAMED_OPTIONS:
        return re.sub(rf"\b{name}=", f"{RENAMED_OPTIONS[name]}=", broken.code)
    near = difflib.get_close_matches(name, COMMON_OPTIONS.split(), 1, 0.82)
    if near and near[0] != name:
        return re.sub(rf"\b{name}=", f"{near[0]}=", broken.code)
    return _without_option(broken, name)


def _without_option(broken: Broken, name: str) -> str | None:
    """The script with one option left out of its calls: in the failing statement if it is there, else everywhere."""
    if broken.tree is None:
        return None
    here = broken.statement if re.search(rf"\b{name}\s*=", broken.text) else None

    class Drop(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if here is None or here.lineno <= node.lineno <= (here.end_lineno or here.lineno):
                node.keywords = [k for k in node.keywords if k.arg != name]
            return node

    return ast.unparse(ast.fix_missing_locations(Drop().visit(ast.parse(broken.code)))) + "\n"


def _without_squared(broken: Broken) -> str | None:
    code = re.sub(
        r"mean_squared_error\(([^()]*(?:\([^()]*\)[^()]*)*?),\s*squared=False\)",
        r"np.sqrt(mean_squared_error(\1))",
        broken.code,
    )
    code = re.sub(r",\s*squared=True", "", code)
    return broken.with_import("import numpy as np", code) if code != broken.code else None


RENAMED_VALUES = {"auto": '"sqrt"', "mse": '"squared_error"', "mae": '"absolute_error"', "deviance": '"log_loss"',
                  "ls": '"squared_error"', "lad": '"absolute_error"', "log": '"log_loss"', "none": "None"}  # fmt: skip


def other_value(broken: Broken) -> str | None:
    """The value that an option is called by now; the option left out when there is none."""
    found = re.search(r"The '(\w+)' parameter of \w+ must be .*Got '?\"?([\w.-]+)", broken.message, re.DOTALL)
    if found is None:
        return None
    option, value = found[1], found[2].strip("'\".")
    if value in RENAMED_VALUES:
        return re.sub(rf"\b{option}=['\"]{value}['\"]", f"{option}={RENAMED_VALUES[value]}", broken.code)
    if re.fullmatch(r"\d+\.0", value):
        return re.sub(rf"\b{option}={re.escape(value)}", f"{option}={int(float(value))}", broken.code)
    return re.sub(rf",?\s*\b{option}=(['\"]?)[\w.-]+\1", "", broken.code)


def _not_in_place(broken: Broken) -> str | None:
    """An assignment of what a method did in place is an assignment of nothing."""
    code = re.sub(r"^(\s*\w+(?:\[[^\]]*\])? = .*?),\s*inplace=True", r"\1", broken.code, flags=re.MULTILINE)
    code = re.sub(r"^(\s*\w+(?:\[[^\]]*\])? = .*?)\(inplace=True\)", r"\1()", code, flags=re.MULTILINE)
    if code == broken.code:
        code = re.sub(r"^(\s*)\w+ = ((?:np\.)?random\.shuffle)\(", r"\1\2(", broken.code, flags=re.MULTILINE)
    return code if code != broken.code else None


ATTRIBUTES: tuple[tuple[str, Change], ...] = (
    ("'append'", first_of(
        sub(r"(\w+)\.append\((\w+), ignore_index=True\)", r"pd.concat([\1, \2], ignore_index=True)"),
        sub(r"(\w+) = (\w+)\.append\(([^()]*)\)", r"\1 = pd.concat([\2, \3])"),
    )),
    ("iteritems", everywhere(r"\.iteritems\(", ".items(")),
    ("'ix'", everywhere(r"\.ix\[", ".loc[")),
    ("as_matrix", everywhere(r"\.as_matrix\(\)", ".to_numpy()")),
    ("get_feature_names", everywhere(r"get_feature_names\(", "get_feature_names_out(")),
    ("numpy.* 'float'|'float_'", everywhere(r"\bnp\.float_?\b(?!\d)", "float")),
    ("numpy.* 'int'", everywhere(r"\bnp\.int\b(?!\d)", "int")),
    ("numpy.* 'bool'", everywhere(r"\bnp\.bool\b(?!_)", "bool")),
    ("numpy.* 'object'", everywhere(r"\bnp\.object\b", "object")),
    ("ndarray.*'(values|to_numpy)'", sub(r"\.(values|to_numpy\(\))", "")),
    ("ndarray.*'iloc'", sub(r"\.iloc\[", "[")),
    ("'str' object has no attribute '(mean|median|std|fillna)'", numbers_in_line),
    ("NoneType", _not_in_place),
    ("predict_proba", everywhere(r"\.predict_proba\(([^()]*)\)(\[:, 1\])?", r".predict(\1)")),
    ("'(toarray|todense)'", sub(r"\.(toarray|todense)\(\)", "")),
    ("'str'", sub(r"(\w+\[['\"][^'\"]+['\"]\])\.str\b", r"\1.astype(str).str")),
)  # fmt: skip
"""What a message about a missing attribute says, and what to do then."""


def mend_attribute(broken: Broken) -> str | None:
    """What is called otherwise today, or is meant for another kind of object."""
    for pattern, change in ATTRIBUTES:
        if re.search(pattern, broken.message):
            new = change(broken)
            if new is not None:
                return new
    found = re.search(r"has no attribute '(\w+)'", broken.message)
    meant = column_meant(found[1], list(broken.profile.train.columns)) if found else None
    if found and meant:
        return re.sub(rf"\.{found[1]}\b(?!\()", f'["{meant}"]', broken.code)
    return None
