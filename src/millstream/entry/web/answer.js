// One answer as its stream tells it: text, reasoning, tool calls, end, and what became of each token. Pure: chunks in, facts out.

const strict = new TextDecoder("utf-8", { fatal: true });

/** The text of bytes that are whole characters; null otherwise. */
export function textOf(bytes) {
  try {
    return strict.decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

export const hex = (bytes) => bytes.map((each) => each.toString(16).padStart(2, "0")).join(" ");

export const WHY = {
  character: "a part of a character: the rest was still to come",
  stop: "it could have been the start of a stop string",
  mark: "it could have been the start of a mark of reasoning or of a tool call",
  matched: "it belongs to the stop string that ended the answer",
  end: "it ended the answer, and is no text",
  unshown: "the answer ended before it could be shown",
};

/**
 * The tokens of an answer, in order. A token comes by its id once it is made, and by its bytes and log probability once the
 * text that it begins is sent; what lies between is held back.
 */
export class Tokens {
  constructor(stops) {
    this.all = []; // {id, bytes, logprob, top, state: "held" | "shown" | "left", steps, ms, why}
    this.stops = stops;
    this.numShown = 0;
    this.steps = 0;
  }

  get held() {
    return this.all.slice(this.numShown);
  }

  /** Take a row: new ids, and the entries of those that can be shown now. */
  take(ids, entries, now) {
    this.steps += 1;
    for (const id of ids) this.all.push({ id, bytes: null, logprob: null, top: [], state: "held", step: this.steps, at: now, why: null });
    for (const entry of entries) {
      const token = this.all[this.numShown] ?? this.#unnamed(now);
      Object.assign(token, { bytes: entry.bytes, name: entry.token, logprob: entry.logprob, top: entry.top_logprobs ?? [], state: "shown" });
      token.steps = this.steps - token.step;
      token.ms = now - token.at;
      if (token.steps > 0) token.why = this.#why(token.bytes);
      this.numShown += 1;
    }
  }

  /** The answer has ended: what is still held back will never be shown. */
  end(finish, matched) {
    for (const token of this.held) {
      token.state = "left";
      if (finish === "stop") token.why = typeof matched === "string" ? "matched" : "end";
      else token.why = "unshown";
    }
  }

  /** Why tokens are held back whose text, as far as it is one, is `text`. */
  whyHeld(text) {
    if (text.endsWith("\ufffd")) return "character";
    const starts = this.stops.some((stop) => [...stop].some((_, at) => text.endsWith(stop.slice(0, at + 1))));
    return starts ? "stop" : "mark";
  }

  #why(bytes) {
    if (bytes !== null && textOf(bytes) === null) return "character";
    return this.stops.length > 0 ? "stop" : "mark";
  }

  #unnamed(now) { // a server that lists tokens and does not send their ids
    const token = { id: null, step: this.steps, at: now };
    this.all.push(token);
    return token;
  }
}

/** An answer so far. */
export class Answer {
  constructor({ rid, stops, startedAt }) {
    Object.assign(this, { rid, startedAt, content: "", reasoning: "", calls: [], finish: null, matched: null, usage: null, firstAt: null, endedAt: null, error: null });
    this.tokens = new Tokens(stops);
    this.progress = "";
  }

  /** Take one chunk of the stream. */
  take(chunk, now) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    this.content += delta.content ?? "";
    this.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    for (const part of delta.tool_calls ?? []) this.#takeCall(part);
    if (choice.token_ids || choice.logprobs) this.tokens.take(choice.token_ids ?? [], choice.logprobs?.content ?? [], now);
    if (this.firstAt === null && (this.content || this.reasoning || this.calls.length)) this.firstAt = now;
    if (choice.finish_reason) {
      this.finish = choice.finish_reason;
      this.matched = choice.matched_stop ?? null;
      this.tokens.end(this.finish, this.matched);
    }
  }

  /** The stream is over; `error` says how, where it did not end by itself. */
  end(now, error = null) {
    this.endedAt = now;
    this.error = error;
    if (this.finish === null) this.tokens.end(null, null);
  }

  #takeCall({ index, id, function: called }) {
    const call = (this.calls[index] ??= { id: null, name: "", arguments: "" });
    call.id ??= id ?? null;
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }

  /** The answer as the next request repeats it. */
  asMessage() {
    const message = { role: "assistant", content: this.content };
    const calls = this.calls.filter(Boolean);
    if (calls.length) message.tool_calls = calls.map((call, at) => ({ id: call.id ?? `call_${at}`, type: "function", function: { name: call.name, arguments: call.arguments } }));
    return message;
  }
}
