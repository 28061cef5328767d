"""The library of feature steps: paragraphs that a script's `build_features` is made of, and when each is worth trying.

Every paragraph stands inside `build_features(fit, fit_y, others)`. There, `frames` holds the training rows and the rows
to predict, `built` the columns made of them so far, in the same order. What a step learns, it learns from `fit` alone.
To add a step, append an entry to `STEPS`; `worth` says how promising it is for a task, 0 for not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mle_star.engineer.rules.literals import name_list, quoted
from mle_star.engineer.rules.profile import Profile


@dataclass(frozen=True)
class Step:
    """One paragraph. `key` opens its comment and names it in studies; `title` names it in plans."""

    key: str
    title: str
    why: str
    code: str
    worth: Callable[[Profile], float]
    imports: tuple[str, ...] = ()

    @property
    def paragraph(self) -> str:
        """The code, indented for the inside of `build_features`."""
        lines = self.code.strip("\n").splitlines()
        return "\n".join(f"    {line}" if line else "" for line in lines)


def _has(*kinds: str) -> Callable[[Profile], float]:
    return lambda p: 1.0 if any(column.kind in kinds for column in p.columns) else 0.0


def _numbers(p: Profile) -> int:
    return len(p.of("number", "messy number"))


def _scalar_target(p: Profile) -> bool:
    """Is there one number a row (a value, or the probability of one class) that means can be taken of?"""
    return p.kind != "multiclass"


# --- what the first script has --------------------------------------------------------------------------

CATEGORIES = Step(
    "categories",
    "Encode the categories",
    "Levels are learned from the training rows; rare, new and missing ones are told apart from the rest.",
    """
# categories: by number; levels that are rare in `fit` or new count as missing
for column in CATEGORIES:
    counts = fit[column].value_counts()
    code = {level: number for number, level in enumerate(counts[counts >= 2].index)}
    for x, frame in zip(built, frames):
        x[column] = pd.Categorical(frame[column].map(code), categories=range(len(code)))
""",
    _has("category"),
)
DATES = Step(
    "dates",
    "Take the dates apart",
    "Seasons, weekdays and the trend become visible.",
    """
# dates: parts of the calendar, and the days since the first training row
for column in DATES:
    start = fit[column].min()
    for x, frame in zip(built, frames):
        when = frame[column].dt
        x[f"{column} year"] = when.year
        x[f"{column} month"] = when.month
        x[f"{column} day"] = when.day
        x[f"{column} weekday"] = when.dayofweek
        x[f"{column} hour"] = when.hour + when.minute / 60
        x[f"{column} age"] = (frame[column] - start).dt.total_seconds() / 86400
""",
    _has("date"),
)
TEXTS = Step(
    "texts",
    "Pass the texts on",
    "Models that read get the words, the others their number.",
    """
# texts: as they are for the models that read, their length for those that count
for column in TEXTS:
    for x, frame in zip(built, frames):
        x[column] = frame[column]
        x[f"{column} characters"] = frame[column].str.len()
        x[f"{column} words"] = frame[column].str.count(" ") + 1
""",
    _has("text", "list"),
)
FIRST_STEPS = (CATEGORIES, DATES, TEXTS)

# --- what refinement can add -----------------------------------------------------------------------------

STEPS: tuple[Step, ...] = (
    Step(
        "ratios",
        "Add ratios of the numbers",
        "Trees cut one column at a time; a quotient of two columns is a boundary that they cannot draw by themselves.",
        """
# ratios: of the numbers that move with the target most
strength = built[0][NUMBERS].corrwith(pd.Series(fit_y, index=fit.index), method="spearman").abs()
strongest = [column for column in NUMBERS if column in strength.nlargest(7).index]
for i, a in enumerate(strongest):
    for b in strongest[i + 1 :]:
        for x in built:
            x[f"{a} / {b}"] = x[a] / x[b].where(x[b] != 0)
""",
        lambda p: 0.75 if _numbers(p) >= 2 and _scalar_target(p) else 0.35 if _numbers(p) >= 2 else 0,
    ),
    Step(
        "products",
        "Add sums and products of the numbers",
        "Areas, volumes and totals are products and sums of columns.",
        """
