// The server's API: JSON, streams of events, errors as the server words them, and the key, which is kept for this tab only.

import { byId } from "./dom.js";

const STORED = "millstream.key";

/** What the server refused, or that it could not be reached. `param` is the field at fault. */
export class ApiError extends Error {
  constructor(status, { message, param = null, code = null, type = null } = {}, retryAfter = null) {
    super(message ?? `The server answered with status ${status}.`);
    Object.assign(this, { status, param, code, type, retryAfter });
  }
}

export const hasKey = () => sessionStorage.getItem(STORED) !== null;

let asking = null;

/** Ask for a key. Resolves to whether there is one now; many who ask at once share one dialog. */
export function askForKey(why) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const input = byId("key-input");
    if (why) byId("key-why").textContent = `${why} It is kept in this tab only, until the tab is closed.`;
    input.value = "";
    dialog.returnValue = "cancel";
    dialog.addEventListener("close", () => {
      asking = null;
      const key = input.value.trim();
      input.value = "";
      if (dialog.returnValue !== "save") return resolve(false);
      if (key) sessionStorage.setItem(STORED, key);
      else sessionStorage.removeItem(STORED);
      document.dispatchEvent(new Event("key"));
      return resolve(key !== "");
    }, { once: true });
    dialog.showModal();
    input.focus();
  });
  return asking;
}

let declined = false; // who has closed the dialog is not asked again by what refreshes itself
document.addEventListener("key", () => { declined = false; });

async function request(path, { body, signal, accept = "application/json", ask = true } = {}) {
  for (;;) {
    const headers = { accept };
    const key = sessionStorage.getItem(STORED);
    if (key !== null) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, { message: "The server cannot be reached.", code: "unreachable" });
    }
    if (answer.ok) return answer;
    const error = await failure(answer);
    if (answer.status !== 401 || (declined && !ask)) throw error;
    declined = !(await askForKey(key === null ? "This server asks for a key." : "The key is not correct."));
    if (declined) throw error;
  }
}

async function failure(answer) {
  let told = {};
  try {
    const body = await answer.json();
    told = body.error ?? {};
  } catch {
    // what answers is not this server: the status is all there is
  }
  const retryAfter = answer.headers.get("retry-after");
  return new ApiError(answer.status, told, retryAfter === null ? null : Number(retryAfter));
}

/** GET, as JSON. `ask` false: do not ask again for a key that the reader did not want to give. */
export const get = async (path, options = {}) => (await request(path, { ask: false, ...options })).json();

/** GET, as text. */
export const getText = async (path, options = {}) => (await request(path, { ask: false, accept: "text/plain", ...options })).text();

/** POST, as JSON. */
export const post = async (path, body, options = {}) => (await request(path, { body, ...options })).json();

/**
 * POST, and read the answer's events. `onData` gets each event's JSON, `onComment` the comments between them.
 * Ends with the stream; throws an ApiError for a refusal, for an error in the stream, and for a stream that was cut.
 */
export async function stream(path, body, { signal, onData, onComment = () => {}, onOpen = () => {} }) {
  const answer = await request(path, { body, signal, accept: "text/event-stream" });
  onOpen(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith(":")) onComment(line.slice(1).trim());
        if (!line.startsWith("data: ")) continue;
        if (line === "data: [DONE]") return;
        const data = JSON.parse(line.slice(6));
        if (data.error) throw new ApiError(answer.status, data.error);
        onData(data);
      }
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The connection was cut before the answer was complete.", code: "cut" });
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ApiError(0, { message: "The connection was cut before the answer was complete.", code: "cut" });
}

/** Call `look` each `everyMs` while `isShown()` and the tab is seen, one look at a time. Returns what does so at once. */
export function whileShown(isShown, everyMs, look) {
  let busy = false;
  const tick = async () => {
    if (busy || document.hidden || !isShown()) return;
    busy = true;
    try {
      await look();
    } finally {
      busy = false;
    }
  };
  setInterval(tick, everyMs);
  return { now: tick };
}
