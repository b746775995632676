// One request as a waterfall: its stages and what it waited for, each a bar at its place in time.

import { duration, h } from "./dom.js";
import { colour } from "./charts.js";
import { stageName, waitName } from "./why.js";

const PROCESSES = ["entry", "scheduler", "detokenizer"];

/** The waterfall. Both lists are of `{start_ms, duration_ms}` from the request's arrival. */
export function waterfall({ stages, waits, duration_ms: whole }) {
  const bar = (part, fill) => {
    const left = Math.min(99.6, (100 * part.start_ms) / Math.max(whole, 1e-9));
    const width = Math.min(100 - left, Math.max(0.4, (100 * part.duration_ms) / Math.max(whole, 1e-9)));
    return h("span", { class: "fill", style: { left: `${left}%`, width: `${width}%`, background: fill } });
  };
  const row = (name, words, detail, part, fill, kind) =>
    h("li", { class: kind, dataset: { name } },
      h("span", { class: "name" }, words, detail && h("span", { class: "quiet" }, ` ${detail}`)),
      h("span", { class: "track" }, (part.detail?.list ?? [part]).map((each) => bar(each, fill))),
      h("span", { class: "took" }, duration(part.duration_ms)));
  return h("div", {},
    h("ol", { class: "waterfall", "aria-label": "Stages" }, stages.map((stage) =>
      row(stage.name, stage.name, `${stage.process}: ${stageName(stage.name)}${stage.is_over === false ? ", not over" : ""}`, stage, colour(Math.max(0, PROCESSES.indexOf(stage.process))), "stage"))),
    waits.length > 0 && [h("h3", {}, "What it waited for"), h("ol", { class: "waterfall waits", "aria-label": "Waits" }, waits.map((wait) =>
      row(wait.reason, waitName(wait.reason), described(wait.detail), wait, "var(--bad)", "wait")))]);
}

function described(detail) {
  if (detail === null || detail === undefined || detail === "") return "";
  if (typeof detail !== "object") return `(${detail})`;
  const words = Object.entries(detail).filter(([, value]) => typeof value !== "object");
  return words.length === 0 ? "" : `(${words.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ")})`;
}