# products: and sums of the numbers that move with the target most
strength = built[0][NUMBERS].corrwith(pd.Series(fit_y, index=fit.index), method="spearman").abs()
strongest = [column for column in NUMBERS if column in strength.nlargest(5).index]
for i, a in enumerate(strongest):
    for b in strongest[i + 1 :]:
        for x in built:
            x[f"{a} * {b}"] = x[a] * x[b]
            x[f"{a} + {b}"] = x[a] + x[b]
""",
        lambda p: 0.45 if _numbers(p) >= 2 and _scalar_target(p) else 0.2 if _numbers(p) >= 2 else 0,
    ),
    Step(
        "zeros",
        "Read impossible zeros as gaps",
        "A column that is positive but for a few zeros holds mistakes there, and a mistake pulls every split.",
        """
# zeros: in columns that are positive but for a few rows, a zero is a gap
for column in NUMBERS:
    share = (built[0][column] == 0).mean()
    if 0 < share < 0.02 and (built[0][column] >= 0).all():
        for x in built:
            x[column] = x[column].where(x[column] != 0)
""",
        lambda p: 0.6 if any(0 < c.zeros < 0.02 and c.low >= 0 and not c.whole for c in p.of("number")) else 0,
    ),
    Step(
        "target means",
        "Encode categories by the target's mean",
        "Smoothed and cross-fitted inside the training rows, the mean says in one number what many levels hide.",
        """
# target means: of each category and of pairs of them, smoothed; cross-fitted, so that no row sees its own target
small = [column for column in CATEGORIES if fit[column].nunique() <= 40][:5]
pairs = [(a, b) for i, a in enumerate(small) for b in small[i + 1 :]]
levels = [frame[CATEGORIES].astype(str) for frame in frames]
for level in levels:
    for a, b in pairs:
        level[f"{a} & {b}"] = level[a] + " & " + level[b]
encoder = TargetEncoder(target_type="SORT", random_state=SEED)
means = [encoder.fit_transform(levels[0], fit_y), *(encoder.transform(level) for level in levels[1:])]
for x, mean in zip(built, means):
    x[[f"target mean {number}" for number in range(mean.shape[1])]] = mean
""",
        lambda p: (
            (0.8 if any(c.many_levels for c in p.of("category")) else 0.55)
            if p.of("category") and _scalar_target(p)
            else 0.3
            if p.of("category") and len(p.classes) <= 8
            else 0
        ),
        ("from sklearn.preprocessing import TargetEncoder",),
    ),
    Step(
        "frequencies",
        "Add the frequency of each category",
        "How common a level is often says as much as the level itself.",
        """
# frequencies: how often each level occurs among the training rows
for column in CATEGORIES:
    counts = fit[column].value_counts()
    for x, frame in zip(built, frames):
        x[f"{column} count"] = frame[column].map(counts).astype(float).fillna(0)
""",
        lambda p: 0.6 if any(c.many_levels for c in p.of("category")) else 0.3 if p.of("category") else 0,
    ),
    Step(
        "code parts",
        "Take codes with many levels apart",
        "A code that hardly repeats still tells by its first letter, its number and its pieces what it belongs to.",
        """
# code parts: first letter, number and pieces of codes with many levels
for column in CODES:
    heads = fit[column].astype(str).str[0].value_counts()
    code = {head: number for number, head in enumerate(heads[heads >= 5].index)}
    for x, frame in zip(built, frames):
        text = frame[column].fillna("").astype(str)
        x[f"{column} head"] = pd.Categorical(text.str[:1].map(code), categories=range(len(code)))
        x[f"{column} number"] = pd.to_numeric(text.str.extract(r"(\\d+)", expand=False), errors="coerce")
        x[f"{column} pieces"] = text.str.count(r"\\S+")
        x[f"{column} gap"] = frame[column].isna().astype(int)
""",
        lambda p: 0.8 if any(c.many_levels for c in p.of("category")) else 0,
    ),
    Step(
        "group deviations",
        "Compare each number with its group",
        "What counts is often not the value but its distance from the usual value of the same category.",
        """
