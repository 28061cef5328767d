"use strict";
// The list of runs: searching, choosing two, and rows that are renewed while the page is open.
(() => {
  const token = document.body.dataset.token;
  const rows = document.getElementById("rows");
  const dates = (root) => {
    for (const one of root.querySelectorAll("time[data-date]")) one.textContent = new Date(one.dateTime).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  };
  if (!rows) return;
  const search = document.getElementById("search");
  const compare = document.getElementById("compare");
  const chosen = new Set();

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const one of rows.querySelectorAll(".run")) {
      one.hidden = !words.every((word) => one.dataset.words.includes(word));
      shown += !one.hidden;
    }
    const all = rows.querySelectorAll(".run").length;
    document.getElementById("found").textContent = words.length ? `${shown} of ${all} runs` : `${all} ${all === 1 ? "run" : "runs"}`;
  };
  const marks = () => {
    for (const box of rows.querySelectorAll(".pick input")) {
      box.checked = chosen.has(box.value);
      box.disabled = chosen.size === 2 && !box.checked;
    }
    compare.disabled = chosen.size !== 2;
  };
  rows.addEventListener("change", (event) => {
    const box = event.target;
    if (box.checked) chosen.add(box.value); else chosen.delete(box.value);
    marks();
  });
  compare.addEventListener("click", () => {
    const [a, b] = chosen;
    location.href = `compare?${new URLSearchParams({ token, a, b })}`;
  });
  search.addEventListener("input", filter);

  const renew = async () => {
    if (document.hidden || rows.contains(document.activeElement)) return; // not under somebody's hands
    const reply = await fetch(`rows?token=${encodeURIComponent(token)}`, { cache: "no-store" }).catch(() => null);
    if (!reply || !reply.ok) return;
    rows.innerHTML = await reply.text(); // made by our own templates, which escape all they are given
    dates(rows);
    marks();
    filter();
  };
  dates(document);
  filter();
  setInterval(renew, 3000);
})();
