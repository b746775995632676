// The dashboard: /server_info, /ready and /metrics, looked at each second while it is seen.

import { get, getText, whileShown } from "./api.js";
import { bars, line, parts } from "./charts.js";
import { count, duration, h, replace, share } from "./dom.js";
import { wording } from "./messages.js";
import { histogram, parse, quantile, total } from "./prometheus.js";

const EVERY_MS = 1000;
const KEPT = 120; // looks that the lines go back
const NAME = (name) => `millstream:${name}`;
const HISTOGRAMS = [
  ["time_to_first_token_seconds", "Time to the first token"],
  ["inter_token_latency_seconds", "Time between tokens"],
  ["e2e_request_latency_seconds", "Time of a whole request"],
  ["queue_seconds", "Time in the queue"],
  ["prefill_seconds", "Time to read the prompt"],
  ["step_seconds", "Time of a step"],
];

/** The view. `server.has(path)`: whether it has a route. */
export function liveView(server) {
  const body = h("div", { id: "live-body" });
  const element = h("section", { class: "view", id: "live", "aria-label": "Live" }, h("h1", {}, "Live"), body);
  const history = []; // {at, info, tokens}
  const look = whileShown(() => !element.hidden, EVERY_MS, async () => {
    try {
      const [info, ready, metrics] = await Promise.all([get("server_info"), state(), server.has("/metrics") ? samples() : null]);
      history.push({ at: performance.now(), info, tokens: metrics && total(metrics, NAME("completion_tokens_total")) });
      if (history.length > KEPT) history.shift();
      replace(body, dashboard(info, ready, metrics, history));
      element.dataset.looks = String(Number(element.dataset.looks ?? 0) + 1);
      element.dataset.state = "shown";
    } catch (error) {
      element.dataset.state = "error";
      replace(body, h("p", { class: "notice bad", role: "alert" }, wording(error)));
    }
  });
  return {
    element,
    show() {
      element.dataset.state = "asked";
      look.now();
    },
  };
}

/** Whether requests are taken now, in one line. */
export async function state() {
  try {
    await get("ready");
    return { isReady: true, why: "ready" };
  } catch (error) {
    return { isReady: false, why: error.message };
  }
}

async function samples() {
  try {
    return parse(await getText("metrics"));
  } catch {
    return null; // the counts of /server_info are there all the same
  }
}

function dashboard(info, ready, metrics, history) {
  const series = (name) => history.map((each) => each.info[name]);
  return [
    h("p", { class: `notice ${ready.isReady ? "good" : "bad"}`, id: "readiness" }, ready.isReady ? "The server takes requests." : ready.why),
    h("div", { class: "grid" },
      tile("running", "Running", info.running, series("running")),
      tile("waiting", "Queued", info.waiting, series("waiting")),
      tile("paused", "Paused", info.paused, series("paused"), "Their clients do not read."),
      speed(history),
      hits(metrics),
      tile("retractions", "Retractions", info.retractions, null, "Times that a request's pages went to others.")),
    h("div", { class: "card" }, h("h2", {}, "KV pages"),
      parts(pages(info, metrics), "KV pages"),
      h("p", { class: "quiet" }, `${count(info.pages_total)} pages of ${count(info.configuration.page_size)} tokens; ${count(info.pages_cached)} hold known prefixes.`)),
    h("h2", {}, "Latency"),
    latencies(metrics),
    h("h2", {}, "Processes"),
    processes(info),
  ];
}

function pages(info, metrics) {
  const named = (name, amount) => [name, amount, count(amount)];
  const used = info.pages_total - info.pages_free;
  const evictable = metrics && total(metrics, NAME("kv_pages"), { state: "evictable" });
  if (evictable === null) return [named("in use", used), named("free, or could make room", info.pages_free)];
  const kept = Math.min(evictable, info.pages_free); // the two were asked for one after the other
  return [named("in use", used), named("kept for later prompts", kept), named("free", info.pages_free - kept)];
}

function tile(id, name, value, values, more) {
  return h("div", { class: "card", id: `tile-${id}` }, h("h2", {}, name), h("p", { class: "number" }, value === null ? "–" : typeof value === "number" ? count(value) : value), values && line(values, name), more && h("p", { class: "quiet" }, more));
}

function speed(history) {
  const rates = [];
  for (let at = 1; at < history.length; at += 1) {
    const [before, after] = [history[at - 1], history[at]];
    if (before.tokens !== null && after.tokens !== null) rates.push(Math.max(0, (1000 * (after.tokens - before.tokens)) / (after.at - before.at)));
  }
  if (!rates.length) return tile("speed", "Tokens a second", null, null, "Known from the second look at /metrics on.");
  return tile("speed", "Tokens a second", rates.at(-1), rates);
}

function hits(metrics) {
  const prompt = metrics && total(metrics, NAME("prompt_tokens_total"));
  const cached = metrics && total(metrics, NAME("cached_tokens_total"));
  if (!prompt) return tile("hits", "Cache hit rate", null, null, "Of prompt tokens, those whose KV was known.");
  return tile("hits", "Cache hit rate", share(cached ?? 0, prompt), null, `${count(cached ?? 0)} of ${count(prompt)} prompt tokens were known.`);
}

function latencies(metrics) {
  if (metrics === null) return h("p", { class: "quiet" }, "There is no /metrics to read histograms from.");
  const found = HISTOGRAMS.map(([name, label]) => [label, histogram(metrics, NAME(name)), name]).filter(([, each]) => each !== null);
  if (!found.length) return h("p", { class: "quiet" }, "No request has ended yet.");
  return h("div", { class: "grid wide" }, found.map(([label, each, name]) =>
    h("div", { class: "card", dataset: { histogram: name } }, h("h3", {}, label), bars(each, label),
      h("p", { class: "quiet" }, [["half below", 0.5], ["90 %", 0.9], ["99 %", 0.99]].map(([words, q]) => `${words} ${duration(1000 * quantile(each, q))}`).join(" · "), ` · ${count(each.count)} in all`))));
}

function processes(info) {
  const row = ([name, process]) => h("tr", { dataset: { process: name } },
    h("th", { scope: "row" }, name), h("td", { class: process.state === "READY" ? "good" : "bad" }, process.state), h("td", { class: "figure" }, process.pid),
    h("td", { class: "figure" }, count(requestsOf(info, name))));
  return h("div", { class: "scroll" }, h("table", { id: "processes" },
    h("thead", {}, h("tr", {}, h("th", {}, "Process"), h("th", {}, "State"), h("th", { class: "figure" }, "PID"), h("th", { class: "figure" }, "Requests it knows"))),
    h("tbody", {}, Object.entries(info.processes).map(row))));
}

const requestsOf = (info, name) => info.entry_workers[name]?.live_requests ?? info.live_requests_by_process[name] ?? null;
