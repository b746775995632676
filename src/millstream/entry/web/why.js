// Why a request took as long as it did, in sentences, from what /v1/requests/{rid} says of it. Pure.

import { count, duration } from "./dom.js";

const STAGES = {
  template: "making the prompt of the messages",
  tokenize: "cutting the prompt into tokens",
  grammar: "making its grammar",
  send: "handing it to the scheduler, which was in a step",
  queue: "waiting in the queue",
  prefill: "reading the prompt",
  decode: "making tokens",
  detokenize: "making text of tokens",
  write: "sending the answer",
};

const WAITS = {
  queue_position: "it waited behind others in the queue",
  page_shortage: "it waited for KV pages: others had them",
  prefill_chunks: "its prompt was read in parts, beside other requests",
  retraction: "it was retracted: its KV pages went to others, and what they held was computed again",
  grammar_compile: "its grammar was being made",
  slow_reader: "its client did not read: it was paused until the client had read on",
  same_prefix: "another request was computing the same prefix, and it waited to share it",
};

const MATTERS = 0.1; // of the whole time

export const stageName = (name) => STAGES[name] ?? name;
export const waitName = (reason) => WAITS[reason] ?? reason.replaceAll("_", " ");

/** Sentences, what took longest first. */
export function why(request) {
  return [...waits(request), ...longest(request), ...cache(request), ...retractions(request)];
}

function waits({ waits: found, duration_ms: whole }) {
  const sums = new Map();
  for (const { reason, duration_ms: ms } of found ?? []) {
    const known = sums.get(reason) ?? { ms: 0, times: 0 };
    sums.set(reason, { ms: known.ms + ms, times: known.times + 1 });
  }
  return [...sums]
    .filter(([reason, { ms }]) => ms >= MATTERS * whole || reason === "retraction" || reason === "slow_reader")
    .sort(([, a], [, b]) => b.ms - a.ms)
    .map(([reason, { ms, times }]) => ({ kind: reason, text: `For ${duration(ms)}${times > 1 ? `, ${count(times)} times,` : ""} ${waitName(reason)}.` }));
}

function longest({ stages, duration_ms: whole }) {
  const stage = [...(stages ?? [])].sort((a, b) => b.duration_ms - a.duration_ms)[0];
  if (!stage || !whole) return [];
  return [{ kind: `stage-${stage.name}`, text: `Most of its time, ${duration(stage.duration_ms)} of ${duration(whole)}, was spent ${stageName(stage.name)}.` }];
}

function cache({ cache: found, prompt_tokens: prompt, cached_tokens: cached }) {
  if (!found || !prompt || cached >= prompt - 1) return [];
  const known = `${count(cached)} of its ${count(prompt)} prompt tokens were known`;
  if (found.diverged_at === null || found.diverged_at === undefined) return cached ? [{ kind: "cache", text: `${known}; the others had to be read.` }] : [];
  return [{ kind: "cache-miss", text: `Only ${known}: at token ${count(found.diverged_at)} it goes on otherwise than the nearest prompt before it, so all behind that place was read again.` }];
}

function retractions({ retractions: times, waits: found }) {
  if (!times || found?.some(({ reason }) => reason === "retraction")) return [];
  return [{ kind: "retraction", text: `It was retracted ${count(times)} time${times > 1 ? "s" : ""}: its KV pages went to others, and what they held was computed again.` }];
}
