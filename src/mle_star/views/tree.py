"""The solution tree: every attempt, and the one that it grew out of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mle_star.views import text
from mle_star.views.charts import colour, figure, hint, label, link_to
from mle_star.views.facts import Attempt
from mle_star.views.lineage import handed_over, lineage_of
from mle_star.views.story import RunStory
from mle_star.views.tables import link_of

LANE = 46
HANGING = 20
MOST_MARKS = 160
"""With more attempts than these, those that were not accepted are only counted."""


@dataclass(frozen=True)
class TreeNode:
    """An attempt, the nodes that it grew out of, and the lane that it is drawn in: 0, or 1 on for a path."""

    attempt: Attempt
    parents: tuple[int, ...]
    lane: int


def nodes_of(story: RunStory) -> list[TreeNode]:
    """Every attempt in the order of time, each with the places of its parents in this list."""
    place = {one.step: index for index, one in enumerate(story.attempts)}
    nodes = {node.step: node for node in story.nodes}
    found = []
    for one in story.attempts:
        origins = [story.ledger.node_of(digest) for digest in nodes[one.step].parents]
        steps = dict.fromkeys(node.step for node in origins if node is not None and node.step != one.step)
        parents = tuple(sorted(place[step] for step in steps if step in place))
        found.append(TreeNode(one, parents, 0 if one.path is None else 1 + one.path))
    return found


def chart(story: RunStory) -> Markup | None:
    """The tree from left to right, a lane for each path; the line to the result is drawn strongly."""
    nodes = nodes_of(story)
    if not nodes:
        return None
    result = handed_over(story, lineage_of(story))
    line = _ancestors(nodes, result)
    shown = [i for i, node in enumerate(nodes) if len(nodes) <= MOST_MARKS or node.attempt.accepted or i in line]
    column = {index: number for number, index in enumerate(shown)}
    lanes = sorted({nodes[index].lane for index in shown})
    top = {lane: 26 + number * (LANE + HANGING) for number, lane in enumerate(lanes)}

    def x(index: int) -> float:
        return (column[index] + 0.5) / len(shown) * 100

    def y(index: int) -> float:
        node = nodes[index]
        return top[node.lane] + (0 if node.attempt.accepted else HANGING)

    parts = [_lane_name(lane, top[lane]) for lane in lanes]
    for index in shown:
        for parent in nodes[index].parents:
            if parent in column:
                kind = "kept" if nodes[index].attempt.accepted else "left"
                kind = "won" if index in line and parent in line else kind
                parts.append(_edge(kind, x(parent), y(parent), x(index), y(index), colour(nodes[index].attempt)))
    for index in shown:
        parts.append(_mark(index, nodes[index].attempt, x(index), y(index), index in line, first=index == shown[0]))
    hidden = len(nodes) - len(shown)
    words = f"{text.plural(len(nodes), 'attempt')}; {len(line)} of them on the line to the result."
    words += f" {hidden} that were not accepted are left out." if hidden else ""
    return figure("tree", "Solution tree", words, parts, max(top.values()) + HANGING + 14, kind="tree", role="group")


def _ancestors(nodes: Sequence[TreeNode], result: str) -> set[int]:
    found: set[int] = set()
    waiting = [index for index, node in enumerate(nodes) if result and node.attempt.step == result]
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting += nodes[index].parents
    return found


def _lane_name(lane: int, top: int) -> Markup:
    name = "candidates, merges, ensembles" if lane == 0 else f"path {lane - 1}"
    return label(name, f'x="0" y="{top - 12}"', "band-name")


def _edge(kind: str, x1: float, y1: float, x2: float, y2: float, tint: str) -> Markup:
    shape = '<line class="edge {} {}" x1="{:.3f}%" y1="{:.1f}" x2="{:.3f}%" y2="{:.1f}"/>'
    return Markup(shape).format(kind, tint, x1, y1, x2, y2)


def _mark(index: int, one: Attempt, x: float, y: float, won: bool, *, first: bool) -> Markup:
    about = link_to(link_of(one), hint(index, one), first=first)
    if one.score is None:
        shape = '<text class="mark cross {}" x="{:.3f}%" y="{:.1f}" dy="5" {}>×<title>{}</title></text>'
        return Markup(shape).format(colour(one), x, y, about, hint(index, one))
    kind = f"{'yes' if one.accepted else 'no'}{' won' if won else ''}"
    shape = '<circle class="mark {} {}" cx="{:.3f}%" cy="{:.1f}" r="{}" {}><title>{}</title></circle>'
    return Markup(shape).format(kind, colour(one), x, y, 6 if won else 4, about, hint(index, one))
