// How a message looks: a question, and an answer with its reasoning folded, its tool calls, and one line on how it ended.

import { count, duration, h, replace } from "./dom.js";
import { markdown } from "./markdown.js";

const FINISHES = { stop: "complete", length: "cut at the limit of tokens", tool_calls: "wants tools to be called", abort: "aborted" };

/** A question; `content` is text, or the parts of one with pictures. */
export function questionCard(content) {
  const text = typeof content === "string" ? content : content[0].text;
  const pictures = typeof content === "string" ? [] : content.slice(1);
  return h("li", { class: "message user" }, h("h2", { class: "who" }, "You"), h("div", { class: "plain" }, text),
    pictures.length > 0 && h("p", { class: "quiet" }, `${pictures.length} picture${pictures.length > 1 ? "s" : ""} attached`));
}

/** An answer's card; `draw` brings it up to date. */
export function answerCard(answer, server) {
  const thought = h("div", { class: "plain" });
  const reasoning = h("details", { class: "reasoning", hidden: true }, h("summary", {}, "Reasoning"), thought);
  const content = h("div", { class: "content" });
  const calls = h("div", { class: "calls" });
  const end = h("p", { class: "end quiet" });
  const error = h("p", { class: "notice bad error", role: "alert", hidden: true });
  const element = h("li", { class: "message assistant", dataset: { rid: answer.rid, state: "open" } }, h("h2", { class: "who" }, "Answer"), reasoning, content, calls, error, end);
  let drawn = null;

  return {
    element,
    draw() {
      reasoning.hidden = answer.reasoning === "";
      thought.textContent = answer.reasoning;
      if (drawn !== answer.content) replace(content, markdown(answer.content));
      drawn = answer.content;
      replace(calls, answer.calls.filter(Boolean).map(callCard));
      if (answer.error) {
        error.hidden = false;
        error.textContent = wording(answer.error);
      }
      element.dataset.state = answer.endedAt === null ? "open" : answer.error ? "error" : "done";
      replace(end, answer.endedAt === null ? openLine(answer) : endLine(answer, server));
    },
  };
}

function callCard(call) {
  let shown = call.arguments;
  try {
    shown = JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    // not complete yet, or not JSON: as it is
  }
  return h("div", { class: "call", dataset: { name: call.name } }, h("p", {}, "Calls the tool ", h("code", {}, call.name)), h("pre", { tabindex: "0", "aria-label": `Arguments of ${call.name}` }, shown));
}

/** An error in one line: what, which field, what kind, and when to come back. */
export function wording(error) {
  const details = [error.param && `field: ${error.param}`, error.code && `code: ${error.code}`, error.status >= 400 && `status: ${error.status}`, error.retryAfter !== null && error.retryAfter !== undefined && `try again in ${error.retryAfter} s`];
  const said = details.filter(Boolean).join(", ");
  return said ? `${error.message} (${said})` : error.message;
}

function openLine(answer) {
  if (answer.firstAt !== null) return "…";
  const [, what, where] = /^(queued|prefill) (.+)$/.exec(answer.progress) ?? [];
  if (what === "queued") return `Waiting: place ${where} in the queue`;
  if (what === "prefill") return `Reading the prompt: ${where} tokens`;
  return "Waiting for the first token";
}

function endLine(answer, server) {
  const { usage, startedAt, firstAt, endedAt, finish, matched } = answer;
  const parts = [];
  if (finish) parts.push(finish === "stop" && typeof matched === "string" ? `stopped at “${matched}”` : (FINISHES[finish] ?? finish));
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${count(usage.prompt_tokens)} tokens in${cached ? ` (${count(cached)} known)` : ""}, ${count(usage.completion_tokens)} out`);
  }
  if (firstAt !== null) parts.push(`first after ${duration(firstAt - startedAt)}`);
  parts.push(`${duration(endedAt - startedAt)} in all`);
  return [parts.join(" · "), " · ", h("a", { href: "#tokens" }, "tokens"), server.has("/v1/requests") && [" · ", h("a", { href: `#requests/${encodeURIComponent(answer.rid)}` }, "timeline")]];
}
