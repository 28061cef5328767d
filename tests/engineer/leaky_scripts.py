"""Scripts with a planted leak each, and clean ones that look like them."""

from __future__ import annotations

TOP = """
import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score, train_test_split
from sklearn.preprocessing import LabelEncoder, MinMaxScaler, OneHotEncoder, StandardScaler
df = pd.read_csv("./input/train.csv")
test = pd.read_csv("./input/test.csv")
"""
SPLIT = "X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.2, random_state=42, stratify=y)\n"
END = """
model = LogisticRegression(max_iter=500)
model.fit(X_train, y_train)
pred = model.predict(X_val)
print(f"Final Validation Performance: {accuracy_score(y_val, pred)}")
"""
XY = 'X = df.drop(columns=["id", "bought"])\ny = df["bought"]\n'
NUM = 'X = df[["age", "income"]]\ny = df["bought"]\n'

LEAKY: dict[str, str] = {
    "a scaler on all rows": TOP + NUM + "scaler = StandardScaler()\nX = scaler.fit_transform(X)\n" + SPLIT + END,
    "a scaler fitted, then used": TOP + NUM + "scaler = MinMaxScaler().fit(X)\n" + SPLIT
    + "X_train = scaler.transform(X_train)\nX_val = scaler.transform(X_val)\n" + END,
    "an imputer on all rows": TOP + NUM + 'X = SimpleImputer(strategy="mean").fit_transform(X)\n' + SPLIT + END,
    "gaps filled with the mean of all rows": TOP + 'df["age"] = df["age"].fillna(df["age"].mean())\n' + NUM + SPLIT + END,
    "gaps filled with all medians": TOP + NUM + "X = X.fillna(X.median())\n" + SPLIT + END,
    "centred with all rows": TOP + NUM + "X = (X - X.mean()) / X.std()\n" + SPLIT + END,
    "target means of all rows": TOP + 'df["city_mean"] = df.groupby("city")["bought"].transform("mean")\n' + XY + SPLIT + END,
    "target means by a map": TOP + 'means = df.groupby("city")["bought"].mean()\ndf["city_mean"] = df["city"].map(means)\n'
    + 'X = df[["city_mean", "age"]]\ny = df["bought"]\n' + SPLIT + END,
    "features chosen with all targets": TOP + NUM
    + "from sklearn.feature_selection import SelectKBest, f_classif\nX = SelectKBest(f_classif, k=1).fit_transform(X, y)\n" + SPLIT + END,
    "components of all rows": TOP + NUM + "from sklearn.decomposition import PCA\npca = PCA(n_components=2)\nX = pca.fit_transform(X)\n"
    + SPLIT + END,
    "words of all rows": TOP
    + 'from sklearn.feature_extraction.text import TfidfVectorizer\ny = df["bought"]\nX = TfidfVectorizer().fit_transform(df["note"])\n'
    + SPLIT + END,
    "the model sees everything": TOP + NUM + SPLIT
    + "model = RandomForestClassifier(random_state=42)\nmodel.fit(X, y)\npred = model.predict(X_val)\n"
    + 'print(f"Final Validation Performance: {accuracy_score(y_val, pred)}")\n',
    "held-out rows joined to the training rows": TOP + NUM + SPLIT
    + "model = RandomForestClassifier(random_state=42)\n"
    + "model.fit(pd.concat([X_train, X_val]), pd.concat([y_train, y_val]))\n"
    + 'print(f"Final Validation Performance: {accuracy_score(y_val, model.predict(X_val))}")\n',
    "test rows in the scaler": TOP + NUM + SPLIT
    + 'scaler = StandardScaler()\nscaler.fit(pd.concat([X_train, test[["age", "income"]]]))\n'
    + "X_train = scaler.transform(X_train)\nX_val = scaler.transform(X_val)\n" + END,
    "everything joined, then scaled": TOP
    + 'both = pd.concat([df.drop(columns="bought"), test])\nboth[["age", "income"]] = StandardScaler().fit_transform(both[["age", "income"]])\n'
    + 'X = both[["age", "income"]].iloc[: len(df)]\ny = df["bought"]\n' + SPLIT + END,
    "rows doubled before the split": TOP + NUM
    + "from imblearn.over_sampling import SMOTE\nX, y = SMOTE(random_state=42).fit_resample(X, y)\n" + SPLIT + END,
    "a scaler before the folds": TOP + NUM + "X = StandardScaler().fit_transform(X)\nscores = []\n"
    + """
for train_idx, val_idx in StratifiedKFold(5, shuffle=True, random_state=42).split(X, y):
    model = LogisticRegression().fit(X[train_idx], y.iloc[train_idx])
    scores.append(accuracy_score(y.iloc[val_idx], model.predict(X[val_idx])))
print(f"Final Validation Performance: {np.mean(scores)}")
""",
    "a scaler before cross_val_score": TOP + NUM
    + "X_scaled = StandardScaler().fit_transform(X)\nscores = cross_val_score(LogisticRegression(), X_scaled, y, cv=5)\n"
    + 'print(f"Final Validation Performance: {scores.mean()}")\n',
    "inside a function": TOP + """
def preprocess(frame):
    frame = frame.copy()
    frame["income"] = frame["income"].fillna(frame["income"].median())
    frame[["age", "income"]] = StandardScaler().fit_transform(frame[["age", "income"]])
    return frame

df = preprocess(df)
""" + NUM + SPLIT + END,
    "in a main function": TOP + """
def main():
    data = pd.read_csv("./input/train.csv")
    features = data[["age", "income"]]
    target = data["bought"]
    imputer = SimpleImputer()
    features = imputer.fit_transform(features)
    X_train, X_val, y_train, y_val = train_test_split(features, target, test_size=0.2, random_state=42)
    model = RandomForestClassifier().fit(X_train, y_train)
    print(f"Final Validation Performance: {accuracy_score(y_val, model.predict(X_val))}")


if __name__ == "__main__":
    main()
""",
    "the target among the features": TOP + 'y = df["bought"]\nX = df.drop(columns=["id", "city", "note"])\n' + SPLIT + END,
    "a selector with the target's correlations": TOP
    + 'numbers = df.select_dtypes("number")\nstrong = numbers.corr()["bought"].abs().nlargest(4).index.drop("bought")\n'
    + 'X = df[strong]\ny = df["bought"]\n' + SPLIT + END,
}  # fmt: skip

