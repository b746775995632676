// Elements from words. Text becomes text, never markup: there is no markup made of strings in this page, and the policy forbids it.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") Object.assign(element.style, value); // properties of the object, which the policy allows
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element; children are nodes, texts, lists of them, or nothing. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Put `children` in the place of all that is in `element`. */
export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Say something to who listens rather than looks. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** A list of facts: pairs of a name and what stands beside it. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

export const notice = (text, kind = "") => h("p", { class: `notice ${kind}` }, text);

const integers = new Intl.NumberFormat("en");

/** A count, with its thousands kept apart. */
export const count = (value) => (value === null || value === undefined ? "–" : integers.format(Math.round(value)));

/** Milliseconds as somebody would say them. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 100) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 100_000 ? `${(ms / 1000).toFixed(2)} s` : `${Math.round(ms / 1000)} s`;
}

export const share = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)} %` : "–");

/** Let arrow keys, Home and End move the focus among `items()`; only one of them is in the order of Tab. */
export function rove(container, items, { onFocus = () => {} } = {}) {
  container.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    let next = null;
    if (at >= 0 && step) next = all[Math.min(all.length - 1, Math.max(0, at + step))];
    else if (at >= 0 && event.key === "Home") next = all[0];
    else if (at >= 0 && event.key === "End") next = all[all.length - 1];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  container.addEventListener("focusin", (event) => {
    const all = items();
    if (!all.includes(event.target)) return;
    for (const item of all) item.setAttribute("tabindex", item === event.target ? "0" : "-1");
    onFocus(event.target);
  });
}
