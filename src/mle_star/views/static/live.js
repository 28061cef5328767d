"use strict";
// Keeps a served report up to date: the server sends the pieces that changed.
(() => {
  const token = document.body.dataset.live;
  const zone = document.querySelector("main");
  const clock = (seconds) => {
    const s = Math.max(0, Math.floor(seconds));
    const pad = (n) => String(n).padStart(2, "0");
    return s >= 3600 ? `${Math.floor(s / 3600)}:${pad(Math.floor(s / 60) % 60)}:${pad(s % 60)}` : `${Math.floor(s / 60)}:${pad(s % 60)}`;
  };
  let ahead = 0; // how far the server's clock is ahead of ours
  const tick = () => {
    for (const one of document.querySelectorAll("[data-since]")) {
      one.textContent = `for ${clock((Date.now() + ahead - Date.parse(one.dataset.since)) / 1000)}`;
    }
  };

  // --- pieces ---

  const renew = (piece, html) => {
    const open = new Map([...piece.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
    piece.innerHTML = html; // made by our own templates, which escape all they are given
    for (const [id, was] of open) {
      const now = document.getElementById(id);
      if (now && piece.contains(now)) now.open = was;
    }
    piece.dispatchEvent(new CustomEvent("renewed", { bubbles: true }));
  };
  const apply = (news) => {
    document.title = news.title;
    for (const [section, names] of Object.entries(news.order)) {
      const list = document.querySelector(`[data-list="${section}"]`);
      const known = new Map([...list.children].map((one) => [one.dataset.piece, one]));
      names.forEach((name, index) => {
        let piece = known.get(name);
        if (!piece) {
          piece = document.createElement("div");
          piece.dataset.piece = name;
        }
        if (list.children[index] !== piece) list.insertBefore(piece, list.children[index] || null);
        known.delete(name);
        if (news.pieces[name] !== undefined) renew(piece, news.pieces[name]);
      });
      for (const gone of known.values()) gone.remove();
    }
    const now = document.getElementById("now");
    now.hidden = !now.querySelector(".news");
    tick();
  };

  // --- the bar with two buttons ---

  const bar = document.createElement("div");
  bar.className = "live-bar";
  bar.setAttribute("role", "status");
  const word = document.createElement("span");
  word.className = "word";
  const button = (id, words, kind) => {
    const made = document.createElement("button");
    made.id = id;
    made.type = "button";
    made.textContent = words;
    made.className = kind;
    return made;
  };
  const finish = button("finish-now", "Finish now", "");
  finish.title = "End with the best so far: a submission is made of it";
  const stop = button("stop", "Stop", "danger");
  stop.title = "Stop at once; the run can be resumed";
  bar.append(word, finish, stop);
  zone.append(bar);
  const ask = async (what, question) => {
    if (question && !confirm(question)) return;
    const reply = await fetch(what, { method: "POST", headers: { "X-MLE-Star-Token": token }, cache: "no-store" });
    word.textContent = reply.ok ? (what === "finish" ? "Asked to finish with the best so far …" : "Asked to stop …") : `Refused: ${await reply.text()}`;
    if (reply.ok) finish.disabled = true;
    if (reply.ok && what === "stop") stop.disabled = true;
  };
  finish.addEventListener("click", () => ask("finish"));
  stop.addEventListener("click", () => ask("stop", "Stop the run at once? What it has done is kept, and it can be resumed."));

  // --- news ---

  const source = new EventSource(`events?token=${encodeURIComponent(token)}`);
  let over = false;
  source.addEventListener("news", (event) => {
    const news = JSON.parse(event.data);
    ahead = Date.parse(news.now) - Date.now();
    apply(news);
    over = !news.working;
    document.body.dataset.state = news.state;
    finish.hidden = stop.hidden = over;
    if (over) word.textContent = `The run is over: ${news.state}.`;
    else if (!finish.disabled) word.textContent = "Live: this page follows the run.";
  });
  source.addEventListener("bye", () => { source.close(); if (!over) word.textContent = "The page is no longer served."; finish.hidden = stop.hidden = true; });
  source.addEventListener("error", () => { if (!over) word.textContent = "The connection is lost; trying again …"; });
  setInterval(tick, 1000);
})();
