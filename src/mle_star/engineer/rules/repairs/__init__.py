"""The library of mends: one entry per kind of error that scripts run into, with the change that gets them going again.

To add one, append an entry to `MENDS`: the kinds of exception, a pattern for the message, and a function that gives the
changed script, or None when it cannot help. Earlier entries are tried first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mle_star.engineer.rules.broken import Broken
from mle_star.engineer.rules.prepared import with_prepared_frames
from mle_star.engineer.rules.repairs.data import by_position, mend_column, mend_encoding, mend_path, mend_separator
from mle_star.engineer.rules.repairs.edits import Change, everywhere, first_of, sub
from mle_star.engineer.rules.repairs.names import mend_module, mend_name
from mle_star.engineer.rules.repairs.settings import mend_attribute, other_value, without_keyword
from mle_star.engineer.rules.repairs.size import smaller, unused
from mle_star.engineer.rules.repairs.syntax import mend_syntax
from mle_star.engineer.rules.repairs.values import (
    as_table,
    encode_target,
    flat,
    labels_from_numbers,
    numbers_in_line,
    same_length,
    target_without_gaps,
    text_in_line,
    whole_target,
)

COLUMN = r"(\w+\[['\"][^'\"]+['\"]\])"
"""A column of a table, as in `df["age"]`."""


@dataclass(frozen=True)
class Mend:
    """A change for errors of these kinds whose message matches."""

    kinds: str
    pattern: str
    change: Change

    def fits(self, broken: Broken) -> bool:
        """Is this an error of that kind?"""
        return bool(re.fullmatch(self.kinds, broken.kind or "?")) and bool(
            re.search(self.pattern, broken.message, re.IGNORECASE | re.DOTALL)
        )


CODE = (
    Mend("SyntaxError|IndentationError|TabError", "", mend_syntax),
    Mend("ModuleNotFoundError|ImportError", "", mend_module),
    Mend("NameError|UnboundLocalError", "", mend_name),
    Mend("ZeroDivisionError", "", sub(r"/\s*(\w+(?:\([^()]*\))?)", r"/ max(\1, 1)")),
)
FILES = (
    Mend("FileNotFoundError|OSError|NotADirectoryError|IsADirectoryError", "", mend_path),
    Mend("UnicodeDecodeError|UnicodeEncodeError|UnicodeError", "", mend_encoding),
    Mend("ParserError|EmptyDataError", "", mend_separator),
    Mend("ValueError", "Trailing data|Expected object or value", sub(r"(read_json\([^()]*)\)", r"\1, lines=True)")),
)
SIZE = (
    Mend("MemoryError|_?ArrayMemoryError|TimeoutError|Killed|RuntimeError", "", first_of(unused, smaller)),
    Mend("ValueError", "Unable to allocate|array is too big|Maximum allowed", first_of(unused, smaller)),
)
COLUMNS = (
    Mend(
        "KeyError|ValueError|IndexError",
        r"not in index|not found in axis|None of \[|^['\"]|are in the \[|Usecols|Missing column|columns are missing",
        mend_column,
    ),
    Mend("KeyError", r"\d", by_position),
    Mend("IndexError", "positional indexers are out-of-bounds", sub(r"\.iloc\[", ".loc[")),
)
SETTINGS = (
    Mend(
        "TypeError|ValueError|CatBoostError|XGBoostError",
        "keyword argument|Unknown parameter|invalid parameter",
        without_keyword,
    ),
    Mend("InvalidParameterError|ValueError", "parameter of .* must be", other_value),
    Mend(
        "ValueError",
        "Solver .* supports only",
        everywhere(r"(penalty=['\"](l1|elasticnet)['\"])", r'\1, solver="saga"'),
    ),
    Mend("AttributeError", "", mend_attribute),
)
CATEGORIES = (
    Mend(
        "ValueError",
        "unknown categor",
        first_of(
            everywhere(r"OneHotEncoder\(\)", 'OneHotEncoder(handle_unknown="ignore")'),
            everywhere(r"(OneHotEncoder\([^()]*)handle_unknown=['\"]error['\"]", r'\1handle_unknown="ignore"'),
            everywhere(r"OneHotEncoder\((?![^()]*handle_unknown)", r'OneHotEncoder(handle_unknown="ignore", '),
            everywhere(r"OrdinalEncoder\(\)", 'OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)'),
            everywhere(
                r"OrdinalEncoder\((?![^()]*handle_unknown)",
                'OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, ',
            ),
        ),
    ),
    Mend(
        "ValueError|KeyError|TypeError",
        "previously unseen label",
        sub(
            r"(\w+)\.transform\((\w+(?:\[[^\]]+\])?)(\.astype\(str\))?\)",
            r"\2.map({level: number for number, level in enumerate(\1.classes_)}).fillna(-1).astype(int)",
        ),
    ),
)
TARGETS = (
    Mend(
        "ValueError",
        "pos_label|Invalid classes inferred|Unknown label type.*(object|str)|Label should be|y_true takes value in",
        encode_target,
    ),
    Mend("ValueError", "Unknown label type", whole_target),
    Mend(
        "CatBoostError|XGBoostError|LightGBMError|ValueError",
        "y contains (NaN|infinity)|Label contains NaN|target.*(NaN|None)",
        target_without_gaps,
    ),
    Mend("ValueError", "The least populated class", everywhere(r",?\s*stratify=[\w.]+(\[[^\]]*\])?", "")),
    Mend(
        "ValueError",
        r"n_splits=\d+ cannot be greater",
        everywhere(r"StratifiedKFold\((n_splits=)?\d+", r"StratifiedKFold(\g<1>2"),
    ),
    Mend("ValueError", "mix of .*(continuous|binary)|continuous is not supported", labels_from_numbers),
    Mend(
        "ValueError",
        "average='binary'|Target is multiclass",
        everywhere(
            r"(f1_score|precision_score|recall_score|fbeta_score)\(([^()]*?)(,\s*average=['\"]binary['\"])?\)",
            r'\1(\2, average="macro")',
        ),
    ),
    Mend(
        "ValueError",
        "multi_class must be",
        everywhere(r"roc_auc_score\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r'roc_auc_score(\1, multi_class="ovr")'),
    ),
)
SHAPES = (
    Mend("ValueError", "should be a 1d array|bad input shape|must (each )?be 1-dimensional", flat),
    Mend(
        "ValueError",
        "inconsistent numbers of samples|Found input variables|Length of .* does not match|number of rows|"
        "Number of labels|Length of label|size of .* should be same|operands could not be broadcast",
        same_length,
    ),
    Mend("ValueError", "Expected 2D|Expected a 2-dimensional", as_table),
    Mend(
        "IndexError",
        "too many indices",
        first_of(sub(r"\.predict\(([^()]*)\)\[:, 1\]", r".predict_proba(\1)[:, 1]"), sub(r"(\w+)\[:, 1\]", r"\1")),
    ),
    Mend("IndexError", "index 1 is out of bounds for axis 1", sub(r"\[:, 1\]", "[:, -1]")),
    Mend(
        "ValueError",
        "duplicate labels|duplicate axis|cannot reindex",
        first_of(
            sub(
                r"pd\.concat\(\[(\w+), (\w+)\], axis=1\)",
                r"pd.concat([\1.reset_index(drop=True), \2.reset_index(drop=True)], axis=1)",
            ),
            sub(r"(\w+)\.reindex\(", r"\1.loc[~\1.index.duplicated()].reindex("),
            sub(r"\.map\((\w+)\)", r".map(\1[~\1.index.duplicated()])"),
        ),
    ),
)
TYPES = (
    Mend(
        "AttributeError|TypeError|ValueError",
        r"\.dt accessor",
        everywhere(rf"{COLUMN}\.dt\b", r'pd.to_datetime(\1, errors="coerce").dt'),
    ),
    Mend("AttributeError", r"\.str accessor", everywhere(rf"{COLUMN}\.str\b", r"\1.astype(str).str")),
    Mend(
        "ValueError|DateParseError|OutOfBoundsDatetime|TypeError|ParserError",
        "(doesn't|does not) match format|unconverted data|Unknown datetime string|day is out of range|"
        "Out of bounds|time data|month must be",
        first_of(
            sub(r"(to_datetime\([^()]*?),\s*format=['\"][^'\"]*['\"]", r'\1, format="mixed", errors="coerce"'),
            sub(r"(to_datetime\((?![^()]*errors)[^()]*)\)", r'\1, errors="coerce")'),
        ),
    ),
    Mend(
        "ValueError|TypeError|IntCastingNaNError",
        "non-finite values|Cannot convert.*(NaN|NA|inf)|cannot convert (float )?NaN",
        sub(r"\.astype\((['\"]?int\d*['\"]?)\)", r".fillna(0).astype(\1)"),
    ),
    Mend(
        "ValueError|TypeError",
        "could not convert string|invalid literal|Unable to parse string",
        first_of(
            sub(
                r"(\w+\[['\"]?[\w ]+['\"]?\])\.astype\((['\"]?(?:np\.)?(?:float|int)\d*['\"]?)\)",
                r'pd.to_numeric(\1, errors="coerce")',
            ),
            sub(r"pd\.to_numeric\(([^(),]+)\)", r'pd.to_numeric(\1, errors="coerce")'),
            sub(r"\.(corr|mean|median|std|sum|skew)\(\)", r".\1(numeric_only=True)"),
        ),
    ),
    Mend(
        "TypeError|ValueError",
        "agg function failed|Could not convert .* to numeric|does not support|reduction operation|cannot perform",
        first_of(sub(r"\.(corr|mean|median|std|sum|skew)\(\)", r".\1(numeric_only=True)"), numbers_in_line),
    ),
    Mend("TypeError", "unsupported operand|not supported between|can't multiply|ufunc|bad operand", numbers_in_line),
    Mend("TypeError", "can only concatenate str|must be str|sequence item", text_in_line),
)
INDIGESTIBLE = (
    Mend("ValueError|TypeError|CatBoostError|XGBoostError|LightGBMError|KeyError", "", with_prepared_frames),
)
"""What a model cannot take in, for whatever reason."""

MENDS: tuple[Mend, ...] = (
    *CODE, *FILES, *SIZE, *COLUMNS, *SETTINGS, *CATEGORIES, *TARGETS, *SHAPES, *TYPES, *INDIGESTIBLE,
)  # fmt: skip