# group deviations: numbers against their mean among the training rows of the same category
for column in [c for c in CATEGORIES if 2 <= fit[c].nunique() <= 200][:3]:
    for number in NUMBERS[:8]:
        means = built[0][number].groupby(fit[column].to_numpy()).mean()
        for x, frame in zip(built, frames):
            x[f"{number} against {column}"] = x[number] - frame[column].map(means).astype(float)
""",
        lambda p: 0.35 if p.of("category") and _numbers(p) else 0,
    ),
    Step(
        "gap flags",
        "Flag the gaps",
        "That a value is missing can say more than the value would.",
        """
# gap flags: which values are missing, and how many
for x, frame in zip(built, frames):
    x["gaps"] = frame[GAPPY].isna().sum(axis=1)
    for column in GAPPY:
        x[f"{column} missing"] = frame[column].isna().astype(int)
""",
        lambda p: 0.4 if any(c.gaps > 0.02 for c in p.columns) else 0,
    ),
    Step(
        "codes",
        "Treat small whole numbers as categories, too",
        "Seasons, grades and types come as numbers, but their order may mean nothing.",
        """
# codes: whole numbers with few values, as categories beside the numbers
for column in NUMBERS:
    levels = np.sort(fit[column].dropna().unique())
    if 3 <= len(levels) <= 25 and (levels == levels.round()).all():
        code = {level: number for number, level in enumerate(levels)}
        for x, frame in zip(built, frames):
            x[f"{column} code"] = pd.Categorical(frame[column].map(code), categories=range(len(code)))
""",
        lambda p: 0.4 if any(c.whole and 3 <= c.distinct <= 25 for c in p.of("number")) else 0,
    ),
    Step(
        "frequent words",
        "Flag the frequent words of the texts",
        "In short texts a single word, such as a title or a type, often carries the meaning.",
        """
# frequent words: does the text hold each of the words that are common among the training rows?
for column in TEXTS:
    words = CountVectorizer(binary=True, min_df=0.01, max_features=60, token_pattern=r"(?u)\\b\\w+\\b").fit(fit[column])
    for x, frame in zip(built, frames):
        flags = words.transform(frame[column]).toarray()
        x[[f"{column} has {word}" for word in words.get_feature_names_out()]] = flags
""",
        lambda p: 0.9 if any(c.words < 12 for c in p.of("text")) else 0.5 if p.of("text", "list") else 0,
        ("from sklearn.feature_extraction.text import CountVectorizer",),
    ),
    Step(
        "text statistics",
        "Measure how the texts are written",
        "Digits, capitals, punctuation and word length tell kinds of texts apart without reading them.",
        """
# text statistics: how the texts are written
for column in TEXTS:
    for x, frame in zip(built, frames):
        text = frame[column]
        length = text.str.len().clip(lower=1)
        for name, pattern in {
            "digits": r"\\d", "capitals": r"[A-Z]", "marks": r"[!?]", "signs": r"[^\\w\\s]", "money": r"[$£€]",
            "shouted": r"\\b[A-Z]{2,}\\b", "numbers": r"\\d{3,}", "links": r"https?:|www\\.|@",
        }.items():
            x[f"{column} {name}"] = text.str.count(pattern)
            x[f"{column} {name} share"] = x[f"{column} {name}"] / length
""",
        lambda p: 0.85 if p.of("text") else 0,
    ),
    Step(
        "topics",
        "Compress the texts into topics",
        "The main directions of the weighted words are numbers that every model can use.",
        """
# topics: the main directions of the weighted words
for column in TEXTS:
    words = TfidfVectorizer(min_df=2, sublinear_tf=True, max_features=20000, strip_accents="unicode").fit(fit[column])
    size = min(32, len(words.get_feature_names_out()) - 1)
    topics = TruncatedSVD(size, random_state=SEED).fit(words.transform(fit[column]))
    for x, frame in zip(built, frames):
        x[[f"{column} topic {k}" for k in range(size)]] = topics.transform(words.transform(frame[column]))
