// What a chat's requests say besides their messages: fields with their bounds, and any other field of the API as JSON.

import { byId, h } from "./dom.js";

const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.05 }],
  ["top_k", "Top k", { min: -1, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.05 }],
  ["repetition_penalty", "Repetition penalty", { min: 0, max: 2, step: 0.05 }],
  ["max_tokens", "Most new tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
];

const id = (name) => `setting-${name}`;

/** The controls. Empty ones leave the field out, so that the server's own value holds. */
export function settings() {
  return h("details", { id: "settings" },
    h("summary", {}, "System prompt and sampling"),
    h("label", {}, "System prompt", h("textarea", { id: id("system"), rows: 2 })),
    h("div", { class: "grid small" },
      NUMBERS.map(([name, label, bounds]) => h("label", {}, label, h("input", { id: id(name), type: "number", inputmode: "decimal", placeholder: "server's own", ...bounds }))),
      h("label", {}, "Alternatives per token", h("input", { id: id("top_logprobs"), type: "number", min: 0, max: 20, step: 1, value: 5 }))),
    h("label", {}, "Stop strings, one a line", h("textarea", { id: id("stop"), rows: 2 })),
    h("label", {}, "More fields, as JSON", h("textarea", { id: id("more"), rows: 2, class: "mono", spellcheck: "false", placeholder: '{"tools": [...], "response_format": {...}}' })));
}

/**
 * The fields as they are set. `hasLogprobs`: the executor can say how likely a token was.
 * Throws a SettingError where the JSON is none.
 */
export function readSettings({ hasLogprobs }) {
  clearFaults();
  const fields = {};
  for (const [name] of NUMBERS) {
    const text = byId(id(name)).value.trim();
    if (text !== "") fields[name] = Number(text);
  }
  const stop = byId(id("stop")).value.split("\n").filter((line) => line !== "");
  if (stop.length) fields.stop = stop;
  const top = byId(id("top_logprobs")).value.trim();
  if (hasLogprobs && top !== "") Object.assign(fields, { logprobs: true, top_logprobs: Number(top) });
  const more = byId(id("more")).value.trim();
  if (more !== "") {
    let value;
    try {
      value = JSON.parse(more);
    } catch (error) {
      throw new SettingError(`More fields: this is no JSON (${error.message}).`, "more");
    }
    if (value === null || typeof value !== "object" || Array.isArray(value)) throw new SettingError("More fields: this is no JSON object.", "more");
    Object.assign(fields, value);
  }
  return fields;
}

export class SettingError extends Error {
  constructor(message, param) {
    super(message);
    this.param = param;
  }
}

/** The system prompt as messages: one, or none. */
export function systemMessages() {
  const text = byId(id("system")).value;
  return text.trim() ? [{ role: "system", content: text }] : [];
}

/** Mark the control of a field that was refused. Returns whether there is one. */
export function markFault(param) {
  const control = param ? byId(id(param.split(/[.[]/)[0])) : null;
  if (!control) return false;
  byId("settings").open = true;
  control.setAttribute("aria-invalid", "true");
  return true;
}

function clearFaults() {
  for (const control of document.querySelectorAll("#settings [aria-invalid]")) control.removeAttribute("aria-invalid");
}
