// The prefix tree as a picture: each node a bar as long as its tokens are many, its children to the right of it.

import { get } from "./api.js";
import { count, facts, h, replace, rove, svg } from "./dom.js";
import { wording } from "./messages.js";

const ROW = 30;
const BAR = 20;
const GAP = 18;
const MAX_LABEL = 26;

export function treeView() {
  const picture = h("div", { class: "scroll", id: "tree-picture" });
  const detail = h("div", { class: "card", id: "node", "aria-live": "polite" }, h("p", { class: "quiet" }, "Choose a node: by mouse, or with the arrow keys."));
  const summary = h("p", { id: "tree-summary", class: "quiet" });
  const size = h("select", { id: "tree-size", "aria-label": "Nodes shown" }, [50, 200, 1000].map((each) => h("option", { value: each, selected: each === 200 }, `${each} nodes`)));
  const refresh = h("button", { type: "button", id: "tree-refresh" }, "Look again");
  const element = h("section", { class: "view", id: "tree", "aria-label": "Prefix tree" },
    h("h1", {}, "Prefix tree"), h("p", { class: "quiet" }, "Prompts that begin alike share these pages. A node in use is filled; the others make room where pages are needed, the least recently used first."),
    h("div", { class: "bar" }, refresh, h("label", { class: "check" }, size)), summary, picture, detail);
  let nodes = [];
  rove(picture, () => [...picture.querySelectorAll("[role=treeitem]")], { onFocus: (item) => choose(Number(item.dataset.id)) });

  function choose(id) {
    for (const item of picture.querySelectorAll("[role=treeitem]")) item.setAttribute("aria-selected", String(Number(item.dataset.id) === id));
    replace(detail, describe(nodes, id));
  }

  async function look() {
    element.dataset.state = "asked";
    try {
      const tree = await get(`debug/radix?max_nodes=${size.value}`, { ask: true });
      nodes = tree.nodes;
      summary.textContent = `${count(tree.pages_cached)} pages of ${count(tree.page_size)} tokens in the tree, ${count(tree.pages_evictable)} of them could make room, ${count(tree.pins)} pins; ${count(nodes.length)} nodes shown`;
      replace(picture, nodes.length ? draw(nodes) : h("p", {}, "The tree is empty: no prompt was long enough to fill a page yet."));
      element.dataset.nodes = String(nodes.length);
      element.dataset.state = "shown";
    } catch (error) {
      element.dataset.state = "error";
      replace(picture, h("p", { class: "notice bad", role: "alert" }, wording(error)));
    }
  }

  refresh.addEventListener("click", look);
  size.addEventListener("change", look);
  return { element, show: look };
}

/** Rows from top to bottom in the order of a walk; a node starts where its parent ends. */
function draw(nodes) {
  const children = new Map();
  for (const node of nodes) {
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(node);
  }
  const scale = (tokens) => 40 + 26 * Math.log2(1 + tokens / 16);
  const placed = new Map();
  const open = [...(children.get(null) ?? [])].reverse().map((node) => [node, 4, 1]);
  let row = 0;
  let right = 0;
  while (open.length) { // no recursion: a chat's tree is as deep as it has turns
    const [node, x, level] = open.pop();
    const width = scale(node.tokens);
    placed.set(node.id, { node, x, y: row * ROW + 6, width, level });
    right = Math.max(right, x + width);
    row += 1;
    for (const child of [...(children.get(node.id) ?? [])].reverse()) open.push([child, x + width + GAP, level + 1]);
  }
  const all = [...placed.values()];
  const lines = all.filter(({ node }) => node.parent !== null).map(({ node, x, y }) => {
    const from = placed.get(node.parent);
    const left = from.x + from.width;
    return svg("path", { d: `M${left} ${from.y + BAR / 2}H${left + GAP / 2}V${y + BAR / 2}H${x}`, fill: "none", stroke: "var(--border)" });
  });
  const width = right + 8 + MAX_LABEL * 7;
  const height = row * ROW + 8;
  return svg("svg", { role: "tree", "aria-label": "Prefix tree", width, height, viewBox: `0 0 ${width} ${height}` }, lines, all.map((each, at) => item(each, at)));
}

function item({ node, x, y, width, level }, at) {
  const words = node.text.replace(/\s+/g, " ");
  const text = words.length > MAX_LABEL ? `${words.slice(0, MAX_LABEL)}…` : words;
  return svg("g", {
    role: "treeitem", tabindex: at === 0 ? "0" : "-1", class: "node", dataset: { id: node.id, pins: node.pins }, "aria-level": level,
    "aria-label": `${count(node.tokens)} tokens${node.pins ? `, in use by ${count(node.pins)}` : ""}: ${words.slice(0, 80)}`,
    onclick: (event) => event.currentTarget.focus(),
  },
  svg("rect", { x, y, width, height: BAR, rx: 4, fill: node.pins ? "var(--accent)" : "var(--surface)", stroke: "var(--border)" }),
  svg("text", { x: x + 6, y: y + 14, style: { fill: node.pins ? "var(--on-accent)" : "var(--text)" } }, count(node.tokens)),
  node.children === 0 && svg("text", { x: x + width + 6, y: y + 14 }, text), // the others have their children there
  svg("title", {}, words));
}

function describe(nodes, id) {
  const node = nodes[id];
  const above = [];
  for (let at = node.parent; at !== null; at = nodes[at].parent) above.unshift(nodes[at]);
  const before = above.reduce((sum, each) => sum + each.tokens, 0);
  return [
    h("h2", {}, `Node of ${count(node.tokens)} tokens`),
    facts([
      ["Stands", before ? `behind ${count(before)} tokens in ${count(above.length)} node${above.length > 1 ? "s" : ""}` : "at the beginning of a prompt"],
      ["Pages", count(node.pages)],
      ["In use by", node.pins ? `${count(node.pins)} request${node.pins > 1 ? "s" : ""}` : "nobody: it can make room"],
      ["Last used", node.uses_ago === 0 ? "by the tree's last change" : `${count(node.uses_ago)} uses of the tree ago`],
      ["Goes on in", `${count(node.children)} node${node.children === 1 ? "" : "s"}`],
      ["Namespace", `${node.namespace}: prompts of another share nothing with it`],
    ]),
    h("pre", { tabindex: "0", "aria-label": "Its text", class: "wrap" }, node.text),
  ];
}
