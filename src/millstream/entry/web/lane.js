// The token lane: each token of the last answer with its bytes, its log probability and what else could have stood there.

import { hex, textOf, WHY } from "./answer.js";
import { post } from "./api.js";
import { count, duration, facts, h, replace, rove } from "./dom.js";

const MAX_SHOWN = 3000; // the last ones: more elements would stop the tab

export function laneView() {
  const lane = h("ol", { class: "lane", "aria-label": "Tokens" });
  const detail = h("div", { class: "card", id: "token", "aria-live": "polite" }, h("p", { class: "quiet" }, "Choose a token: by mouse, or with the arrow keys."));
  const heldBack = h("div", { id: "held" });
  const summary = h("p", { id: "lane-summary", class: "quiet" }, "No answer yet: ask something in the chat.");
  const legend = h("p", { class: "legend" },
    ["likely", "possible", "unlikely", "held", "left"].map((kind) => [h("span", { class: `token ${kind}`, "aria-hidden": "true" }, "ab"), ` ${LEGEND[kind]}  `]));
  const element = h("section", { class: "view", id: "tokens", "aria-label": "Tokens" }, h("h1", {}, "Tokens of the last answer"), summary, legend, heldBack, lane, detail);
  const items = () => [...lane.querySelectorAll("button")];
  rove(lane, items, { onFocus: (button) => choose(Number(button.dataset.at)) });

  let answer = null;
  let drawn = []; // [i]: what button i shows, to leave alone those that have not changed
  let first = 0;

  function choose(at) {
    const token = answer.tokens.all[at];
    for (const button of items()) button.setAttribute("aria-current", String(Number(button.dataset.at) === at));
    replace(detail, describe(token, at));
  }

  /** Draw what has changed since the last time. */
  function draw() {
    if (answer === null) return;
    const all = answer.tokens.all;
    const start = Math.max(0, all.length - MAX_SHOWN);
    if (start !== first || drawn.length > all.length - start) {
      lane.replaceChildren();
      drawn = [];
      first = start;
    }
    for (let at = start; at < all.length; at += 1) {
      const token = all[at];
      if (drawn[at - start] === token.state) continue;
      const old = lane.children[at - start];
      const isFocused = old?.firstChild === document.activeElement;
      const button = h("button", { type: "button", class: `token ${kind(token)}`, tabindex: at === start ? "0" : "-1", dataset: { at, state: token.state, id: token.id ?? "" }, title: token.why ? WHY[token.why] : "", onclick: (event) => event.currentTarget.focus() }, label(token));
      const item = h("li", {}, button);
      if (old) old.replaceWith(item);
      else lane.append(item);
      if (isFocused) button.focus();
      drawn[at - start] = token.state;
    }
    const { held } = answer.tokens;
    const numShown = answer.tokens.numShown;
    const waited = all.filter((token) => token.steps > 0).length;
    summary.textContent = `${count(all.length)} tokens made, ${count(numShown)} shown` + (waited ? `, ${count(waited)} of them after they had been held back` : "") + (start ? `; the first ${count(start)} are left out here` : "");
    element.dataset.tokens = String(all.length);
    element.dataset.state = answer.endedAt === null ? "open" : "done";
    drawHeld(held);
  }

  let asked = ""; // the ids whose text was asked for last

  async function drawHeld(held) {
    const isOpen = answer.endedAt === null;
    if (!held.length || (!isOpen && held.every((token) => token.why === "end"))) {
      replace(heldBack);
      asked = "";
      return;
    }
    const ids = held.map((token) => token.id).join(",");
    if (asked === ids + isOpen) return;
    asked = ids + isOpen;
    let text = null;
    try {
      text = (await post("detokenize", { tokens: held.map((token) => token.id), skip_special_tokens: false }, { ask: false })).text;
    } catch {
      // the ids alone will have to do
    }
    if (asked !== ids + isOpen) return; // others by now
    const why = isOpen ? (text === null ? "mark" : answer.tokens.whyHeld(text)) : held[0].why;
    const shown = text === null ? `tokens ${ids}` : `“${text}”`;
    replace(heldBack, h("p", { class: "notice warning", dataset: { why } }, `${isOpen ? "Held back now" : "Left out"}: ${shown} (${held.length === 1 ? "token" : "tokens"} ${ids}): ${WHY[why]}.`));
  }

  return {
    element,
    take(given) {
      if (given !== answer) {
        answer = given;
        drawn = [];
        first = 0;
        lane.replaceChildren();
        replace(detail, h("p", { class: "quiet" }, "Choose a token: by mouse, or with the arrow keys."));
        if (answer.tokens.all.length === 0) replace(heldBack);
      }
      if (!element.hidden) draw();
    },
    show: draw,
    focus: () => items().find((button) => button.tabIndex === 0)?.focus(),
  };
}

const LEGEND = { likely: "50 % or more", possible: "10 to 50 %", unlikely: "less", held: "held back now", left: "never shown" };

function kind(token) {
  if (token.state !== "shown") return token.state;
  if (token.bytes === null) return "control";
  if (token.logprob === null) return "plain";
  const probability = Math.exp(token.logprob);
  return probability >= 0.5 ? "likely" : probability >= 0.1 ? "possible" : "unlikely";
}

function label(token) {
  if (token.state !== "shown") return `#${token.id}`;
  if (token.bytes === null) return token.name;
  const text = textOf(token.bytes);
  return text === null ? `‹${hex(token.bytes)}›` : visible(text);
}

/** Spaces and line breaks as signs, so that a token's edges are seen. */
const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");

function describe(token, at) {
  const pairs = [
    ["Place", `${count(at + 1)}, token id ${token.id ?? "not told"}`],
    token.state === "shown" && ["Text", h("code", {}, label(token))],
    token.bytes && ["Bytes", h("code", { class: "bytes" }, hex(token.bytes))],
    token.logprob !== null && token.logprob !== undefined && ["Log probability", `${token.logprob.toFixed(4)} (${(100 * Math.exp(token.logprob)).toFixed(2)} %)`],
    token.state === "held" && ["Held back", "it has been made, and cannot be shown yet"],
    token.state === "left" && ["Not shown", WHY[token.why]],
    token.steps > 0 && ["Was held back", `for ${token.steps} step${token.steps > 1 ? "s" : ""} (${duration(token.ms)}): ${WHY[token.why]}`],
  ];
  const top = token.top ?? [];
  return [h("h2", {}, `Token ${count(at + 1)}`), facts(pairs), top.length > 0 && alternatives(token, top)];
}

function alternatives(token, top) {
  const row = (each) => {
    const probability = Math.exp(each.logprob);
    const isThis = each.token === token.name && String(each.bytes) === String(token.bytes);
    return h("tr", { "aria-current": isThis ? "true" : undefined },
      h("td", {}, h("code", {}, each.bytes === null ? each.token : (textOf(each.bytes) === null ? `‹${hex(each.bytes)}›` : visible(textOf(each.bytes)))), isThis ? " (this one)" : ""),
      h("td", { class: "figure" }, each.logprob.toFixed(3)),
      h("td", { class: "figure" }, `${(100 * probability).toFixed(1)} %`),
      h("td", {}, h("meter", { min: 0, max: 1, value: probability, "aria-hidden": "true" })));
  };
  return h("div", { class: "scroll" }, h("table", { class: "alternatives" },
    h("caption", {}, "What could have stood here"),
    h("thead", {}, h("tr", {}, ["Token", "Log probability", "Probability", ""].map((name, at) => h("th", { class: at ? "figure" : "" }, name)))),
    h("tbody", {}, top.map(row))));
}

