"""Every view of made-up runs, word for word: `make snapshots` writes them anew; look at the difference."""

import difflib
import io
import re
import time
import urllib.request
from datetime import timedelta
from pathlib import Path

from rich.console import Console, ConsoleDimensions

from mle_star.cli.app import main
from mle_star.models import MetricDirection, RetrievedModel, Yardstick
from mle_star.models.texts import figure, printable
from mle_star.run import events as ev
from mle_star.views import RunStory, charts, text, write_report
from mle_star.views.display import screen, summary
from mle_star.views.headlines import headline
from mle_star.views.live import IndexServer
from mle_star.views.page import page_title
from mle_star.views.verdict import ScaleMark
from tests.conftest import Captured, Patch, as_kept, write_texts
from tests.views.conftest import served
from tests.views.journals import EXPECTED, HAPPENED, TRIED, Invented, campaign, scored, write_journal

SMALLER, TRIES = MetricDirection.minimize, (ev.MergeTried, ev.RefinementTried)
STUDY = {"path": 0, "t": 1, "solution_score": 0.5, "step": "phase2/path-0/t-1"}
UNSURE = {"name": "a/b", "compared": 0.3, "low": None, "high": None, "members": 2}
MORE: list[ev.AnyEvent] = [
    ev.RunResumed(spent_cost_usd=0.05, spent_seconds=75),
    ev.RunFinished(state="completed", score=0.5, message="stopped by Ctrl-C"),
    ev.PhaseStarted(step="phase2/path-1", phase="phase2", path=1),
    ev.PhaseFinished(step="phase2/path-1", phase="phase2", path=1, outcome="cancelled", score=0.123456, detail="late"),
    ev.PhaseFinished(step="phase2", phase="phase2", outcome="skipped", detail="no time"),
    ev.PhaseFinished(step="phase2", phase="phase2", outcome="completed", detail="not said"),
    ev.Forecast(calls=1, scripts=1, cost_usd=None, seconds=60, basis="so far"),
    ev.BudgetWarning(limit="time", used=80, allowed=100),
    ev.HoldOutPrepared(rule="classes", views=3, search_rows=1),
    ev.ShortlistScored(chosen="a/b", shortlist=[{"score": 0.25, "rows": 7, "estimated": True, **UNSURE}]),
    ev.ModelsRetrieved(models=[RetrievedModel(model_name="one", example_code="x")]),
    ev.Decided(step="phase1/merge-2", name="in-time", value=False),
    ev.Decided(step="phase1/candidate-2", name="in-time", value=False),
    ev.MergeTried(step="phase1/merge-1", index=1, base_score=0.5, reference_model="b", score=0.25, accepted=False),
    ev.DataUsageChecked(step="phase1/data-use", changed=True, score=0.75),
    ev.EnsembleTried(step="phase3/r-1", r=1, plan="mean", score=None),
    ev.AblationFinished(failed=True, **STUDY),
    ev.AblationFinished(failed=True, skipped=True, **STUDY),
    ev.AblationFinished(scores={"Baseline": 0.5}, summary="all the same", **STUDY),
    ev.AblationFinished(scores={"baseline": 0.5, "no bins": 0.4}, **STUDY, summary='`bins`.\n{"base": 0.512345678}'),
    ev.BlockChosen(step="phase2/path-0/t-1", path=0, t=1, block="a = 1", plan="p"),
    ev.BlockChosen(step="phase2/path-0/t-1", path=0, t=1, block=""),
    ev.RefinementTried(step="phase2/path-0/t-1/k-2", score=0.25, accepted=False, **TRIED),
    ev.DebugAttempted(step="phase1/candidate-0/debugger", error="e", accepted=False, reason="no code"),
    ev.LeakageChecked(found=2, fixed=1, blocks=["scaler.fit(all)", "b"], step="phase1/leakage/leakage-detection"),
]  # fmt: skip


