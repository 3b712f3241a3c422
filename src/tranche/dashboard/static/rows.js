// Keeps a table of nodes current: inserts the rows that the server reports as changed, and searches again while the viewer types.
// Without this script the page shows the moment at which it was loaded, and the form searches when it is sent.
"use strict";

(() => {
  const TYPING_MS = 250;
  const byName = (id) => id.slice("node-".length);
  const elements = (html) => new DOMParser().parseFromString(html, "text/html").body.firstElementChild;

  // Rows are in the order of their ids, as on the server.
  function placeFor(rows, id) {
    let low = 0;
    let high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (byName(rows[middle].id) < byName(id)) low = middle + 1;
      else high = middle;
    }
    return rows[low] ?? null;
  }

  function put(body, fresh) {
    const old = document.getElementById(fresh.id);
    if (!old) return body.insertBefore(fresh, placeFor(body.rows, fresh.id));
    const focused = old.contains(document.activeElement);
    old.replaceWith(fresh);
    if (focused) fresh.querySelector("a")?.focus({ preventScroll: true });
    return fresh;
  }

  function take(news) {
    const body = document.getElementById("rows");
    if (!body) return;
    for (const name of news.gone) document.getElementById(`node-${name}`)?.remove();
    const made = elements(`<table><tbody>${news.rows}</tbody></table>`);
    for (const fresh of [...made.rows]) put(body, document.adoptNode(fresh));
    document.getElementById("summary").replaceWith(document.adoptNode(elements(news.summary)));
    document.dispatchEvent(new Event("tranche:replaced"));
  }

  document.addEventListener("tranche:listening", ({ detail: stream }) => {
    stream.addEventListener("rows", (event) => take(JSON.parse(event.data)));
  });

  const form = document.querySelector("form[role=search]");
  let asked = 0;
  let typing = 0;

  async function choose() {
    const mine = ++asked;
    const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    const address = `${form.action}?${chosen}`;
    const answer = await fetch(address, { headers: { "Tranche-Part": "view" }, cache: "no-store" }).catch(() => null);
    const text = answer?.ok ? await answer.text() : "";
    if (!text || mine !== asked) return; // the viewer is still typing
    document.getElementById("view").replaceWith(document.adoptNode(elements(text)));
    history.replaceState(null, "", address);
    document.body.dataset.feed = `/live?rows=1&${chosen}`;
    document.dispatchEvent(new Event("tranche:replaced"));
    document.dispatchEvent(new CustomEvent("tranche:chosen", { detail: answer.headers.get("Tranche-Version") }));
  }

  form?.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(choose, TYPING_MS);
  });
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    choose();
  });
})();
