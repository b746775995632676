// Requests: those that are live and those that ended lately, and one of them in full. From /v1/requests.

import { get, whileShown } from "./api.js";
import { parts } from "./charts.js";
import { count, duration, facts, h, replace, share } from "./dom.js";
import { wording } from "./messages.js";
import { waterfall } from "./waterfall.js";
import { cacheReason, why } from "./why.js";

const EVERY_MS = 1000;
const MAX_ROWS = 200;

export function requestsView() {
  const rows = h("tbody");
  const filter = h("input", { id: "requests-filter", placeholder: "all", "aria-label": "Only those that contain", autocomplete: "off", spellcheck: "false" });
  const list = h("div", { id: "requests-list" },
    h("form", { class: "bar", onsubmit: (event) => event.preventDefault() }, h("label", { class: "check" }, "Contains ", filter)),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, "Request"), h("th", {}, "State"), h("th", {}, "API"), ["Prompt", "Known", "Made", "First token", "Whole time"].map((name) => h("th", { class: "figure" }, name)))), rows)));
  const detail = h("div", { id: "request-detail", hidden: true });
  const fault = h("p", { class: "notice bad", role: "alert", hidden: true });
  const element = h("section", { class: "view", id: "requests", "aria-label": "Requests" }, h("h1", {}, "Requests"), fault, list, detail);
  let rid = ""; // the one that is shown; "": the list
  let isOver = false; // it has ended, and will not change

  const look = whileShown(() => !element.hidden && !isOver, EVERY_MS, async () => {
    const asked = rid;
    try {
      const found = await get(asked ? `v1/requests/${encodeURIComponent(asked)}` : "v1/requests");
      if (asked !== rid) return;
      fault.hidden = true;
      if (asked) {
        replace(detail, described(found));
        isOver = found.state === "ended";
      } else {
        fillRows(rows, found.data, filter.value.trim());
      }
      element.dataset.shown = asked || "list";
      element.dataset.count = asked ? "1" : String(found.data.length);
    } catch (error) {
      if (asked !== rid) return;
      fault.hidden = false;
      fault.textContent = wording(error);
    }
  });
  filter.addEventListener("input", look.now);

  return {
    element,
    show(argument) {
      if (argument !== rid) replace(detail);
      rid = argument;
      isOver = false;
      list.hidden = rid !== "";
      detail.hidden = rid === "";
      look.now();
    },
  };
}

/** Bring rows up to date in place, so that what has the focus keeps it. */
function fillRows(body, all, filter) {
  const shown = all.filter((each) => !filter || JSON.stringify([each.rid, each.request_id, each.api, each.state, each.cause]).includes(filter)).slice(0, MAX_ROWS);
  const known = new Map([...body.children].map((row) => [row.dataset.rid, row]));
  for (const [at, each] of shown.entries()) {
    const row = known.get(each.rid) ?? h("tr", { dataset: { rid: each.rid } }, h("td", {}, h("a", { class: "mono", href: `#requests/${encodeURIComponent(each.rid)}` }, each.rid)));
    known.delete(each.rid);
    row.dataset.state = each.state;
    while (row.children.length > 1) row.lastChild.remove();
    row.append(h("td", {}, stateOf(each)), h("td", {}, each.api ?? "–"),
      ...[count(each.prompt_tokens), share(each.cached_tokens, each.prompt_tokens), count(each.completion_tokens), duration(each.ttft_ms), duration(each.duration_ms)].map((text) => h("td", { class: "figure" }, text)));
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
  }
  for (const row of known.values()) row.remove();
}

function stateOf({ state, cause }) {
  const isWell = cause === null || cause === "stop" || cause === "length";
  return h("span", { class: `badge ${state === "ended" ? (isWell ? "good" : "bad") : "warning"}` }, state === "ended" ? (cause ?? "ended") : state);
}

function described(request) {
  const { cache, ttft } = request;
  const reasons = why(request);
  return [
    h("p", {}, h("a", { href: "#requests" }, "All requests")),
    h("h2", { class: "mono" }, request.rid, " ", stateOf(request)),
    h("div", { class: "grid wide" },
      h("div", { class: "card" }, h("h3", {}, "Why it took so long"), reasons.length ? h("ul", { id: "why" }, reasons.map(({ kind, text }) => h("li", { dataset: { kind } }, text))) : h("p", { class: "quiet" }, "Nothing to say yet.")),
      h("div", { class: "card" }, facts([
        ["Came", new Date(1000 * request.received_at).toLocaleString()],
        ["Took", duration(request.duration_ms)],
        ["First token", duration(request.ttft_ms)],
        ["Prompt", `${count(request.prompt_tokens)} tokens, ${count(request.cached_tokens)} of them known`],
        ["Answer", `${count(request.completion_tokens)} tokens`],
        ["API, model", `${request.api ?? "–"}, ${request.model ?? "–"}`],
        request.request_id && ["Request id", h("code", {}, request.request_id)],
        request.retractions > 0 && ["Retracted", `${count(request.retractions)} time${request.retractions > 1 ? "s" : ""}`],
      ]))),
    h("h2", {}, "Timeline"),
    waterfall({ ...request, waits: request.waits ?? [] }),
    ttft && [h("h2", {}, "Time to the first token"), parts(Object.entries(ttft).map(([name, ms]) => [name, ms, duration(ms)]), "Time to the first token")],
    cache && [h("h2", {}, "Prefix cache"), divergence(cache)],
  ];
}

function divergence(cache) {
  const place = cache.diverged_at;
  return h("div", { class: "card", id: "divergence" },
    h("p", {}, `${count(cache.cached_tokens)} prompt tokens were known. `, `Why not more: ${cacheReason(cache.reason)}.`),
    (cache.text_before || cache.text_after) && [
      h("h3", {}, `Here, at token ${count(place)}, the known part of it ends`),
      h("pre", { class: "wrap", tabindex: "0", "aria-label": "This prompt" }, cache.text_before ?? "", h("mark", {}, cache.text_after ?? "")),
      cache.sibling_text && [h("p", { class: "quiet" }, "The nearest prompt before it goes on:"), h("pre", { class: "wrap", tabindex: "0", "aria-label": "The other prompt" }, cache.text_before ?? "", h("mark", {}, cache.sibling_text))],
    ]);
}
