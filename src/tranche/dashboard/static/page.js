// Keeps a page current: fetches its live part again when the server reports a change, says when the page is not live, and writes
// times in the viewer's zone. Without this script a page shows the moment at which it was loaded.
"use strict";

(() => {
  const SILENT_MS = 7000; // the server sends something every two seconds
  const line = document.getElementById("live");
  let shown = document.body.dataset.version;
  let wanted = shown;
  let heard = Date.now(); // when the server was last heard, by this clock
  let taken = Date.parse(line.dataset.taken); // when the machine was last seen, by the server's clock
  let unseen = 0; // how long the machine had been unseen when the server was last heard: a silent server does not report it
  let turns = false; // many pages of this browser are open: the server updates them in turns
  let offset = 0; // the server's clock minus this one
  let trouble = "";
  let refused = false;
  let same = ""; // the live part as last fetched
  let told = shown; // the stream's latest version
  let stale = false; // the whole page has to be fetched again
  const feed = () => document.body.dataset.feed; // a feed brings single rows, and `rows.js` inserts them
  let fetching = false;

  const zoned = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

  function age(seconds) {
    let rest = Math.max(0, Math.floor(seconds));
    const parts = [];
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]) {
      const count = Math.floor(rest / size);
      rest %= size;
      if (count) parts.push(count + unit);
      else if (parts.length) break;
      if (parts.length === 2) break;
    }
    return parts.join("") || "0s";
  }

  function moments(root) {
    for (const each of root.querySelectorAll("time.moment")) {
      each.title = each.dateTime;
      each.textContent = zoned.format(new Date(each.dateTime));
    }
  }

  function ages() {
    const now = Date.now() + offset;
    for (const each of document.querySelectorAll("time.age")) {
      const said = age((now - Date.parse(each.dateTime)) / 1000);
      if (each.textContent !== said) each.textContent = said;
    }
  }

  function say(state, text) {
    if (line.className !== state) line.className = state;
    const said = document.getElementById("live-said");
    if (said.textContent !== text) said.textContent = text; // a screen reader reads every change, so avoid needless ones
  }

  function liveness() {
    const at = (ms) => clock.format(new Date(ms));
    if (refused) return say("lost", "not live: your session has expired; sign in again");
    if (Date.now() - heard > SILENT_MS) return say("lost", `not live since ${at(heard)}: the dashboard server does not answer`);
    if (trouble) return say("lost", `not live since ${at(taken)}: ${trouble}`);
    if (unseen > SILENT_MS) return say("lost", `not live since ${at(taken)}: ${line.dataset.unseen}`);
    const apart = Math.abs(offset) > 60000 ? `, but the server's clock is ${age(Math.abs(offset) / 1000)} ${offset > 0 ? "ahead of" : "behind"} this one` : "";
    return say("live", `live${apart}${turns ? ", updated every two seconds because this browser has many pages open" : ""}`);
  }

  // Keeps the viewer's place: the focus, what is open, the scroll position.
  function replace(fresh) {
    const old = document.getElementById("view");
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    for (const each of old.querySelectorAll("details[id]")) {
      const same = fresh.querySelector(`#${CSS.escape(each.id)}`);
      if (same) same.open = each.open;
    }
    moments(fresh);
    old.replaceWith(fresh);
    ages();
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  async function renew() {
    if (fetching) return;
    fetching = true;
    try {
      while (wanted !== shown) {
        const goal = wanted;
        const answer = await fetch(location.href, { headers: { "Tranche-Part": "view" }, cache: "no-store" });
        if (answer.status === 401) { refused = true; break; }
        if (answer.status === 404) document.getElementById("view").textContent = "This no longer exists.";
        if (!answer.ok) break;
        const text = await answer.text();
        const made = text === same ? null : new DOMParser().parseFromString(text, "text/html").getElementById("view");
        if (made) replace(document.adoptNode(made));
        same = text;
        shown = goal;
        stale = false;
      }
    } catch { /* the server is away; the stream says so, and reconnects */ } finally {
      fetching = false;
      liveness();
    }
  }

  let stream = null;

  function listen() {
    stream?.close();
    const opened = new EventSource(feed() ? `${feed()}&since=${told}` : "/live");
    stream = opened;
    opened.onopen = () => { turns = false; };
    opened.addEventListener("turns", () => { turns = true; });
    document.dispatchEvent(new CustomEvent("tranche:listening", { detail: opened }));
    opened.addEventListener("seen", (event) => {
      const news = JSON.parse(event.data);
      heard = Date.now();
      offset = Date.parse(news.now) - heard;
      taken = Date.parse(news.taken);
      unseen = Date.parse(news.now) - taken;
      trouble = news.trouble;
      wanted = told = news.version;
      stale ||= news.anew;
      if (feed() && !stale) shown = wanted;
      liveness();
      renew();
    });
    opened.onerror = async () => {
      if (opened.readyState !== EventSource.CLOSED) return; // the browser retries by itself
      const answer = await fetch("/live", { method: "HEAD" }).catch(() => null);
      refused = answer !== null && answer.status === 401;
      liveness();
      if (!refused && stream === opened) setTimeout(listen, 2000);
    };
  }

  document.addEventListener("tranche:replaced", () => moments(document));
  document.addEventListener("tranche:chosen", (event) => {
    told = shown = event.detail;
    if (stream) listen();
  });

  // A browser has few connections for one server: a hidden page needs none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      stream?.close();
      stream = null;
    } else {
      listen();
    }
  });

  // A clock that is set back must not make a silent server look live.
  let before = Date.now();
  setInterval(() => {
    if (Date.now() < before - 1000) heard = Math.min(heard, Date.now());
    before = Date.now();
    ages();
    liveness();
  }, 1000);

  // What changes all the time without updates is fetched from time to time.
  const every = Number(document.body.dataset.every);
  if (every) setInterval(() => {
    if (document.hidden) return;
    shown = "";
    renew();
  }, every * 1000);

  moments(document);
  if (!document.hidden) listen();
})();