""",
        lambda p: 0.8 if any(c.words >= 6 for c in p.of("text")) or p.of("list") else 0,
        (
            "from sklearn.decomposition import TruncatedSVD",
            "from sklearn.feature_extraction.text import TfidfVectorizer",
        ),
    ),
    Step(
        "reading",
        "Let a linear reader judge the texts first",
        "Its cross-fitted judgement of the words is the one column that trees need from a text.",
        """
# reading: what a linear model makes of the words, cross-fitted so that no training row is judged by itself
for column in TEXTS:
    reader = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=3, sublinear_tf=True, max_features=60000),
        READER,
    )
    judged = cross_val_predict(reader, fit[column], fit_y, cv=4, method="METHOD")
    reader.fit(fit[column], fit_y)
    for x, p in zip(built, [judged, *(reader.METHOD(frame[column]) for frame in others)]):
        p = np.reshape(p, (len(x), -1))
        x[[f"{column} judged {k}" for k in range(p.shape[1])]] = p
""",
        lambda p: 0.9 if any(c.words >= 5 for c in p.of("text")) or p.of("list") else 0,
        (
            "from sklearn.feature_extraction.text import TfidfVectorizer",
            "from sklearn.linear_model import LogisticRegression, Ridge",
            "from sklearn.model_selection import cross_val_predict",
            "from sklearn.pipeline import make_pipeline",
        ),
    ),
    Step(
        "calendar",
        "Join the hours, weekdays and seasons",
        "Demand follows the hour of the week and the week of the year, not hour and weekday apart.",
        """
# calendar: the hour of the week, the day of the year, and both as a circle
for column in DATES:
    for x, frame in zip(built, frames):
        when = frame[column].dt
        hour = when.hour + when.minute / 60
        x[f"{column} hour of week"] = when.dayofweek * 24 + hour
        x[f"{column} day of year"] = when.dayofyear
        x[f"{column} weekend"] = (when.dayofweek >= 5).astype(int)
        of_week, of_year = when.dayofweek * 24 + hour, when.dayofyear
        for name, part, whole in (("day", hour, 24), ("week", of_week, 168), ("year", of_year, 365)):
            x[f"{column} {name} sin"] = np.sin(2 * np.pi * part / whole)
            x[f"{column} {name} cos"] = np.cos(2 * np.pi * part / whole)
""",
        lambda p: 0.6 if p.of("date") else 0,
    ),
    Step(
        "neighbours in time",
        "Look at the training rows just before and after",
        "Rows to predict lie between training rows in time, so the target of the nearest ones is the best first guess.",
        """
# neighbours in time: the target of the training rows just before and just after, and how far away they are
moments = fit[WHEN].to_numpy().astype("datetime64[s]").astype(float)
order = np.argsort(moments, kind="stable")
times, values = moments[order], np.asarray(fit_y, dtype=float)[order]
for number, (x, frame) in enumerate(zip(built, frames)):
    asked = frame[WHEN].to_numpy().astype("datetime64[s]").astype(float)
    place = np.searchsorted(times, asked, side="left")
    if number == 0:  # a training row must not see itself
        place = np.empty(len(order), dtype=int)
        place[order] = np.arange(len(order))
    for step in (1, 2):
        before = place - step
        after = place + step - (number > 0)
        for name, there in (("before", before), ("after", after)):
            known = (there >= 0) & (there < len(times))
            there = np.clip(there, 0, len(times) - 1)
            x[f"target {step} {name}"] = np.where(known, values[there], np.nan)
            x[f"distance {step} {name}"] = np.where(known, np.abs(times[there] - asked) / 3600, np.nan)
""",
        lambda p: 0.95 if p.mixed_dates and _scalar_target(p) else 0,
    ),
    Step(
        "neighbours in space",
        "Look at the nearest training rows on the map",
        "What lies close together is alike: the mean target of the nearest training rows is a strong local guess.",
        """