def shown(what: object, width: int = 110) -> str:
    """What a terminal would be sent, its codes in a form to be read."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system="truecolor", _environ={}).print(what)
    return re.sub(r"\x1b\[(?:0m|([0-9;]+)m)", lambda code: f"‹{code[1]}›" if code[1] else "‹›", out.getvalue())


def bare(html: str, *hidden: str) -> str:
    """A page without its styles and scripts, and without what differs from place to place."""
    html = re.sub(r"(?s)<(style|script)>.*?</\1>|'sha256-[^']*'|<tr><td><code>\w+</code></td>[^\n]*\n", "", html)
    return re.sub("|".join(map(re.escape, hidden)), "…", html) if hidden else html


def other_lines(page: str, first: str) -> str:
    """A page by the lines in which it differs from the first one, with their places: together they are the page."""
    return "\n".join(difflib.unified_diff(first.splitlines(), page.splitlines(), n=0, lineterm=""))


def ends() -> dict[str, list[ev.AnyEvent]]:
    """Runs that came to different ends."""
    small, one_path = Invented(seed=11, M=3, T=1, K=2, R=2), Invented(seed=4, T=2, K=2, R=1, L=1, direction=SMALLER)
    single = Yardstick(name="ExtraTrees", measure=EXPECTED)
    sound, broken, kept = ({"finalization": {"rows": 9, name: "x" * 99}} for name in ("sample", "problems", "fallback"))
    early = one_path.ended("path 0", expected=EXPECTED, single_model=single, stopped_by="time", lineage=sound)
    used = one_path.ended("path 0", used_time=True)
    *failed, last = Invented(seed=2, T=1, K=1, outcome="failed").events()
    *chosen, end = small.ended("blend", lineage={"promoted": "phase1/candidate-0/script"}, has_test=False)
    end, vain, long = end.model_copy(update={"submission_path": ""}), {"accepted": False}, {"model_name": "long " * 19}
    plain = small.ended("initial solution", lineage=kept, warnings=["odd"])
    return {
        "scored": scored(small),
        "early": [*early[:-1], early[-1].model_copy(update={"message": "the time is up"})],
        "failed": [*failed, *(one.model_copy(update={"at": last.at}) for one in (*HAPPENED, *MORE[2:])), last],
        "promoted": [*(one.model_copy(update=vain if isinstance(one, TRIES) else {}) for one in chosen), end],
        "broken": small.ended("phase1/candidate-0/script", lineage=broken),
        "kept": [one.model_copy(update=long if isinstance(one, ev.CandidateEvaluated) else {}) for one in plain],
        "used": [*early[:-1], used[-1].model_copy(update={"message": "used its time"})],
    }


def test_every_view_says_what_it_said(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    events, shelf = Invented(seed=11, T=1).events(), tmp_path / "runs"
    lines = (headline(one) for one in (*events, *HAPPENED, *MORE, *(run[-1] for run in ends().values())))
    as_kept("views/headlines.txt", "\n".join("{1} {4} {2}: {3}".format(*one) for one in lines if one is not None))
    terminal, called = list[str](), list[str]()
    for name, run in ends().items():
        write_journal(shelf / name, run)
        story = RunStory.of(shelf / name)
        terminal += [f"--- {name}: {page_title(story)}\n", shown(summary(story, Path("runs/one")), 160)]
    whole = bare(write_report(shelf / "scored").read_text(encoding="utf-8"), str(tmp_path))
    as_kept("views/scored.html", whole)
    planning = next(at for at, event in enumerate(events) if event.step == "phase2/path-1/t-0/k-2/planner")
    for at in (0, 1, 40, planning + 1, len(events)):
        story, size = RunStory.from_events(events[:at]), ConsoleDimensions(110, 30)
        now = story.spent.last.get("", events[0].at) + timedelta(seconds=75)
        terminal += [f"--- after {at} events\n", shown(screen(story, size, now))]
    as_kept("views/terminal.txt", "".join(terminal))
    write_journal(shelf / "broken-off", events[:120])
    write_journal(shelf / "new", events[:1])
    rows = "size,price\n" + "".join(f"{i % 17},{i % 17 * 2}\n" for i in range(300))
    write_texts(tmp_path, {"cars/train.csv": rows, "runs/a.csv": rows})
    write_texts(shelf, {"damaged/journal.jsonl": '{"kind": "nonsense"}\n{"kind": "more"}\n', "no-run/note.txt": ""})
    with (shelf / "broken-off" / "journal.jsonl").open("a") as journal:
        journal.write('{"torn')
    commands = """
        runs; runs --json; show scored; show scored phase2/path-0/t-0/k-1; show failed phase1/merge-1; show sco
        show no; show scored phase2; diff early phase1/candidate-3 final; diff scored final best; show e
        diff scored phase9 final; diff no-run a b; report damaged; report no-run; show b; show k; leaderboard
        leaderboard runs/early --json; leaderboard early scored --top 2; leaderboard early; leaderboard scored --top 3
        leaderboard scored failed; compare scored failed; compare early used; compare kept broken-off; runs no-run
        run cars --set max_concurrent_scripts=1 --dry-run --output x --model offline --max-budget 3 --time-limit 90m
        run cars --set max_concurrent_scripts=1 --dry-run -o x -L 1
        run cars --set max_concurrent_scripts=1 -o x --dry-run --model haiku --time-limit 1m; run
        run --from early cars; demo none; predict early cars; predict early new.csv -o gone/a.csv
        predict early new.csv -o a.txt; predict early new.csv -o runs/a.csv; score early
        score scored --answers cars/train.csv; promote scored phase9; export scored cars; sweep; leaderboard new
    """.replace("\n", ";").split(";")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.chdir(tmp_path)
    for command in filter(str.strip, commands):
        code = main(command.split())
        out, err = capsys.readouterr()
        assert "Traceback (most recent call last)" not in err and (not code or err.count("\n") == 1)
        called.append(f"$ {command.strip()}: {code}\n{err}{out}")
    shell = re.sub(r"(?<=damaged \()[^\n]*|(?<=perhaps )\d+", "…", "".join(called))
    as_kept("views/commands.txt", shell.replace(str(tmp_path), "…"))
    report = write_report(shelf / "broken-off").read_text(encoding="utf-8")
    as_kept("views/broken-off.html", bare(report, str(tmp_path)))
    as_kept("views/campaign.html", bare(campaign(shelf).read_text(encoding="utf-8")))
    with served(IndexServer(shelf)) as server:
        pages = {name: f"runs/{name}/?" for name in ("early", "failed", "promoted", "broken")}
        for name, path in {**pages, "list": "?", "compare": "compare?a=scored&b=failed&"}.items():
            with urllib.request.urlopen(server.address.replace("?", path), timeout=240) as reply:
                page = bare(reply.read().decode("utf-8"), server.token, str(tmp_path))
                as_kept(f"views/{name}.html", other_lines(page, whole) if name in ("promoted", "broken") else page)


SPANS = (0, 1), (0, 0.003), (-3, 7), (0.7512, 0.7533), (0, 1.9), (0, 59), (0, 61), (0, 4000), (0, 90_000), (0, 4e6)
SIZES = 0, 0.04, 0.1, 0.5, 1.25, 9.96, 59.6, 61, 600, 3599.7, 3600, 4320, 90_061, 99_999.5, 1_250_000, 1e13, -0.25, -3e4
MARKS = [ScaleMark("one", 0.5, "own"), ScaleMark("two", 0.62, "best", 0.5, 0.7), ScaleMark("a <b>", -1, "dim", -2, 0.1)]
SHOWN = ("first", 0.5, "half", "good", "why"), ("a <b> " * 30, -0.25, "less"), ("c", 0.0, "0")
BARS = [charts.Bar(*one) for one in SHOWN]
WRITTEN = (
    "\x1b[31mred\x1b[0m and \x1b]0;title\x07more", "a\r\nb\rc\x00d\x7fe", "\u202eabc\ud800", "x" * 30,
    "0.12345678901 1.5", "One. Two! Three? Four", '{"a": 1}\nwords\n  \n', "é  ü", "",
)  # fmt: skip


def test_numbers_texts_and_axes_are_written_as_they_were() -> None:
    writers = (text.score, text.signed, text.money, text.clock, text.duration, figure)
    lines = [f"{value}: {' | '.join(write(value) for write in writers)} | {text.tokens(int(value))}" for value in SIZES]
    for low, high in SPANS:
        found = charts.nice_ticks(low, high), charts.nice_ticks(low, high, 3), charts.time_ticks(high)
        ends = [round(charts.scale(low, high, 50)(low + share * (high - low)), 6) for share in (-1, 0, 0.3, 2)]
        lines.append(f"{low} to {high}: {' | '.join(map(str, map(text.ticks, found)))} | {ends}")
    for values in ([1.0], [1, 2, 3], [1, 2, 3, 4, 1e6], [-1e6, 2, 3, 4, 5, 6], [5.0] * 6, [0.0, 0.0]):
        lines.append(f"{values}: {charts.score_range(values)} {charts.with_air(min(values), max(values), 0.5)}")
    for one in WRITTEN:
        shown = text.clean(one, max_line=12, max_text=20), text.one_line(one, 9), text.sentences(one, 12)
        lines.append(f"{shown} {text.prose(one)!r} {text.last_line(one, 'none')!r} {printable(one)!r}")
    lines += [charts.bars("k", "t", some, "unit", baseline=base, write=write) for some in (BARS, BARS[:1], BARS[1:])
              for base in (None, 0.25) for write in (None, text.duration)]  # fmt: skip
    lines += [charts.strip(MARKS[:count], "unit") for count in (1, 3)]
    for count, direction in ((1, SMALLER), (60, SMALLER), (60, MetricDirection.maximize), (200, SMALLER)):
        run = Invented(seed=3, M=2, T=max(1, count // 20), K=max(1, count // 20), L=2, direction=direction)
        lines.append(str(charts.trajectory(RunStory.from_events(run.events()[: 12 * count]))))
    as_kept("views/numbers.txt", "\n".join(lines).replace("><", ">\n<"))
