"""Modules that are missing or moved, and names that nobody defined."""

from __future__ import annotations

import ast
import difflib
import re

from mle_star.engineer.rules.broken import Broken
from mle_star.engineer.rules.repairs.data import dropped

_LIKE_A_SCORE = re.compile(r"score|auc|acc|rmse|rmsle|mae|mse|r2|f1|loss|kappa|metric", re.IGNORECASE)
_HELD = ("val", "valid", "test")

MOVED = {
    "sklearn.cross_validation": "sklearn.model_selection", "sklearn.grid_search": "sklearn.model_selection",
    "sklearn.externals.joblib": "joblib", "sklearn.externals": "joblib",
    "sklearn.preprocessing.imputation": "sklearn.impute",
    "sklearn.ensemble.forest": "sklearn.ensemble", "sklearn.ensemble.gradient_boosting": "sklearn.ensemble",
    "sklearn.metrics.scorer": "sklearn.metrics", "pandas.tools.plotting": "pandas.plotting", "StringIO": "io",
}  # fmt: skip
KNOWN_IMPORTS = {
    "np": "import numpy as np", "pd": "import pandas as pd", "os": "import os", "re": "import re",
    "json": "import json", "math": "import math", "random": "import random", "Path": "from pathlib import Path",
    "lgb": "import lightgbm as lgb",
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
    "PolynomialFeatures QuantileTransformer PowerTransformer FunctionTransformer TargetEncoder KBinsDiscretizer "
    "Normalizer",
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
    "sklearn.feature_selection": "SelectKBest f_classif f_regression mutual_info_classif chi2 RFE "
    "mutual_info_regression",
    "sklearn.calibration": "CalibratedClassifierCV",
    "sklearn.cluster": "KMeans",
    "lightgbm": "LGBMClassifier LGBMRegressor",
    "xgboost": "XGBClassifier XGBRegressor",
    "catboost": "CatBoostClassifier CatBoostRegressor",
}
HOMES = {name: module for module, names in SKLEARN_HOMES.items() for name in names.split()}
STANDINS = {
    "LGBM": "HistGradientBoosting", "XGB": "HistGradientBoosting", "CatBoost": "HistGradientBoosting",
    "BalancedRandomForest": "RandomForest", "NGB": "HistGradientBoosting", "TabNet": "MLP",
    "TabPFN": "HistGradientBoosting",
}  # fmt: skip
KEPT_SETTINGS = {
    "HistGradientBoosting": {"learning_rate", "max_depth", "random_state", "max_leaf_nodes", "max_iter", "verbose"},
    "RandomForest": {"n_estimators", "max_depth", "random_state", "n_jobs", "min_samples_leaf"},
    "MLP": {"random_state", "max_iter"},
}


def mend_module(broken: Broken) -> str | None:
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
        code = dropped(code, rf"\b{used}\b", keep=r"Final Validation|\.fit\(|predict")
    return code if code != broken.code else None


def _swap_class(code: str, old: str, new: str, kept: set[str]) -> str:
    """Calls of one class as calls of another, with the settings that both know."""
    renames = {
        "n_estimators": "max_iter", "iterations": "max_iter", "num_leaves": "max_leaf_nodes", "depth": "max_depth",
        "random_seed": "random_state", "seed": "random_state", "eta": "learning_rate",
    }  # fmt: skip

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


def mend_name(broken: Broken) -> str | None:
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
        scores = [n for n in defined if _LIKE_A_SCORE.search(n)]
        if scores:
            return broken.with_text(re.sub(rf"\b{name}\b", max(scores, key=broken.code.rfind), broken.text))
    spellings = {
        name.lower(),
        *(re.sub(r"_(val|valid|validation|test|dev|hold\w*)$", f"_{end}", name).lower() for end in _HELD),
    }
    meant = [d for d in defined if d.lower() in spellings and d != name]
    return broken.with_text(re.sub(rf"\b{name}\b", meant[0], broken.text)) if meant else None