# neighbours in space: the mean target of the nearest training rows, never of the row itself
places = [np.nan_to_num(frame[PLACE].to_numpy(dtype=float)) for frame in frames]
tree, values = KDTree(places[0]), np.asarray(fit_y, dtype=float)
for number, (x, place) in enumerate(zip(built, places)):
    distance, nearest = tree.query(place, k=21)
    if number == 0:
        own = nearest == np.arange(len(place))[:, None]
        own[~own.any(axis=1), -1] = True
        distance, nearest = (part[~own].reshape(len(place), -1) for part in (distance, nearest))
    for k in (3, 8, 20):
        x[f"target of {k} nearest"] = values[nearest[:, :k]].mean(axis=1)
        x[f"distance of {k} nearest"] = distance[:, :k].mean(axis=1)
""",
        lambda p: 0.95 if p.location and _scalar_target(p) and p.rows > 200 else 0,
        ("from sklearn.neighbors import KDTree",),
    ),
    Step(
        "turned map",
        "Turn the map",
        "Trees cut along the axes; coasts and valleys run across them, so turned coordinates cut better.",
        """
# turned map: coordinates along other axes, and the region
for angle in (15, 30, 45, 60, 75):
    turn = np.deg2rad(angle)
    for x, frame in zip(built, frames):
        north, east = (frame[column] for column in PLACE)
        x[f"north {angle}"] = north * np.cos(turn) - east * np.sin(turn)
        x[f"east {angle}"] = north * np.sin(turn) + east * np.cos(turn)
regions = KMeans(40, n_init=1, random_state=SEED).fit(np.nan_to_num(fit[PLACE].to_numpy(dtype=float)))
for x, frame in zip(built, frames):
    distances = regions.transform(np.nan_to_num(frame[PLACE].to_numpy(dtype=float)))
    x["region"] = pd.Categorical(distances.argmin(axis=1), categories=range(40))
    x[[f"distance to region {k}" for k in range(0, 40, 4)]] = distances[:, ::4]
""",
        lambda p: 0.7 if p.location and p.rows > 400 else 0,
        ("from sklearn.cluster import KMeans",),
    ),
    Step(
        "nearest rows",
        "Add the target of the most similar training rows",
        "A neighbourhood model sees smooth shapes that trees approximate by steps; its guess is a good column.",
        """
# nearest rows: the mean target of the training rows that are most alike in their numbers, never of the row itself
normal = QuantileTransformer(output_distribution="normal", random_state=SEED)
scaler = make_pipeline(SimpleImputer(strategy="median"), normal)
scaler.fit(fit[NUMBERS].astype(float))
points = [scaler.transform(frame[NUMBERS].astype(float)) for frame in frames]
tree, values = KDTree(points[0]), np.asarray(fit_y, dtype=float)
for number, (x, point) in enumerate(zip(built, points)):
    nearest = tree.query(point, k=16, return_distance=False)
    if number == 0:
        own = nearest == np.arange(len(point))[:, None]
        own[~own.any(axis=1), -1] = True
        nearest = nearest[~own].reshape(len(point), -1)
    x["target of 5 most alike"] = values[nearest[:, :5]].mean(axis=1)
    x["target of 15 most alike"] = values[nearest[:, :15]].mean(axis=1)
""",
        lambda p: 0.4 if 2 <= _numbers(p) <= 15 and _scalar_target(p) and p.rows > 100 else 0,
        (
            "from sklearn.impute import SimpleImputer",
            "from sklearn.neighbors import KDTree",
            "from sklearn.pipeline import make_pipeline",
            "from sklearn.preprocessing import QuantileTransformer",
        ),
    ),
    Step(
        "row statistics",
        "Summarise each row's numbers",
        "With many columns of one kind their mean, spread and extremes are features of their own.",
        """
# row statistics: mean, spread and extremes of the numbers of a row
for x in built:
    numbers = x[NUMBERS]
    x["row mean"], x["row spread"] = numbers.mean(axis=1), numbers.std(axis=1)
    x["row low"], x["row high"] = numbers.min(axis=1), numbers.max(axis=1)
""",
        lambda p: 0.5 if _numbers(p) >= 20 else 0,
    ),
    Step(
        "components",
        "Add the main components of the numbers",
        "Many correlated columns share a few directions, which single columns show only in part.",
        """
