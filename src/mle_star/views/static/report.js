"use strict";
// What the report does when it is touched: draw the difference of an attempt when it is opened, jump, copy, fold.
// Texts of models and scripts reach the page as textContent only.
(() => {
  const CONTEXT = 3;
  const element = (name, kind, words) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (words !== undefined) made.textContent = words;
    return made;
  };

  // --- differences ---

  const shared = (a, b) => {
    let head = 0;
    while (head < a.length && head < b.length && a[head] === b[head]) head++;
    let tail = 0;
    while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
    return [head, tail];
  };
  const cell = (kind, line, mate) => {
    const made = element("td", kind);
    if (mate === undefined || line === mate) { made.textContent = line; return made; }
    const [head, tail] = shared(line, mate);
    made.append(line.slice(0, head), element("b", "", line.slice(head, line.length - tail)), line.slice(line.length - tail));
    return made;
  };
  const rowsOf = (ops, old, now) => {
    const rows = [];
    for (const [kind, a, b, c, d] of ops) {
      const count = Math.max(b - a, d - c);
      for (let i = 0; i < count; i++) {
        const left = a + i < b ? a + i : null;
        const right = c + i < d ? c + i : null;
        rows.push({ same: kind === "equal", left, right, old: left === null ? "" : old[left], now: right === null ? "" : now[right] });
      }
    }
    return rows;
  };
  // Far from any change, lines are only counted.
  const folded = (rows) => {
    const near = rows.map(() => false);
    rows.forEach((row, i) => {
      if (!row.same) for (let j = Math.max(0, i - CONTEXT); j <= Math.min(rows.length - 1, i + CONTEXT); j++) near[j] = true;
    });
    const out = [];
    let hidden = 0;
    rows.forEach((row, i) => {
      if (near[i]) { if (hidden) out.push(hidden); hidden = 0; out.push(row); } else hidden++;
    });
    if (hidden) out.push(hidden);
    return out;
  };
  const gap = (count, span) => {
    const row = element("tr", "gap");
    const made = element("td", "", `${count} unchanged ${count === 1 ? "line" : "lines"}`);
    made.colSpan = span;
    row.append(made);
    return row;
  };
  const number = (n) => element("td", "n", n === null ? "" : String(n + 1));
  const sideBySide = (row) => {
    const made = element("tr");
    const paired = !row.same && row.left !== null && row.right !== null;
    made.append(number(row.left), cell(row.same ? "" : row.left === null ? "void" : "went", row.old, paired ? row.now : undefined));
    made.append(number(row.right), cell(row.same ? "" : row.right === null ? "void" : "came", row.now, paired ? row.old : undefined));
    return [made];
  };
  const stacked = (row) => {
    const line = (kind, n, words) => { const made = element("tr"); made.append(number(n), cell(kind, words)); return made; };
    if (row.same) return [line("", row.right, row.now)];
    return [row.left !== null && line("went", row.left, row.old), row.right !== null && line("came", row.right, row.now)].filter(Boolean);
  };
  const diffTable = (before, after, ops) => {
    const narrow = matchMedia("(max-width: 720px)").matches;
    const table = element("table", "diff");
    table.setAttribute("aria-label", "The block before and after");
    const body = element("tbody");
    for (const row of folded(rowsOf(ops, before.split("\n"), after.split("\n")))) {
      if (typeof row === "number") body.append(gap(row, narrow ? 2 : 4));
      else body.append(...(narrow ? stacked(row) : sideBySide(row)));
    }
    table.append(body);
    return table;
  };
  const draw = (details) => {
    const body = details.querySelector(".body");
    if (!body || body.childNodes.length) return;
    const texts = JSON.parse(document.getElementById(`texts-${details.dataset.step}`).textContent);
    const one = texts.tries[details.dataset.k];
    const plan = element("p", "text", one.plan);
    plan.dir = "auto";
    body.append(element("h4", "", "Plan"), plan, element("h4", "", "The block, before and after"));
    if (one.after) body.append(diffTable(texts.before, one.after, one.ops));
    else body.append(element("p", "empty", "No new block came back."));
  };
  document.addEventListener("toggle", (event) => {
    if (event.target.matches("details.try") && event.target.open) draw(event.target);
  }, true);

  // --- jumping ---

  const go = (id) => {
    const target = document.getElementById(id);
    if (!target) return;
    for (let up = target; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    target.scrollIntoView({ block: "center" });
    target.classList.remove("flash");
    void target.getBoundingClientRect();
    target.classList.add("flash");
  };
  const goToHash = () => { if (location.hash.length > 1 && !document.querySelector(`section${CSS.escape ? "#" + CSS.escape(location.hash.slice(1)) : location.hash}`)) go(location.hash.slice(1)); };
  addEventListener("hashchange", goToHash);

  // --- marks by keyboard: one can be tabbed to, arrows lead on, Enter opens ---

  document.addEventListener("keydown", (event) => {
    const mark = event.target.closest(".mark[data-go]");
    const ahead = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!mark || (event.key !== "Enter" && !ahead)) return;
    event.preventDefault();
    if (event.key === "Enter") { go(mark.dataset.go); return; }
    const marks = [...mark.closest("svg").querySelectorAll(".mark[data-go]")];
    const next = marks[marks.indexOf(mark) + ahead];
    if (!next) return;
    mark.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  // --- sorting ---

  const sortBy = (head) => {
    const column = [...head.parentElement.children].indexOf(head);
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const one of head.parentElement.children) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const key = (row) => row.children[column].dataset.value ?? row.children[column].textContent.trim();
    const compare = (a, b) => {
      const [one, other] = [key(a), key(b)];
      if (one === "" || other === "") return (one === "") - (other === ""); // what has no value stays below
      const order = Number.isNaN(+one) || Number.isNaN(+other) ? one.localeCompare(other, "en", { numeric: true }) : one - other;
      return up ? order : -order;
    };
    body.append(...[...body.rows].sort(compare));
  };

  // --- times of day, as the reader's clock shows them ---

  const localise = (root) => {
    for (const one of root.querySelectorAll("time[datetime]")) {
      const at = new Date(one.dateTime);
      one.textContent = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
      one.title = at.toLocaleString();
    }
  };
  document.addEventListener("renewed", (event) => localise(event.target));

  // --- clicks ---

  const copy = async (button, words) => {
    let done = false;
    try {
      await navigator.clipboard.writeText(words);
      done = true;
    } catch {
      // Pages opened from disk may have no clipboard: select and copy as in the old days.
      const area = element("textarea");
      area.value = words;
      area.style.cssText = "position:fixed;opacity:0";
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    const before = button.textContent;
    button.textContent = done ? "Copied" : "Press Ctrl-C";
    setTimeout(() => { button.textContent = before; }, 1500);
  };
  document.addEventListener("click", (event) => {
    const mark = event.target.closest("[data-go]");
    if (mark) go(mark.dataset.go);
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.sort !== undefined) sortBy(button.closest("th"));
    if (button.dataset.copy !== undefined) copy(button, button.dataset.copy);
    if (button.dataset.copyFrom) copy(button, document.getElementById(button.dataset.copyFrom).textContent);
    if (button.dataset.fold) for (const step of document.querySelectorAll("details.step")) step.open = button.dataset.fold === "open";
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "only-accepted") document.body.classList.toggle("only-accepted", event.target.checked);
  });
  localise(document);
  goToHash();
})();
