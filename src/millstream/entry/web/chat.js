// The chat: what was said, the form, and the one answer under way. Its requests go to /v1/chat/completions like anybody's.

import { Answer } from "./answer.js";
import { ApiError, post, stream } from "./api.js";
import { attachments } from "./attachments.js";
import { announce, byId, h, replace } from "./dom.js";
import { answerCard, questionCard } from "./messages.js";
import { markFault, readSettings, SettingError, settings, systemMessages } from "./settings.js";

const DRAW_EVERY_MS = 50; // while text comes in; more where drawing takes long
const STOP_GRACE_MS = 3000; // in which the server says how a stopped answer ended

/** The view. `server` has what /v1/capabilities said; `onTokens` is told of each change of the answer's tokens. */
export function chatView(server, onTokens) {
  const said = []; // messages as the API takes them
  let current = null; // {answer, card, controller}
  const files = attachments(() => server.modalities, (why) => report(why));

  const log = h("ol", { id: "log", "aria-label": "Conversation" });
  const prompt = h("textarea", { id: "prompt", rows: 3, "aria-label": "Message", placeholder: "Say something. Enter sends, Shift+Enter begins a line.", "aria-keyshortcuts": "/" });
  const send = h("button", { type: "submit", id: "send", class: "primary" }, "Send");
  const stop = h("button", { type: "button", id: "stop", disabled: true, "aria-keyshortcuts": "Escape" }, "Stop");
  const clear = h("button", { type: "button", id: "clear" }, "New chat");
  const fault = h("p", { id: "fault", class: "notice bad", role: "alert", hidden: true });
  const form = h("form", { id: "chat-form", novalidate: true }, fault, prompt, h("div", { class: "bar" }, send, stop, clear, files.element), settings());
  const element = h("section", { class: "view", id: "chat", dataset: { state: "idle" }, "aria-label": "Chat" }, h("h1", { class: "unseen" }, "Chat"), log, form);

  const setState = (state) => {
    element.dataset.state = state;
    const isBusy = state === "waiting" || state === "streaming";
    stop.disabled = !isBusy;
    send.disabled = isBusy;
    clear.disabled = isBusy;
  };

  const report = (text) => {
    fault.hidden = false;
    fault.textContent = text;
  };

  async function ask() {
    const text = prompt.value;
    if (current || text.trim() === "") return;
    fault.hidden = true;
    let fields;
    try {
      fields = readSettings(server);
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      markFault(error.param);
      report(error.message);
      return;
    }
    const question = { role: "user", content: files.content(text) };
    prompt.value = "";
    const asked = questionCard(question.content);
    const rid = fields.rid ?? newRid();
    const stops = [fields.stop ?? []].flat();
    const answer = new Answer({ rid, stops, startedAt: performance.now() });
    const card = answerCard(answer, server);
    log.append(asked, card.element);
    const body = {
      messages: [...systemMessages(), ...said, question], stream: true, return_token_ids: true, ...fields, rid,
      stream_options: { include_usage: true, include_progress: true, ...fields.stream_options },
    };
    current = { answer, card, controller: new AbortController() };
    setState("waiting");
    announce("Waiting for the answer");
    const error = await follow(body);
    const { controller } = current;
    current = null;
    answer.end(performance.now(), error);
    card.draw();
    onTokens(answer);
    const isRefused = error !== null && answer.finish === null && answer.content === "" && answer.reasoning === "";
    if (isRefused && !controller.stopped) {
      prompt.value ||= text; // to be mended and sent again
      if (markFault(error.param)) report(error.message);
    } else {
      said.push(question, answer.asMessage());
    }
    setState(error === null ? "done" : controller.stopped ? "stopped" : "error");
    announce(error === null ? "The answer is complete" : `The answer ended: ${error.message}`);
  }

  /** Read the stream of `current` to its end; returns the ApiError that ended it, or null. */
  async function follow(body) {
    const { answer, card, controller } = current;
    let timer = null;
    let every = DRAW_EVERY_MS;
    const draw = () => {
      timer = null;
      const started = performance.now();
      card.draw();
      onTokens(answer);
      every = Math.max(DRAW_EVERY_MS, 5 * (performance.now() - started));
      if (isAtEnd()) scrollToEnd();
    };
    const onData = (chunk) => {
      answer.take(chunk, performance.now());
      if (answer.firstAt !== null && element.dataset.state === "waiting") setState("streaming");
      timer ??= setTimeout(draw, every);
    };
    const onComment = (text) => {
      answer.progress = text;
      timer ??= setTimeout(draw, every);
    };
    try {
      await stream("v1/chat/completions", body, { signal: controller.signal, onData, onComment });
      return null;
    } catch (error) {
      if (error.name === "AbortError") return new ApiError(0, { message: "You stopped it; the server did not say how it ended.", code: "stopped" });
      if (!(error instanceof ApiError)) throw error;
      return error;
    } finally {
      clearTimeout(timer);
    }
  }

  async function stopIt() {
    if (!current || current.controller.stopped) return;
    const { answer, controller } = current;
    controller.stopped = true;
    stop.disabled = true;
    // asked of the server, whose stream then says why it ended; where that does not come, the connection is closed
    const timer = setTimeout(() => controller.abort(), STOP_GRACE_MS);
    controller.signal.addEventListener("abort", () => clearTimeout(timer));
    try {
      await post("abort_request", { rid: answer.rid });
    } catch {
      controller.abort();
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
  stop.addEventListener("click", stopIt);
  clear.addEventListener("click", () => {
    said.length = 0;
    replace(log);
    fault.hidden = true;
    setState("idle");
    prompt.focus();
  });

  return { element, stop: stopIt, focus: () => prompt.focus(), show: () => files.describe() };
}

function newRid() {
  const bytes = crypto.getRandomValues(new Uint8Array(12)); // randomUUID is not there over plain HTTP from another machine
  return `page-${[...bytes].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
}

const isAtEnd = () => window.innerHeight + window.scrollY > document.documentElement.scrollHeight - 300;
const scrollToEnd = () => byId("chat-form").scrollIntoView({ block: "end" });
