"""The library of mends: one entry per kind of error that scripts run into, with the change that gets them going again.

To add one, append an entry to `MENDS`: the kinds of exception, a pattern for the message, and a function that gives the
changed script, or None when it cannot help. Earlier entries are tried first.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from mle_star.offline.rules.debug import Broken
from mle_star.offline.rules.prepared import with_prepared_frames

Change = Callable[[Broken], str | None]


@dataclass(frozen=True)
class Mend:
    """A change for errors of these kinds whose message, or failing text, matches."""

    kinds: str
    pattern: str
    change: Change

    def fits(self, broken: Broken) -> bool:
        """Is this an error of that kind?"""
        return bool(re.fullmatch(self.kinds, broken.kind or "?")) and bool(
            re.search(self.pattern, broken.message, re.IGNORECASE | re.DOTALL)
        )


def _sub(pattern: str, new: str, *, everywhere: bool = False, imports: str = "") -> Change:
    """Replace a pattern in the failing statement, or everywhere."""

    def change(broken: Broken) -> str | None:
        if everywhere:
            code = re.sub(pattern, new, broken.code)
        else:
            text = re.sub(pattern, new, broken.text)
            code = broken.with_text(text) if text != broken.text else broken.code
        if code == broken.code:
            return None
        return broken.with_import(imports, code) if imports else code

    return change


def _first(*changes: Change) -> Change:
    """The first of several changes that does something."""

    def change(broken: Broken) -> str | None:
        return next((new for c in changes if (new := c(broken)) is not None and new != broken.code), None)

    return change


# --- syntax ----------------------------------------------------------------------------------------------


def _mend_syntax(broken: Broken) -> str | None:
    """Fences left in the code, tabs, a missing colon or bracket, a block without a body, a wrong indentation."""
    code = re.sub(r"^\s*(```|~~~).*$\n?", "", broken.code, flags=re.MULTILINE).replace("\t", "    ")
    for _ in range(6):
        try:
            ast.parse(code)
            return code
        except SyntaxError as error:
            changed = _mend_line(code, error)
        if changed is None or changed == code:
            return None
        code = changed
    return None


def _mend_line(code: str, error: SyntaxError) -> str | None:
    lines = code.splitlines()
    number = min(max((error.lineno or 1) - 1, 0), len(lines) - 1)
    line, message = lines[number], str(error.msg)
    indent = line[: len(line) - len(line.lstrip())]
    if "expected ':'" in message or (
        re.match(r"\s*(if|for|while|def|class|else|elif|with|try|except|finally)\b", line)
        and not line.rstrip().endswith(":")
    ):
        lines[number] = re.sub(r"\s*(#.*)?$", lambda m: ":" + ("  " + m[1] if m[1] else ""), line.rstrip(), count=1)
    elif "was never closed" in message or "unexpected EOF" in message:
        opened = _open_brackets(line)
        lines[number] = line.split("  #")[0].rstrip().rstrip(",") + opened
    elif "unmatched" in message or "does not match" in message:
        place = (error.offset or 1) - 1
        lines[number] = line[:place] + line[place + 1 :]
    elif "expected an indented block" in message:
        lines.insert(
            number, " " * (len(indent) + 4) + "pass" if line.strip() == "" else f"{_outer(lines, number)}    pass"
        )
    elif "unexpected indent" in message:
        lines[number] = _outer(lines, number) + line.lstrip()
    elif "unindent does not match" in message:
        lines[number] = _outer(lines, number) + line.lstrip()
    elif "unterminated string" in message:
        quote = '"' if line.count('"') % 2 else "'"
        closed = re.sub(r"(\)*)$", lambda m: quote + m[1], line.rstrip(), count=1)
        lines[number] = closed
    elif re.match(r"\s*print\s+[^(=]", line):
        lines[number] = re.sub(r"print\s+(.*)$", r"print(\1)", line)
    elif "forgot a comma" in message or "invalid syntax" in message:
        if re.search(r"=\s*$", line) or re.match(r"\s*[A-Z][a-z]+ .*[a-z]\.?$", line):
            lines[number] = f"{indent}# {line.strip()}"
        else:
            return None
    else:
        return None
    return "\n".join(lines) + "\n"


def _outer(lines: list[str], number: int) -> str:
    """The indentation of the last line above that says something."""
    above = next((text for text in reversed(lines[:number]) if text.strip()), "")
    return above[: len(above) - len(above.lstrip())]


def _open_brackets(line: str) -> str:
    closing = {"(": ")", "[": "]", "{": "}"}
    stack: list[str] = []
    for character in re.sub(r"(\"[^\"]*\"|'[^']*')", "", line):
        if character in closing:
            stack.append(closing[character])
        elif stack and character == stack[-1]:
            stack.pop()
    return "".join(reversed(stack))


# --- modules and names -----------------------------------------------------------------------------------

MOVED = {
    "sklearn.cross_validation": "sklearn.model_selection", "sklearn.grid_search": "sklearn.model_selection",
    "sklearn.externals.joblib": "joblib", "sklearn.externals": "joblib", "sklearn.preprocessing.imputation": "sklearn.impute",
    "sklearn.ensemble.forest": "sklearn.ensemble", "sklearn.ensemble.gradient_boosting": "sklearn.ensemble",
    "sklearn.metrics.scorer": "sklearn.metrics", "pandas.tools.plotting": "pandas.plotting", "StringIO": "io",
}  # fmt: skip
KNOWN_IMPORTS = {
    "np": "import numpy as np", "pd": "import pandas as pd", "os": "import os", "re": "import re", "json": "import json",
    "math": "import math", "random": "import random", "Path": "from pathlib import Path", "lgb": "import lightgbm as lgb",
    "xgb": "import xgboost as xgb", "time": "import time", "gc": "import gc", "string": "import string",
    "defaultdict": "from collections import defaultdict", "Counter": "from collections import Counter",
    "datetime": "from datetime import datetime", "sys": "import sys", "warnings": "import warnings",
    "hstack": "from scipy.sparse import hstack", "csr_matrix": "from scipy.sparse import csr_matrix",
}  # fmt: skip
SKLEARN_HOMES = {
    "sklearn.model_selection": "train_test_split KFold StratifiedKFold GroupKFold TimeSeriesSplit cross_val_score "
    "cross_val_predict GridSearchCV RandomizedSearchCV RepeatedKFold RepeatedStratifiedKFold ShuffleSplit",
    "sklearn.metrics": "accuracy_score f1_score roc_auc_score log_loss mean_squared_error mean_absolute_error r2_score "
    "balanced_accuracy_score precision_score recall_score matthews_corrcoef cohen_kappa_score mean_squared_log_error "
    "average_precision_score",
    "sklearn.preprocessing": "StandardScaler MinMaxScaler RobustScaler OneHotEncoder OrdinalEncoder LabelEncoder "
    "PolynomialFeatures QuantileTransformer PowerTransformer FunctionTransformer TargetEncoder KBinsDiscretizer Normalizer",
    "sklearn.impute": "SimpleImputer KNNImputer",
    "sklearn.compose": "ColumnTransformer make_column_transformer TransformedTargetRegressor",
    "sklearn.pipeline": "Pipeline make_pipeline FeatureUnion make_union",
    "sklearn.ensemble": "RandomForestClassifier RandomForestRegressor ExtraTreesClassifier ExtraTreesRegressor "
    "GradientBoostingClassifier GradientBoostingRegressor HistGradientBoostingClassifier HistGradientBoostingRegressor "
    "VotingClassifier VotingRegressor StackingClassifier StackingRegressor BaggingClassifier AdaBoostClassifier",
    "sklearn.linear_model": "LogisticRegression LinearRegression Ridge RidgeCV Lasso LassoCV ElasticNet SGDClassifier "
    "SGDRegressor LogisticRegressionCV RidgeClassifier",
    "sklearn.svm": "SVC SVR LinearSVC LinearSVR",
    "sklearn.neighbors": "KNeighborsClassifier KNeighborsRegressor",
    "sklearn.tree": "DecisionTreeClassifier DecisionTreeRegressor",
    "sklearn.naive_bayes": "GaussianNB MultinomialNB BernoulliNB ComplementNB",
    "sklearn.neural_network": "MLPClassifier MLPRegressor",
    "sklearn.feature_extraction.text": "TfidfVectorizer CountVectorizer HashingVectorizer TfidfTransformer",
    "sklearn.decomposition": "PCA TruncatedSVD NMF",
    "sklearn.feature_selection": "SelectKBest f_classif f_regression mutual_info_classif mutual_info_regression chi2 RFE",
    "sklearn.calibration": "CalibratedClassifierCV",
    "sklearn.cluster": "KMeans",
    "lightgbm": "LGBMClassifier LGBMRegressor",
    "xgboost": "XGBClassifier XGBRegressor",
    "catboost": "CatBoostClassifier CatBoostRegressor",
}
HOMES = {name: module for module, names in SKLEARN_HOMES.items() for name in names.split()}
STANDINS = {
    "LGBM": "HistGradientBoosting", "XGB": "HistGradientBoosting", "CatBoost": "HistGradientBoosting",
    "BalancedRandomForest": "RandomForest", "NGB": "HistGradientBoosting", "TabNet": "MLP", "TabPFN": "HistGradientBoosting",
}  # fmt: skip
KEPT_SETTINGS = {
    "HistGradientBoosting": {"learning_rate", "max_depth", "random_state", "max_leaf_nodes", "max_iter", "verbose"},
    "RandomForest": {"n_estimators", "max_depth", "random_state", "n_jobs", "min_samples_leaf"},
    "MLP": {"random_state", "max_iter"},
}


def _mend_module(broken: Broken) -> str | None:
    """Import from where it lives now, take a stand-in for what is not installed, or do without."""
    found = re.search(r"No module named '([\w.]+)'", broken.message)
    module = found[1] if found else ""
    for old, new in sorted(MOVED.items(), key=lambda pair: -len(pair[0])):
        if module == old or (found is None and f"'{old}'" in broken.message):
            code = re.sub(rf"\bfrom {re.escape(old)} import joblib\b", "import joblib", broken.code)
            return re.sub(rf"\bfrom {re.escape(old)}\b", f"from {new}", code)
    name = re.search(r"cannot import name '(\w+)'", broken.message)
    if name is not None:
        return _moved_name(broken, name[1])
    top = module.split(".")[0]
    close = difflib.get_close_matches(top, [*broken.profile.setting.packages, "sklearn", "pandas", "numpy"], 1, 0.75)
    if close and close[0] != top:
        return re.sub(rf"\b{re.escape(top)}\b", close[0], broken.code)
    return _without_module(broken, top)


def _moved_name(broken: Broken, name: str) -> str | None:
    if name == "Imputer":
        code = broken.code.replace(
            "sklearn.preprocessing import Imputer", "sklearn.impute import SimpleImputer as Imputer"
        )
        return re.sub(r"import ([^\n]*?),? ?\bImputer\b", r"import \1", code) if code == broken.code else code
    if name in HOMES:
        text = broken.text
        others = [
            n.strip() for n in text.partition("import")[2].strip(" ()").split(",") if n.strip() and n.strip() != name
        ]
        source = re.match(r"\s*from ([\w.]+) import", text)
        lines = [f"from {HOMES[name]} import {name}"]
        if others and source:
            lines.append(f"from {source[1]} import {', '.join(others)}")
        return broken.with_text("\n".join(lines))
    close = difflib.get_close_matches(name, HOMES, 1, 0.8)
    if close:
        code = re.sub(rf"\b{name}\b", close[0], broken.code)
        return code.replace(broken.text, f"from {HOMES[close[0]]} import {close[0]}") if code != broken.code else None
    return None


def _without_module(broken: Broken, module: str) -> str | None:
    """Swap the classes of a missing library for those of scikit-learn; drop what only shows, and resampling."""
    code = broken.code
    imported = re.findall(rf"^\s*from {re.escape(module)}[\w.]* import (.+)$", code, re.MULTILINE)
    names = [n.strip(" ()") for line in imported for n in line.split(",") if n.strip(" ()")]
    alias = re.search(rf"^\s*import {re.escape(module)}(?:\.\w+)*(?: as (\w+))?$", code, re.MULTILINE)
    used = alias[1] or module if alias else ""
    if used:
        names += sorted(set(re.findall(rf"\b{used}\.(\w*(?:Classifier|Regressor))\b", code)))
        code = re.sub(rf"\b{used}\.(\w*(?:Classifier|Regressor))\b", r"\1", code)
    code = re.sub(
        rf"^[ \t]*(from {re.escape(module)}[\w.]* import .*|import {re.escape(module)}\b.*)\n",
        "",
        code,
        flags=re.MULTILINE,
    )
    for name in names:
        family = next((new for old, new in STANDINS.items() if name.startswith(old)), None)
        if family is not None:
            kind = "Regressor" if name.endswith("Regressor") else "Classifier"
            code = _swap_class(code, name, f"{family}{kind}", KEPT_SETTINGS[family])
            code = broken.with_import(f"from {HOMES[family + kind]} import {family}{kind}", code)
        elif name in HOMES:
            code = broken.with_import(f"from {HOMES[name]} import {name}", code)
        elif name == "tqdm":
            code = re.sub(r"\btqdm\(([^()]*(?:\([^()]*\))?[^()]*)\)", r"\1", code)
        elif name in ("SMOTE", "RandomOverSampler", "RandomUnderSampler", "ADASYN"):
            code = _without_resampling(code, name)
    if used:
        code = _drop_statements(code, rf"\b{used}\b")
    return code if code != broken.code else None


def _swap_class(code: str, old: str, new: str, kept: set[str]) -> str:
    """Calls of one class as calls of another, with the settings that both know."""
    renames = {"n_estimators": "max_iter", "iterations": "max_iter", "num_leaves": "max_leaf_nodes", "depth": "max_depth",
               "random_seed": "random_state", "seed": "random_state", "eta": "learning_rate"}  # fmt: skip

    class Swap(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.func, ast.Name) and node.func.id == old:
                node.func.id = new
                for keyword in node.keywords:
                    if keyword.arg not in kept:
                        keyword.arg = renames.get(keyword.arg or "", keyword.arg)
                node.keywords = [
                    k for k in node.keywords if k.arg in kept and not (k.arg == "verbose" and "Forest" in new)
                ]
                for keyword in node.keywords:
                    if keyword.arg == "max_depth" and ast.unparse(keyword.value) in ("-1", "0"):
                        keyword.value = ast.Constant(None)
                    if keyword.arg == "verbose":
                        keyword.value = ast.Constant(0)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "fit":
                node.keywords = [k for k in node.keywords if k.arg in ("X", "y", "sample_weight")]
            return node

    tree = Swap().visit(ast.parse(code))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _without_resampling(code: str, name: str) -> str:
    maker = re.search(rf"^(\w+) = {name}\(.*\)$", code, re.MULTILINE)
    owner = maker[1] if maker else rf"{name}\([^()]*\)"
    code = re.sub(
        rf"^(\w+), (\w+) = {owner}\.fit_resample\((\w+), (\w+)\)$", r"\1, \2 = \3, \4", code, flags=re.MULTILINE
    )
    return re.sub(rf"^\w+ = {name}\(.*\)\n", "", code, flags=re.MULTILINE)


def _drop_statements(code: str, pattern: str) -> str:
    """The code without the plain statements that match, as those that draw or show."""
    tree = ast.parse(code)
    lines = code.splitlines()
    for node in sorted(ast.walk(tree), key=lambda n: -getattr(n, "lineno", 0)):
        if isinstance(node, (ast.Expr, ast.Assign)) and re.search(pattern, ast.unparse(node)):
            if re.search(r"Final Validation|\.fit\(|predict", ast.unparse(node)):
                continue
            indent = " " * node.col_offset
            lines[node.lineno - 1 : node.end_lineno] = [f"{indent}pass"] if indent else []
    return "\n".join(lines) + "\n"


def _mend_name(broken: Broken) -> str | None:
    """Import what is used without an import, or take the defined name that is meant."""
    found = re.search(r"name '(\w+)' is not defined", broken.message)
    if found is None or broken.tree is None:
        return None
    name = found[1]
    if name in KNOWN_IMPORTS:
        return broken.with_import(KNOWN_IMPORTS[name])
    if name in HOMES:
        return broken.with_import(f"from {HOMES[name]} import {name}")
    defined = {n.id for n in ast.walk(broken.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    defined |= {n.name for n in ast.walk(broken.tree) if isinstance(n, ast.FunctionDef)}
    close = difflib.get_close_matches(name, defined - {name}, 1, 0.75)
    if close:
        return broken.with_text(re.sub(rf"\b{name}\b", close[0], broken.text))
    if re.search(r"score|metric|performance|result", name):
        scores = [n.id for n in ast.walk(broken.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                  and re.search(r"score|auc|acc|rmse|rmsle|mae|mse|r2|f1|loss|kappa|metric", n.id, re.IGNORECASE)]  # fmt: skip
        if scores:
            return broken.with_text(re.sub(rf"\b{name}\b", scores[-1], broken.text))
    partner = re.sub(r"_(valid|validation|test|dev|hold|holdout)\b", "_val", name)
    pairs = [
        d
        for d in defined
        if d != name
        and d.lower()
        in (
            partner.lower(),
            name.lower(),
            name.replace("_val", "_test").lower(),
            name.replace("_val", "_valid").lower(),
        )
    ]
    return broken.with_text(re.sub(rf"\b{name}\b", pairs[0], broken.text)) if pairs else None


# --- columns ---------------------------------------------------------------------------------------------


def _mend_column(broken: Broken) -> str | None:
    """Use the column that is meant; leave it out where no column comes near."""
    missing = re.findall(r"'([^']+)'", broken.message) or re.findall(r'"([^"]+)"', broken.message)
    if not missing:
        return _by_position(broken)
    known = [*broken.profile.train.columns, *(broken.profile.test.columns if broken.profile.test else ())]
    code = broken.code
    for name in missing:
        if not re.search(rf"['\"]{re.escape(name)}['\"]", code):
            continue
        meant = _column_meant(name, known)
        if meant is not None and meant != name:
            code = re.sub(rf"(['\"]){re.escape(name)}\1", lambda m, meant=meant: f"{m[1]}{meant}{m[1]}", code)
        elif name in known:
            code = _absent_from_test(broken, code, name)
        else:
            code = _without_column(code, name)
    return code if code != broken.code else None


def _column_meant(name: str, known: list[str]) -> str | None:
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
    if not re.search(quoted, listed):
        return listed
    tree = ast.parse(listed)
    lines = listed.splitlines()
    for node in sorted(ast.walk(tree), key=lambda n: -getattr(n, "lineno", 0)):
        simple = isinstance(node, (ast.Assign, ast.Expr, ast.AugAssign))
        if simple and re.search(quoted, ast.unparse(node)) and not re.search(r"\.fit\(|print\(", ast.unparse(node)):
            indent = " " * node.col_offset
            lines[node.lineno - 1 : node.end_lineno] = [f"{indent}pass"] if indent else []
    return "\n".join(lines) + "\n"


def _by_position(broken: Broken) -> str | None:
    """Row numbers were used as labels: take rows by position."""
    text = broken.text.replace(".loc[", ".iloc[")
    text = re.sub(r"\b(\w+)\[(\w*(?:idx|index|indices|ix|fold|train_i|val_i|fit|held)\w*)\]", r"\1.iloc[\2]", text)
    return broken.with_text(text) if text != broken.text else None


# --- files -----------------------------------------------------------------------------------------------


def _mend_path(broken: Broken) -> str | None:
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


def _mend_separator(broken: Broken) -> str | None:
    """Read the table the way it is written."""
    for table in (broken.profile.train, broken.profile.test, broken.profile.sample, *broken.profile.extras):
        if table is not None and table.name in broken.text and table.form == "csv":
            return broken.with_text(re.sub(r"pd\.read_csv\([^()]*\)", lambda m: table.reader, broken.text))
    return broken.with_text(re.sub(r"(read_csv\([^()]*)\)", r'\1, sep=None, engine="python")', broken.text))


def _mend_encoding(broken: Broken) -> str | None:
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


# --- values ----------------------------------------------------------------------------------------------


def _target_without_gaps(broken: Broken) -> str | None:
    """Learn from the rows that have a target: where rows are split, else where a model is fitted."""
    for pattern in (r"^([ \t]*).*train_test_split\((\w+), (\w+)", r"^([ \t]*).*\.(?:split|fit)\((\w+), (\w+)"):
        found = re.search(pattern, broken.code, re.MULTILINE)
        if found:
            rows, truth = found[2], found[3]
            line = f"{found[1]}{rows}, {truth} = {rows}[pd.notna({truth})], {truth}[pd.notna({truth})]"
            return broken.code[: found.start()] + f"{line}\n" + broken.code[found.start() :]
    return None


def _encode_target(broken: Broken) -> str | None:
    """Number the classes, for learners and metrics that want numbers."""
    target = broken.profile.targets[0]
    made = re.search(
        rf"^(\s*)(y\w*|target\w*|labels?) = (\w+)(\[['\"]{re.escape(target)}['\"]\]|\[\w+\]|\.{re.escape(target)})(\.values|\.to_numpy\(\))?$",
        broken.code,
        re.MULTILINE,
    )
    if made is None:
        return None
    name = made[2]
    line = f"{made[0]}\n{made[1]}{name} = pd.Series(pd.factorize({name}, sort=True)[0], index={made[3]}.index)"
    code = broken.code.replace(made[0], line, 1)
    return re.sub(r",?\s*pos_label=['\"][^'\"]+['\"]", "", code)


def _whole_target(broken: Broken) -> str | None:
    """Classes that came as floats become whole numbers; a target of numbers gets a regressor."""
    if broken.profile.kind in ("binary", "multiclass"):
        return _encode_target(broken)
    swapped = re.sub(r"\b(\w+)Classifier\b", r"\1Regressor", broken.code)
    swapped = re.sub(r"\bLogisticRegression\([^()]*\)", "Ridge()", swapped)
    swapped = re.sub(r"import LogisticRegression\b", "import Ridge", swapped)
    return swapped if swapped != broken.code else None


def _numbers_in_line(broken: Broken) -> str | None:
    """Columns that hold text are read as numbers where they are computed with."""
    text = re.sub(
        r"(?<![\w.(])((?:\w+)\[['\"][^'\"]+['\"]\])(?=\s*[-+*/<>]|\.(?:mean|median|std|sum|round|abs|clip|quantile)\()",
        r'pd.to_numeric(\1, errors="coerce")', broken.text,
    )  # fmt: skip
    text = re.sub(r"([-+*/<>]=?\s*)(\w+\[['\"][^'\"]+['\"]\])(?!\s*=)", r'\1pd.to_numeric(\2, errors="coerce")', text)
    return broken.with_text(text) if text != broken.text else None


def _text_in_line(broken: Broken) -> str | None:
    """Columns that are joined to text become text."""
    text = re.sub(r"(?<!=\s)(\b\w+\[['\"][^'\"]+['\"]\])(?=\s*\+|\s*$)", r"\1.astype(str)", broken.text)
    text = re.sub(r"(\+\s*)(\w+\[['\"][^'\"]+['\"]\])(?!\.astype)", r"\1\2.astype(str)", text)
    return broken.with_text(text) if text != broken.text else None


def _same_length(broken: Broken) -> str | None:
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


def _as_table(broken: Broken) -> str | None:
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


def _flat(broken: Broken) -> str | None:
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


def _labels_from_numbers(broken: Broken) -> str | None:
    """Class numbers out of probabilities or numbers, for metrics that count labels."""
    found = re.search(r"(\w+_score|log_loss)\((\w+), ([^,()]+(?:\([^()]*\))?[^,()]*)", broken.text)
    if found is None:
        return None
    new = f"(np.asarray({found[3].strip()}) > 0.5).astype(int)"
    if broken.profile.kind == "multiclass":
        new = f"np.rint({found[3].strip()}).astype(int)"
    text = broken.text.replace(found[0], f"{found[1]}({found[2]}, {new}", 1)
    return broken.with_import("import numpy as np", broken.with_text(text))


def _without_keyword(broken: Broken) -> str | None:
    """Leave out a setting that the function does not know; use the right spelling where one comes near."""
    found = re.search(
        r"(?:unexpected keyword argument|Unknown parameter:?|invalid parameter|got unexpected|Invalid parameter) ?'?\"?(\w+)",
        broken.message,
    )
    if found is None:
        return None
    name = found[1]
    if name == "squared":
        return _without_squared(broken)
    if name == "sparse":
        return re.sub(r"\bsparse=", "sparse_output=", broken.code)
    if name == "base_estimator":
        return re.sub(r"\bbase_estimator=", "estimator=", broken.code)
    near = difflib.get_close_matches(
        name,
        [
            "n_estimators",
            "learning_rate",
            "max_depth",
            "random_state",
            "n_jobs",
            "test_size",
            "min_samples_leaf",
            "max_iter",
            "n_splits",
            "shuffle",
            "stratify",
            "num_leaves",
        ],
        1,
        0.82,
    )
    if near and near[0] != name:
        return re.sub(rf"\b{name}=", f"{near[0]}=", broken.code)

    class Drop(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            start, end = (broken.statement.lineno, broken.statement.end_lineno or 0) if broken.statement else (0, 10**9)
            if start <= node.lineno <= end or not hit_in_statement:
                node.keywords = [k for k in node.keywords if k.arg != name]
            return node

    if broken.tree is None:
        return None
    hit_in_statement = bool(re.search(rf"\b{name}\s*=", broken.text))
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


def _other_value(broken: Broken) -> str | None:
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


ATTRIBUTES = (
    (r"\.append\(", lambda b: _sub(r"(\w+) = (\w+)\.append\(([^()]*)\)", r"\1 = pd.concat([\2, \3])")(b)
     or _sub(r"(\w+)\.append\((\w+), ignore_index=True\)", r"pd.concat([\1, \2], ignore_index=True)")(b)),
    (r"iteritems", _sub(r"\.iteritems\(", ".items(", everywhere=True)),
    (r"\bix\b", _sub(r"\.ix\[", ".loc[", everywhere=True)),
    (r"as_matrix", _sub(r"\.as_matrix\(\)", ".to_numpy()", everywhere=True)),
    (r"get_feature_names\b", _sub(r"get_feature_names\(", "get_feature_names_out(", everywhere=True)),
    (r"numpy.* 'float'|'float_'", _sub(r"\bnp\.float_?\b(?!\d)", "float", everywhere=True)),
    (r"numpy.* 'int'", _sub(r"\bnp\.int\b(?!\d)", "int", everywhere=True)),
    (r"numpy.* 'bool'", _sub(r"\bnp\.bool\b(?!_)", "bool", everywhere=True)),
    (r"numpy.* 'object'", _sub(r"\bnp\.object\b", "object", everywhere=True)),
    (r"ndarray.*'(values|to_numpy)'", _sub(r"\.(values|to_numpy\(\))", "")),
    (r"ndarray.*'iloc'", _sub(r"\.iloc\[", "[")),
    (r"ndarray.*'columns'", lambda b: None),
    (r"'str' object has no attribute '(mean|median|std|fillna)'", lambda b: _numbers_in_line(b)),
    (r"NoneType", lambda b: _not_in_place(b)),
    (r"predict_proba", _sub(r"\.predict_proba\(([^()]*)\)(\[:, 1\])?", r".predict(\1)", everywhere=True)),
    (r"'(toarray|todense)'", _sub(r"\.(toarray|todense)\(\)", "")),
    (r"'str'", _sub(r"(\w+\[['\"][^'\"]+['\"]\])\.str\b", r"\1.astype(str).str")),
)  # fmt: skip


def _mend_attribute(broken: Broken) -> str | None:
    """What is called otherwise today, or is meant for another kind of object."""
    for pattern, change in ATTRIBUTES:
        if re.search(pattern, broken.message) or re.search(pattern, broken.text if pattern.startswith(r"\.") else ""):
            new = change(broken)
            if new is not None and new != broken.code:
                return new
    found = re.search(r"has no attribute '(\w+)'", broken.message)
    meant = _column_meant(found[1], list(broken.profile.train.columns)) if found else None
    if found and meant:
        return re.sub(rf"\.{found[1]}\b(?!\()", f'["{meant}"]', broken.code)
    return None


def _not_in_place(broken: Broken) -> str | None:
    """An assignment of what a method did in place is an assignment of nothing."""
    code = re.sub(r"^(\s*\w+(?:\[[^\]]*\])? = .*?),\s*inplace=True", r"\1", broken.code, flags=re.MULTILINE)
    code = re.sub(r"^(\s*\w+(?:\[[^\]]*\])? = .*?)\(inplace=True\)", r"\1()", code, flags=re.MULTILINE)
    if code == broken.code:
        code = re.sub(r"^(\s*)\w+ = (random\.shuffle|np\.random\.shuffle)\(", r"\1\2(", broken.code, flags=re.MULTILINE)
    return code if code != broken.code else None


# --- size ------------------------------------------------------------------------------------------------


def _unused(broken: Broken) -> str | None:
    """Leave out what takes the room and is never used."""
    node = broken.statement
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    if len(re.findall(rf"\b{node.targets[0].id}\b", broken.code)) > 1:
        return None
    return broken.with_text(f"{broken.indent}pass" if broken.indent else "")


def _smaller(broken: Broken) -> str | None:
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
        cap = f"if len({read[1]}) > {rows}:\n    {read[1]} = {read[1]}.sample(n={rows}, random_state=42).reset_index(drop=True)"
        code = code.replace(read[0], f"{read[0]}\n{cap}", 1)
    repeated = re.search(r"pd\.concat\(\[(\w+)\] \* \d+", code)
    if repeated:
        code = re.sub(r"pd\.concat\(\[(\w+)\] \* \d+[^()]*\)", r"\1", code)
    return code if code != broken.code else None


MENDS: tuple[Mend, ...] = (
    Mend("SyntaxError|IndentationError|TabError", "", _mend_syntax),
    Mend("ModuleNotFoundError|ImportError", "", _mend_module),
    Mend("NameError|UnboundLocalError", "", _mend_name),
    Mend("FileNotFoundError|OSError|NotADirectoryError|IsADirectoryError", "", _mend_path),
    Mend("UnicodeDecodeError|UnicodeEncodeError|UnicodeError", "", _mend_encoding),
    Mend("ParserError|EmptyDataError", "", _mend_separator),
    Mend("ValueError", "Trailing data|Expected object or value", _sub(r"(read_json\([^()]*)\)", r"\1, lines=True)")),
    Mend("MemoryError|ArrayMemoryError|_ArrayMemoryError|TimeoutError|Killed|RuntimeError", "", _first(_unused, _smaller)),
    Mend("ValueError", "Unable to allocate|array is too big|Maximum allowed", _first(_unused, _smaller)),
    # columns
    Mend("KeyError|ValueError|IndexError", r"not in index|not found in axis|None of \[|^['\"]|are in the \[|Usecols|Missing column|columns are missing", _mend_column),
    Mend("KeyError", r"\d", _by_position),
    Mend("IndexError", "positional indexers are out-of-bounds", _sub(r"\.iloc\[", ".loc[")),
    # settings and names that changed
    Mend("TypeError|ValueError|CatBoostError|XGBoostError", "keyword argument|Unknown parameter|invalid parameter|Invalid parameter", _without_keyword),
    Mend("InvalidParameterError|ValueError", "parameter of .* must be", _other_value),
    Mend("ValueError", "Solver .* supports only", _sub(r"(penalty=['\"](l1|elasticnet)['\"])", r'\1, solver="saga"', everywhere=True)),
    Mend("AttributeError", "", _mend_attribute),
    # categories
    Mend("ValueError", "unknown categor", _first(
        _sub(r"OneHotEncoder\((?!\))(?![^()]*handle_unknown)", r'OneHotEncoder(handle_unknown="ignore", ', everywhere=True),
        _sub(r"OneHotEncoder\(\)", 'OneHotEncoder(handle_unknown="ignore")', everywhere=True),
        _sub(r"OneHotEncoder\(([^()]*)handle_unknown=['\"]error['\"]", r'OneHotEncoder(\1handle_unknown="ignore"', everywhere=True),
        _sub(r"OrdinalEncoder\(\)", 'OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)', everywhere=True),
        _sub(r"OrdinalEncoder\((?![^()]*handle_unknown)", 'OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, ', everywhere=True),
    )),
    Mend("ValueError|KeyError|TypeError", "previously unseen label", _first(
        _sub(r"(\w+)\.transform\((\w+(?:\[[^\]]+\])?)(\.astype\(str\))?\)", r"\2.map({level: number for number, level in enumerate(\1.classes_)}).fillna(-1).astype(int)"),
    )),
    Mend("ValueError", "pos_label|Invalid classes inferred|Unknown label type.*(object|str)|could not convert string to float.*y|Label should be|y_true takes value in", _encode_target),
    Mend("ValueError", "Unknown label type", _whole_target),
    # the target
    Mend("ValueError", "Input y contains (NaN|infinity)|y contains NaN|Label contains NaN|target.*NaN", _target_without_gaps),
    Mend("CatBoostError|XGBoostError|LightGBMError|ValueError", "Target contains.*(None|nan)|Label contains NaN", _target_without_gaps),
    Mend("ValueError", "The least populated class", _sub(r",?\s*stratify=[\w.]+(\[[^\]]*\])?", "", everywhere=True)),
    Mend("ValueError", "n_splits=\\d+ cannot be greater", _sub(r"StratifiedKFold\((n_splits=)?\d+", r"StratifiedKFold(\g<1>2", everywhere=True)),
    Mend("ValueError", "mix of .*(continuous|binary)|continuous is not supported", _labels_from_numbers),
    Mend("ValueError", "average='binary'|Target is multiclass", _sub(r"(f1_score|precision_score|recall_score|fbeta_score)\(([^()]*?)(,\s*average=['\"]binary['\"])?\)", r'\1(\2, average="macro")', everywhere=True)),
    Mend("ValueError", "multi_class must be", _sub(r"roc_auc_score\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r'roc_auc_score(\1, multi_class="ovr")', everywhere=True)),
    Mend("ValueError", "should be a 1d array|bad input shape|Per-column arrays must each be 1-dimensional|must be 1-dimensional|Data must be 1-dimensional", _flat),
    # shapes
    Mend("ValueError", "inconsistent numbers of samples|Found input variables|Length of .* does not match|number of rows|Number of labels|Length of label|size of .* should be same|operands could not be broadcast", _same_length),
    Mend("ValueError", "Expected 2D array|Expected a 2-dimensional|Expected 2D", _as_table),
    Mend("IndexError", "too many indices", _first(
        _sub(r"\.predict\(([^()]*)\)\[:, 1\]", r".predict_proba(\1)[:, 1]"), _sub(r"(\w+)\[:, 1\]", r"\1"),
    )),
    Mend("IndexError", "index 1 is out of bounds for axis 1", _sub(r"\[:, 1\]", "[:, -1]")),
    Mend("ValueError", "duplicate labels|duplicate axis|cannot reindex", _first(
        _sub(r"pd\.concat\(\[(\w+), (\w+)\], axis=1\)", r"pd.concat([\1.reset_index(drop=True), \2.reset_index(drop=True)], axis=1)"),
        _sub(r"(\w+)\.reindex\(", r"\1.loc[~\1.index.duplicated()].reindex("),
        _sub(r"\.map\((\w+)\)", r".map(\1[~\1.index.duplicated()])"),
    )),
    # types
    Mend("AttributeError|TypeError|ValueError", r"\.dt accessor", _sub(r"(\w+\[['\"][^'\"]+['\"]\])\.dt\b", r'pd.to_datetime(\1, errors="coerce").dt', everywhere=True)),
    Mend("ValueError|DateParseError|OutOfBoundsDatetime|TypeError|ParserError", "doesn't match format|does not match format|unconverted data|Unknown datetime string|day is out of range|Out of bounds|time data|month must be", _first(
        _sub(r"(to_datetime\([^()]*?),\s*format=['\"][^'\"]*['\"]", r'\1, format="mixed", errors="coerce"'),
        _sub(r"(to_datetime\((?![^()]*errors)[^()]*)\)", r'\1, errors="coerce")'),
    )),
    Mend("ValueError|TypeError|IntCastingNaNError", "non-finite values|Cannot convert.*(NaN|NA|inf)|cannot convert (float )?NaN", _sub(r"\.astype\((['\"]?int\d*['\"]?)\)", r".fillna(0).astype(\1)")),
    Mend("ValueError|TypeError", "could not convert string|invalid literal|Unable to parse string", _first(
        _sub(r"(\w+\[['\"]?[\w ]+['\"]?\])\.astype\((['\"]?(?:float|int)\d*['\"]?|np\.float\d*|np\.int\d*)\)", r'pd.to_numeric(\1, errors="coerce")'),
        _sub(r"pd\.to_numeric\(([^(),]+)\)", r'pd.to_numeric(\1, errors="coerce")'),
        _sub(r"\.(corr|mean|median|std|sum|skew)\(\)", r".\1(numeric_only=True)"),
    )),
    Mend("TypeError|ValueError", "agg function failed|Could not convert .* to numeric|does not support|reduction operation|cannot perform", _first(
        _sub(r"\.(corr|mean|median|std|sum|skew)\(\)", r".\1(numeric_only=True)"), _numbers_in_line,
    )),
    Mend("TypeError", "unsupported operand|not supported between|can't multiply|ufunc|bad operand", _numbers_in_line),
    Mend("TypeError", "can only concatenate str|must be str|sequence item", _text_in_line),
    Mend("AttributeError", r"\.str accessor", _sub(r"(\w+\[['\"][^'\"]+['\"]\])\.str\b", r"\1.astype(str).str", everywhere=True)),
    Mend("ZeroDivisionError", "", _sub(r"/\s*(\w+(?:\([^()]*\))?)", r"/ max(\1, 1)")),
    Mend("LightGBMError", "special JSON characters", with_prepared_frames),
    Mend("TypeError", "got multiple values|positional argument", lambda broken: None),
    # what a model cannot digest
    Mend("ValueError|TypeError|CatBoostError|XGBoostError|LightGBMError|KeyError", "", with_prepared_frames),
)  # fmt: skip
