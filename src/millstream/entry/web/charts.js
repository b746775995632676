// Small pictures as SVG: a line over time, a histogram, a bar in parts. Each says in words what it shows.

import { count, duration, h, svg } from "./dom.js";

const COLOURS = ["one", "two", "three", "four", "five", "six"];
export const colour = (at) => `var(--${COLOURS[at % COLOURS.length]})`;

/** The last values of something, newest at the right. */
export function line(values, label) {
  const width = 240;
  const height = 48;
  const top = Math.max(1, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(height - 2 - (value / top) * (height - 6)).toFixed(1)}`).join(" ");
  return svg("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: now ${count(values.at(-1) ?? 0)}, at most ${count(top)}` },
    svg("line", { class: "axis", x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
    values.length > 1 && svg("polyline", { points, fill: "none", stroke: "var(--accent)", "stroke-width": 2, "vector-effect": "non-scaling-stroke" }));
}

/** A histogram of seconds as bars, empty buckets at the ends left out. */
export function bars({ buckets }, label) {
  let from = buckets.findIndex((each) => each.count > 0);
  const to = buckets.findLastIndex((each) => each.count > 0) + 1;
  from = Math.max(0, from);
  const shown = buckets.slice(from, to);
  const top = Math.max(...shown.map((each) => each.count));
  const width = 260;
  const bar = width / shown.length;
  const upper = (each) => (each.below === Infinity ? "more" : duration(each.below * 1000));
  return svg("svg", { class: "bars", viewBox: `0 0 ${width} 84`, role: "img", "aria-label": `${label}: ${shown.map((each) => `up to ${upper(each)}: ${count(each.count)}`).join("; ")}` },
    shown.map((each, at) => svg("rect", { x: at * bar + 0.5, y: 66 - (each.count / top) * 62, width: Math.max(1, bar - 1), height: (each.count / top) * 62, fill: "var(--accent)" }, svg("title", {}, `up to ${upper(each)}: ${count(each.count)}`))),
    svg("line", { class: "axis", x1: 0, x2: width, y1: 66, y2: 66 }),
    svg("text", { x: 0, y: 80 }, `≤ ${upper(shown[0])}`),
    shown.length > 1 && svg("text", { x: width, y: 80, "text-anchor": "end" }, `≤ ${upper(shown.at(-1))}`));
}

/** One bar whose parts are `[name, amount, words]`, with a legend. */
export function parts(pieces, label) {
  const whole = pieces.reduce((sum, [, amount]) => sum + amount, 0) || 1;
  let x = 0;
  const rects = pieces.map(([name, amount, words], at) => {
    const width = (100 * amount) / whole;
    const rect = svg("rect", { x, y: 0, width, height: 10, fill: colour(at) }, svg("title", {}, `${name}: ${words}`));
    x += width;
    return rect;
  });
  return h("figure", { class: "parts" },
    svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${pieces.map(([name, , words]) => `${name} ${words}`).join(", ")}` }, rects),
    h("figcaption", {}, pieces.map(([name, , words], at) => h("span", { class: "key" }, swatch(at), ` ${name} ${words}`))));
}

const swatch = (at) => svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { width: 10, height: 10, fill: colour(at) }));
