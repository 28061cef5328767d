"""Works one script into another: the base stays, the reference's models are trained beside the base's."""

from __future__ import annotations

import re

from mle_star.engineer.rules.sections import Script


def merge(base: Script, reference: Script) -> Script:
    """The base with the reference's models; both see the base's rows, split and features, and their mean counts."""
    merged = base.changed(imports=(*base.imports, *reference.imports))
    for name in reference.names("model: "):
        if name in base.sections:
            continue
        merged = merged.with_section(name, reference.sections[name], before="combine")
    models = [name.removeprefix("model: ") for name in merged.names("model: ")]
    together = ", ".join(models[:-1]) + f" and {models[-1]}" if len(models) > 1 else models[0]
    doc = re.sub(r" with .*?, judged by", f" with {together}, judged by", merged.doc, count=1)
    return merged.changed(doc=doc)
