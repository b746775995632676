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
  queue_position: "others were before it in the queue",
  batch_full: "as many requests as may run were running",
  page_shortage: "there were no KV pages for it: others had them",
  prefill_budget: "other prompts took all the tokens of a step",
  same_prefix: "another request was computing the same prefix, which it waited to share",
  prefill_chunks: "its prompt was read in parts, beside other requests",
  retraction: "it was out of the batch: its KV pages had gone to others, and what they held was computed again",
  slow_reader: "it was paused, for its client did not read",
  resume: "its client had read on, and its place or its pages were gone",
  grammar_compile: "its grammar was being made",
};

const MATTERS = 0.1; // of the whole time

const CACHE = {
  whole: "all that can be known was",
  page_boundary: "less than a page is left",
  diverged: "what is known goes on otherwise",
  extended: "what is known ends there, and the rest is new",
  evicted: "more was known, and made room for others or was flushed",
  nothing_cached: "nothing is known that begins like this",
  namespace: "it is known under another cache_salt or extra_key, which shares nothing",
  cache_off: "the prefix cache is off",
  prompt_logprobs: "log probabilities behind that place were asked for, so it had to be computed",
};

export const cacheReason = (reason) => CACHE[reason] ?? reason.replaceAll("_", " ");
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
    .map(([reason, { ms, times }]) => ({ kind: reason, text: `For ${duration(ms)}${times > 1 ? ` (${count(times)} times)` : ""} ${waitName(reason)}.` }));
}

function longest({ stages, duration_ms: whole }) {
  const stage = [...(stages ?? [])].sort((a, b) => b.duration_ms - a.duration_ms)[0];
  if (!stage || !whole) return [];
  return [{ kind: `stage-${stage.name}`, text: `Most of its time, ${duration(stage.duration_ms)} of ${duration(whole)}, was spent ${stageName(stage.name)}.` }];
}

function cache({ cache: found, prompt_tokens: prompt, cached_tokens: cached }) {
  if (!found || !prompt || found.reason === "whole" || found.reason === "page_boundary") return [];
  const known = `${count(cached)} of its ${count(prompt)} prompt tokens were known`;
  if (found.reason !== "diverged") return [{ kind: `cache-${found.reason}`, text: `${known}: ${cacheReason(found.reason)}.` }];
  return [{ kind: "cache-diverged", text: `${cached < prompt / 2 ? "Only " : ""}${known}: at token ${count(found.diverged_at)} it goes on otherwise than the nearest prompt before it, so all from there on was read anew.` }];
}

function retractions({ retractions: times, waits: found }) {
  if (!times || found?.some(({ reason }) => reason === "retraction")) return [];
  return [{ kind: "retraction", text: `It was retracted ${count(times)} time${times > 1 ? "s" : ""}: its KV pages went to others, and what they held was computed again.` }];
}