CLEAN: dict[str, str] = {
    "a scaler on the training rows": TOP + NUM + SPLIT
    + "scaler = StandardScaler()\nX_train = scaler.fit_transform(X_train)\nX_val = scaler.transform(X_val)\n" + END,
    "an imputer on the training rows": TOP + NUM + SPLIT
    + "imputer = SimpleImputer().fit(X_train)\nX_train = imputer.transform(X_train)\nX_val = imputer.transform(X_val)\n" + END,
    "gaps filled with the training mean": TOP + NUM + SPLIT
    + "middle = X_train.mean()\nX_train = X_train.fillna(middle)\nX_val = X_val.fillna(middle)\n" + END,
    "gaps filled with a constant": TOP + NUM + "X = X.fillna(0)\n" + SPLIT + END,
    "a pipeline": TOP + NUM + SPLIT
    + "from sklearn.pipeline import make_pipeline\nmodel = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression())\n"
    + 'model.fit(X_train, y_train)\nprint(f"Final Validation Performance: {accuracy_score(y_val, model.predict(X_val))}")\n',
    "a pipeline in cross_val_score": TOP + NUM
    + "from sklearn.pipeline import Pipeline\n"
    + 'pipe = Pipeline([("fill", SimpleImputer()), ("scale", StandardScaler()), ("model", LogisticRegression())])\n'
    + 'scores = cross_val_score(pipe, X, y, cv=5)\nprint(f"Final Validation Performance: {scores.mean()}")\n',
    "labels numbered": TOP + 'X = df[["age", "income"]].fillna(0)\ny = LabelEncoder().fit_transform(df["bought"])\n' + SPLIT + END,
    "dummies": TOP + 'X = pd.get_dummies(df[["age", "city"]]).fillna(0)\ny = df["bought"]\n' + SPLIT + END,
    "row-wise features": TOP + 'df["per_visit"] = df["income"] / (df["visits"] + 1)\ndf["total"] = df[["age", "visits"]].sum(axis=1)\n'
    + 'X = df[["per_visit", "total"]].fillna(-1)\ny = df["bought"]\n' + SPLIT + END,
    "dates taken apart": TOP + 'df["joined"] = pd.to_datetime(df["joined"])\ndf["year"] = df["joined"].dt.year\n'
    + 'X = df[["year", "visits"]]\ny = df["bought"]\n' + SPLIT + END,
    "refitted after the score": TOP + NUM + "X = X.fillna(0)\n" + SPLIT + END
    + 'final = LogisticRegression(max_iter=500).fit(X, y)\nscaler = StandardScaler().fit(X)\n'
    + 'pd.DataFrame({"id": test["id"], "bought": final.predict(test[["age", "income"]].fillna(0))}).to_csv("./final/submission.csv", index=False)\n',
    "target means inside the folds": TOP + 'y = df["bought"]\noof = np.zeros(len(df))\n' + """
for train_idx, val_idx in KFold(5, shuffle=True, random_state=42).split(df):
    fold_train, fold_val = df.iloc[train_idx].copy(), df.iloc[val_idx].copy()
    means = fold_train.groupby("city")["bought"].mean()
    fold_train["city_mean"] = fold_train["city"].map(means)
    fold_val["city_mean"] = fold_val["city"].map(means).fillna(fold_train["bought"].mean())
    model = RandomForestClassifier(n_estimators=50).fit(fold_train[["city_mean"]], fold_train["bought"])
    oof[val_idx] = model.predict_proba(fold_val[["city_mean"]])[:, 1]
print(f"Final Validation Performance: {roc_auc_score(y, oof)}")
""",
    "words of the training rows": TOP
    + "from sklearn.feature_extraction.text import TfidfVectorizer\n"
    + 'train_text, val_text, y_train, y_val = train_test_split(df["note"].fillna(""), df["bought"], test_size=0.2, random_state=42)\n'
    + "vectorizer = TfidfVectorizer()\nX_train = vectorizer.fit_transform(train_text)\nX_val = vectorizer.transform(val_text)\n" + END,
    "a column transformer": TOP + 'X = df[["age", "income", "city"]]\ny = df["bought"]\n' + SPLIT + """
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
prep = ColumnTransformer([("n", SimpleImputer(), ["age", "income"]), ("c", OneHotEncoder(handle_unknown="ignore"), ["city"])])
clf = Pipeline([("prep", prep), ("model", LogisticRegression(max_iter=500))])
clf.fit(X_train, y_train)
print(f"Final Validation Performance: {accuracy_score(y_val, clf.predict(X_val))}")
""",
    "a function that is given the training rows": TOP + NUM + SPLIT + """
def prepare(train_part, other):
    middle = train_part.median()
    scaler = StandardScaler().fit(train_part.fillna(middle))
    return scaler.transform(train_part.fillna(middle)), scaler.transform(other.fillna(middle))

X_train, X_val = prepare(X_train, X_val)
""" + END,
    "a subsample first": TOP + "if len(df) > 30000:\n    df = df.sample(n=30000, random_state=42)\n" + NUM + "X = X.fillna(-1)\n" + SPLIT + END,
    "looking at the data": TOP + 'print(df.describe())\nprint(df["age"].mean(), df["bought"].value_counts())\n' + NUM + "X = X.fillna(0)\n" + SPLIT + END,
    "weights of the classes": TOP + NUM + "X = X.fillna(0)\n" + SPLIT
    + 'weight = (y_train == 0).sum() / (y_train == 1).sum()\nmodel = RandomForestClassifier(class_weight={0: 1, 1: weight})\n'
    + 'model.fit(X_train, y_train)\nprint(f"Final Validation Performance: {accuracy_score(y_val, model.predict(X_val))}")\n',
    "fitted in folds": TOP + NUM + "X = X.fillna(0).to_numpy()\ny = y.to_numpy()\nscores = []\n" + """
folds = StratifiedKFold(n_splits=5, shuffle=True, random_state=42)
for fold, (fit, held) in enumerate(folds.split(X, y)):
    scaler = StandardScaler()
    x_fit = scaler.fit_transform(X[fit])
    x_held = scaler.transform(X[held])
    model = LogisticRegression().fit(x_fit, y[fit])
    scores.append(accuracy_score(y[held], model.predict(x_held)))
print(f"Final Validation Performance: {np.mean(scores)}")
""",
    "split by a mask": TOP + """
mask = np.random.RandomState(42).rand(len(df)) < 0.8
fit_part, val_part = df[mask], df[~mask]
middle = fit_part["age"].median()
X_train, y_train = fit_part[["age"]].fillna(middle), fit_part["bought"]
X_val, y_val = val_part[["age"]].fillna(middle), val_part["bought"]
""" + END,
    "early stopping inside the training rows": TOP + NUM + SPLIT + """
from lightgbm import LGBMClassifier, early_stopping
X_fit, X_stop, y_fit, y_stop = train_test_split(X_train, y_train, test_size=0.1, random_state=0)
model = LGBMClassifier(n_estimators=500)
model.fit(X_fit, y_fit, eval_set=[(X_stop, y_stop)], callbacks=[early_stopping(20)])
print(f"Final Validation Performance: {accuracy_score(y_val, model.predict(X_val))}")
""",
    "in a main function": """
import pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.ensemble import RandomForestClassifier


def main():
    data = pd.read_csv("./input/train.csv")
    train, valid = train_test_split(data, test_size=0.2, random_state=42)
    imputer = SimpleImputer()
    columns = ["age", "income"]
    x_train = imputer.fit_transform(train[columns])
    x_valid = imputer.transform(valid[columns])
    model = RandomForestClassifier().fit(x_train, train["bought"])
    print(f"Final Validation Performance: {accuracy_score(valid['bought'], model.predict(x_valid))}")
    model.fit(imputer.fit_transform(data[columns]), data["bought"])


if __name__ == "__main__":
    main()
""",
}  # fmt: skip
