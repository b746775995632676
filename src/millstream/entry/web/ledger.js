// The ledger: what every process holds for which request, as /debug/ledger has it now.

import { get, whileShown } from "./api.js";
import { count, duration, h, replace } from "./dom.js";
import { wording } from "./messages.js";

const MAX_ROWS = 500;

/** The view. `server.has(path)`: whether it has a route. */
export function ledgerView(server) {
  const rid = h("input", { id: "ledger-rid", placeholder: "all", "aria-label": "Only of the request", class: "mono", autocomplete: "off", spellcheck: "false" });
  const body = h("div", { id: "ledger-body" });
  const element = h("section", { class: "view", id: "ledger", "aria-label": "Ledger" },
    h("h1", {}, "Ledger"), h("p", { class: "quiet" }, "What a request acquires it gives back, in every process; what is held now is listed here."),
    h("form", { class: "bar", onsubmit: (event) => event.preventDefault() }, h("label", { class: "check" }, "Request ", rid)), body);
  const look = whileShown(() => !element.hidden, 1000, async () => {
    try {
      const asked = rid.value.trim();
      const found = await get(`debug/ledger${asked ? `?rid=${encodeURIComponent(asked)}` : ""}`);
      replace(body, shown(found, server.has("/v1/requests")));
      element.dataset.held = String(found.held.length);
      element.dataset.state = "shown";
    } catch (error) {
      element.dataset.state = "error";
      replace(body, h("p", { class: "notice bad", role: "alert" }, wording(error)));
    }
  });
  rid.addEventListener("input", look.now);
  return {
    element,
    show() {
      element.dataset.state = "asked";
      look.now();
    },
  };
}

function shown(found, hasTimelines) {
  const isClean = found.mismatches === 0;
  return [
    h("p", { class: `notice ${isClean ? "good" : "bad"}`, id: "mismatches" }, isClean ? "The books have balanced at every look since the start." : `The books did not balance ${count(found.mismatches)} times: a bug, please report it.`),
    found.held.length ? held(found, hasTimelines) : h("p", {}, "Nothing is held."),
    h("h2", {}, "Given back since the start"),
    released(found.released),
  ];
}

function held({ held: entries, left_out: leftOut }, hasTimelines) {
  const row = (each) => h("tr", {},
    h("td", { class: "mono" }, each.rid && hasTimelines ? h("a", { href: `#requests/${encodeURIComponent(each.rid)}` }, each.rid) : each.rid || "–"), h("td", {}, each.process), h("td", {}, each.kind),
    h("td", { class: "figure" }, count(each.amount)), h("td", { class: "figure" }, duration(1000 * each.since_s)));
  const more = leftOut + Math.max(0, entries.length - MAX_ROWS);
  return h("div", { class: "scroll" }, h("table", {},
    h("caption", {}, more ? `The oldest ${count(Math.min(MAX_ROWS, entries.length))}; ${count(more)} more are left out.` : "Held now, the oldest first."),
    h("thead", {}, h("tr", {}, h("th", {}, "Request"), h("th", {}, "Process"), h("th", {}, "What"), h("th", { class: "figure" }, "How much"), h("th", { class: "figure" }, "For"))),
    h("tbody", {}, entries.slice(0, MAX_ROWS).map(row))));
}

function released(kinds) {
  const names = Object.keys(kinds).sort();
  if (!names.length) return h("p", { class: "quiet" }, "Nothing yet.");
  const row = (kind) => h("tr", {}, h("th", { scope: "row" }, kind), h("td", {}, Object.entries(kinds[kind]).sort().map(([cause, amount]) => `${cause} ${count(amount)}`).join(", ")));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "What"), h("th", {}, "For which cause, how much"))), h("tbody", {}, names.map(row))));
}
