"""Thirty-five scripts with a planted fault each, as people and models write them: name, kind of fault, code."""

from __future__ import annotations

HEAD = """
import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.model_selection import train_test_split
"""
LOAD = """
train = pd.read_csv("./input/train.csv")
test = pd.read_csv("./input/test.csv")
"""
NUMBERS = """
features = ["age", "income", "visits"]
X = train[features].fillna(0)
y = train["bought"]
X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.2, random_state=42, stratify=y)
"""
FIT = """
model = RandomForestClassifier(n_estimators=20, random_state=42)
model.fit(X_train, y_train)
score = accuracy_score(y_val, model.predict(X_val))
print(f"Final Validation Performance: {score}")
"""
SUBMIT = """
import os
os.makedirs("./final", exist_ok=True)
submission = pd.DataFrame({"id": test["id"], "bought": model.predict(test[features].fillna(0))})
submission.to_csv("./final/submission.csv", index=False)
"""
GOOD = HEAD + LOAD + NUMBERS + FIT + SUBMIT


def edited(*pairs: tuple[str, str]) -> str:
    """The good script with some text replaced; every text must be there."""
    code = GOOD
    for old, new in pairs:
        assert old in code, old
        code = code.replace(old, new)
    return code


BROKEN: list[tuple[str, str, str]] = [
    # --- missing columns
    ("capital letters", "column", edited(('["age", "income", "visits"]', '["Age", "Income", "visits"]'))),
    ("a column that never was", "column", edited(('"visits"]', '"visits", "postcode_of_birth"]'))),
    ("the target misspelt", "column", edited(('train["bought"]', 'train["Bought_"]'))),
    (
        "dropping the target from the test table",
        "column",
        HEAD
        + LOAD
        + """
y = train["bought"]
X = train.drop(columns=["bought", "id", "city", "joined", "note"]).fillna(0)
T = test.drop(columns=["bought", "id", "city", "joined", "note"]).fillna(0)
X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.2, random_state=42)
"""
        + FIT
        + """
import os
os.makedirs("./final", exist_ok=True)
pd.DataFrame({"id": test["id"], "bought": model.predict(T)}).to_csv("./final/submission.csv", index=False)
""",
    ),
    (
        "a feature of a column that never was",
        "column",
        edited(("features = [", 'train["ratio"] = train["income"] / train["household_size"]\nfeatures = [')),
    ),
    # --- missing modules
    (
        "resampling that is not installed",
        "module",
        edited(
            (
                "from sklearn.model_selection",
                "from imblearn.over_sampling import SMOTE\nfrom sklearn.model_selection",
            ),
            (
                "model = RandomForest",
                "X_train, y_train = SMOTE(random_state=42).fit_resample(X_train, y_train)\nmodel = RandomForest",
            ),
        ),
    ),
    (
        "a plot nobody looks at",
        "module",
        edited(
            ("import numpy as np", "import numpy as np\nimport seaborn as sns"),
            ("features = [", 'sns.histplot(train["age"])\nfeatures = ['),
        ),
    ),
    (
        "a module that moved",
        "module",
        edited(("from sklearn.model_selection import train_test_split", "from sklearn.cross_validation import train_test_split")),
    ),
    (
        "a boosting library that is not installed",
        "module",
        edited(
            ("from sklearn.ensemble import RandomForestClassifier", "from ngboost import NGBClassifier"),
            ("RandomForestClassifier(n_estimators=20, random_state=42)", "NGBClassifier(n_estimators=20, random_state=42)"),
        ),
    ),
    (
        "a name that another module holds",
        "module",
        edited(("from sklearn.ensemble import RandomForestClassifier", "from sklearn.tree import RandomForestClassifier")),
    ),
    # --- types
    ("categories go straight into the model", "dtype", edited(('"visits"]', '"visits", "city"]'), (".fillna(0)\ny", "\ny"))),
    (
        "amounts written with a currency",
        "dtype",
        edited(("features = [", 'train["price"] = train["price"].astype(float)\nfeatures = [')),
    ),
    (
        "dates that are still text",
        "dtype",
        edited(
            ("features = [", 'train["year"] = train["joined"].dt.year\ntest["year"] = test["joined"].dt.year\nfeatures = ["year", '),
        ),
    ),
    (
        "whole numbers out of gaps",
        "dtype",
        edited(("features = [", 'train["age"] = train["age"].astype(int)\nfeatures = [')),
    ),
    (
        "the mean of everything",
        "dtype",
        edited(("X = train[features].fillna(0)", "train = train.fillna(train.mean())\nX = train[features].fillna(0)")),
    ),
    # --- gaps
    ("gaps in a linear model", "NaN", edited(("train[features].fillna(0)", "train[features]"), ("RandomForestClassifier(n_estimators=20, random_state=42)", "LogisticRegression(max_iter=500)"))),
    (
        "a division by zero",
        "NaN",
        edited(
            ("features = [", 'for frame in (train, test):\n    frame["rate"] = frame["income"] / frame["visits"]\nfeatures = ["rate", '),
            ("RandomForestClassifier(n_estimators=20, random_state=42)", "LogisticRegression(max_iter=500)"),
        ),
    ),
    (
        "gaps in a support vector machine behind a scaler",
        "NaN",
        edited(
            ("train[features].fillna(0)", "train[features]"),
            ("model = RandomForestClassifier(n_estimators=20, random_state=42)", "from sklearn.preprocessing import StandardScaler\nfrom sklearn.svm import SVC\nscaler = StandardScaler()\nX_train = scaler.fit_transform(X_train)\nX_val = scaler.transform(X_val)\nmodel = SVC()"),
            ("model.predict(test[features].fillna(0))", "model.predict(scaler.transform(test[features].fillna(0)))"),
        ),
    ),
    (
        "a target with gaps",
        "NaN",
        HEAD
        + """
train = pd.read_csv("./input/train.csv")
test = pd.read_csv("./input/test.csv")
train["bought"] = train["bought_late"]
features = ["age", "income", "visits"]
X = train[features].fillna(0)
y = train["bought"]
X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.2, random_state=42)
"""
        + FIT
        + SUBMIT,
    ),
    # --- shapes
    ("fitted on all the targets", "shape", edited(("model.fit(X_train, y_train)", "model.fit(X_train, y)"))),
    ("scored against all the targets", "shape", edited(("accuracy_score(y_val,", "accuracy_score(y,"))),
    (
        "one column is no table",
        "shape",
        edited(
            ("features = [", 'from sklearn.preprocessing import StandardScaler\ntrain["income"] = StandardScaler().fit_transform(train["income"])\nfeatures = ['),
        ),
    ),
    ("two columns of probabilities", "shape", edited(("accuracy_score(y_val, model.predict(X_val))", "roc_auc_score(y_val, proba)"), ("score = ", "proba = model.predict_proba(X_val)\nscore = "))),
    (
        "columns that the test table lacks",
        "shape",
        HEAD
        + LOAD
        + """
y = train["bought"]
X = pd.get_dummies(train[["age", "income", "city"]]).fillna(0)
T = pd.get_dummies(test[["age", "income", "city"]]).fillna(0)
X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.2, random_state=42)
"""
        + FIT
        + """
import os
os.makedirs("./final", exist_ok=True)
pd.DataFrame({"id": test["id"], "bought": model.predict(T)}).to_csv("./final/submission.csv", index=False)
""",
    ),
    # --- memory
    ("a matrix of all pairs", "memory", edited(("features = [", "distances = np.ones((400_000, 400_000))\nfeatures = ["))),
    (
        "the table a million times",
        "memory",
        edited(("features = [", "noise = np.random.rand(len(train) * 10_000, 200_000)\nfeatures = [")),
    ),
    # --- unknown categories
    (
        "a level that only the held-out rows have",
        "category",
        HEAD
        + LOAD
        + """
from sklearn.preprocessing import OneHotEncoder
y = train["bought"]
X_train, X_val, y_train, y_val = train_test_split(train[["city"]], y, test_size=0.2, random_state=42)
encoder = OneHotEncoder()
X_train = encoder.fit_transform(X_train)
X_val = encoder.transform(X_val)
"""
        + FIT
        + """
import os
os.makedirs("./final", exist_ok=True)
answer = model.predict(encoder.transform(test[["city"]]))
pd.DataFrame({"id": test["id"], "bought": answer}).to_csv("./final/submission.csv", index=False)
""",
    ),
    (
        "an ordinal encoder that is surprised",
        "category",
        HEAD
        + LOAD
        + """
from sklearn.preprocessing import OrdinalEncoder
y = train["bought"]
X_train, X_val, y_train, y_val = train_test_split(train[["city"]], y, test_size=0.2, random_state=42)
encoder = OrdinalEncoder()
X_train = encoder.fit_transform(X_train)
X_val = encoder.transform(X_val)
X_test = encoder.transform(test[["city"]])
"""
        + FIT,
    ),
    (
        "a label encoder for a column",
        "category",
        HEAD
        + LOAD
        + """
from sklearn.preprocessing import LabelEncoder
encoder = LabelEncoder()
train["city"] = encoder.fit_transform(train["city"])
test["city"] = encoder.transform(test["city"])
features = ["city", "income", "visits"]
X = train[features]
y = train["bought"]
X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.2, random_state=42)
"""
        + FIT
        + SUBMIT,
    ),
    # --- encodings and files
    (
        "a table in another encoding",
        "encoding",
        edited(("features = [", 'towns = pd.read_csv("./input/towns.csv", sep=";")\nfeatures = [')),
    ),
    (
        "an encoding that is said but wrong",
        "encoding",
        edited(("features = [", 'towns = pd.read_csv("./input/towns.csv", sep=";", encoding="utf-8")\nfeatures = [')),
    ),
    ("the wrong folder", "file", edited(("./input/train.csv", "../data/train.csv"), ("./input/test.csv", "../data/test.csv"))),
    # --- names, syntax, what changed
    ("an import forgotten", "name", edited(("from sklearn.metrics import accuracy_score, roc_auc_score\n", ""))),
    ("a colon forgotten", "syntax", edited(("features = [", "for frame in (train, test)\n    frame[\"late\"] = 1\nfeatures = ["))),
    ("an option of long ago", "api", edited(("n_estimators=20, random_state=42", 'n_estimators=20, max_features="auto", random_state=42'))),
]  # fmt: skip
