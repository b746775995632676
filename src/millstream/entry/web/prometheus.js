// The text format of /metrics, read: families by name, each a list of samples. Pure.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = { n: "\n", "\\": "\\", '"': '"' };

/** Samples by name: `[{labels, value}]`. */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const found = SAMPLE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\(.)/g, (_, sign) => ESCAPES[sign] ?? sign);
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value: number(found[3]) });
  }
  return samples;
}

const number = (text) => ({ "+Inf": Infinity, "-Inf": -Infinity })[text] ?? Number(text);

/** The samples of one name added up; null where there is none. */
export function total(samples, name, labels = {}) {
  const found = (samples.get(name) ?? []).filter((each) => Object.entries(labels).every(([key, value]) => each.labels[key] === value));
  return found.length ? found.reduce((sum, each) => sum + each.value, 0) : null;
}

/**
 * A histogram, its labels added up: `{buckets: [{below, count}], sum, count}`, each bucket with its own observations only.
 * null where there is none, or nothing was observed.
 */
export function histogram(samples, name) {
  const upTo = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const below = number(labels.le);
    upTo.set(below, (upTo.get(below) ?? 0) + value);
  }
  const whole = total(samples, `${name}_count`);
  if (!upTo.size || !whole) return null;
  const bounds = [...upTo.keys()].sort((a, b) => a - b);
  const buckets = bounds.map((below, at) => ({ below, count: upTo.get(below) - (at ? upTo.get(bounds[at - 1]) : 0) }));
  return { buckets, sum: total(samples, `${name}_sum`), count: whole };
}

/** The value below which the share `q` of all observations lies, taken to be even within a bucket. */
export function quantile({ buckets, count }, q) {
  let seen = 0;
  let from = 0;
  for (const bucket of buckets) {
    if (seen + bucket.count >= q * count) {
      if (bucket.below === Infinity) return from;
      return from + ((bucket.below - from) * (q * count - seen)) / Math.max(bucket.count, 1e-9);
    }
    seen += bucket.count;
    from = bucket.below;
  }
  return from;
}