# components: the main directions of the scaled numbers
size = min(12, len(NUMBERS) - 1)
directions = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), PCA(size, random_state=SEED))
directions.fit(built[0][NUMBERS])
for x, parts in zip(built, [directions.transform(x[NUMBERS]) for x in built]):
    x[[f"component {k}" for k in range(size)]] = parts
""",
        lambda p: 0.5 if _numbers(p) >= 15 else 0.15 if _numbers(p) >= 5 else 0,
        (
            "from sklearn.decomposition import PCA",
            "from sklearn.impute import SimpleImputer",
            "from sklearn.pipeline import make_pipeline",
            "from sklearn.preprocessing import StandardScaler",
        ),
    ),
    Step(
        "logarithms",
        "Take logarithms of skewed numbers",
        "A long tail pushes scaled columns together; its logarithm spreads them evenly.",
        """
# logarithms: of numbers with a long tail
for column in NUMBERS:
    if built[0][column].skew() > 2 and (built[0][column] >= 0).all():
        for x in built:
            x[column] = np.log1p(x[column].clip(lower=0))
""",
        lambda p: 0.25 if any(c.skew > 2 and c.low >= 0 for c in p.of("number")) else 0,
    ),
    Step(
        "selection",
        "Keep the columns that help",
        "Columns without a signal are noise that every tree may stumble over; a quick forest tells them apart.",
        """
# selection: the columns that a quick forest finds useful
plain = built[0].select_dtypes(["number", "category"])
codes = plain.apply(lambda column: column.cat.codes if column.dtype == "category" else column)
forest = FOREST(60, min_samples_leaf=5, max_features=0.4, random_state=SEED, n_jobs=THREADS)
gain = pd.Series(forest.fit(codes.fillna(codes.median()), fit_y).feature_importances_, index=plain.columns)
weak = gain.index[gain < 0.15 / len(gain)]
built = [x.drop(columns=weak) for x in built]
""",
        lambda p: 0.6 if p.width > 60 else 0.2 if p.width > 12 else 0,
        ("from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor",),
    ),
)


def written_for(step: Step, profile: Profile) -> str:
    """The step's paragraph, with the names and models that this task calls for."""
    words = {
        "READER": "Ridge(alpha=2.0)" if profile.numeric else "LogisticRegression(C=5.0, max_iter=300)",
        "METHOD": "predict" if profile.numeric else "predict_proba",
        "FOREST": "ExtraTreesRegressor" if profile.numeric else "ExtraTreesClassifier",
        "CODES": name_list([c.name for c in profile.of("category") if c.many_levels]),
        "GAPPY": name_list([c.name for c in profile.columns if c.gaps > 0.02][:20]),
        "PLACE": name_list(list(profile.location or ())),
        "WHEN": quoted(profile.mixed_dates),
        "SORT": "continuous" if profile.numeric else "auto" if profile.mixed_classes else profile.kind,
    }
    return re.sub("|".join(rf"\b{word}\b" for word in words), lambda found: words[found[0]], step.paragraph)


def imports_for(step: Step, profile: Profile) -> list[str]:
    """The imports that the step's paragraph needs."""
    unused = (
        ("ExtraTreesClassifier, ", "LogisticRegression, ") if profile.numeric else (", ExtraTreesRegressor", ", Ridge")
    )
    lines = list(step.imports)
    for name in unused:
        lines = [line.replace(name, "") for line in lines]
    return lines


def constants(profile: Profile) -> list[str]:
    """The lines that name the columns by kind, for the top of the features section."""
    lines = []
    for constant, kinds in (("CATEGORIES", ("category",)), ("DATES", ("date",)), ("TEXTS", ("text", "list"))):
        names = [column.name for column in profile.columns if column.kind in kinds]
        if names:
            lines.append(f"{constant} = {name_list(names)}")
    numbers = profile.names("number", "messy number")
    if len(numbers) <= 60:
        return [f"NUMBERS = {name_list(numbers)}", *lines]
    others = [column for column in profile.train.columns if column not in numbers]
    lines.append(f"NUMBERS = [column for column in train.columns if column not in {name_list(others)}]")
    return lines
