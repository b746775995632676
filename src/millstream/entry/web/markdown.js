// Markdown of a model's answer as elements: headings, lists, tables, code, quotes, emphasis, links. No HTML is ever read as such.

import { h } from "./dom.js";

const MAX_DEPTH = 8; // of quotes and lists within each other
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,}\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** The elements for a text. */
export const markdown = (text) => blocks(text.split("\n"), 0);

function blocks(lines, depth) {
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if (line.trim() === "") {
      at += 1;
    } else if ((found = FENCE.exec(line))) {
      const [block, next] = fence(lines, at, found);
      made.push(block);
      at = next;
    } else if ((found = HEADING.exec(line))) {
      made.push(h(`h${Math.min(6, found[1].length + 2)}`, {}, inline(found[2])));
      at += 1;
    } else if (RULE.test(line)) {
      made.push(h("hr"));
      at += 1;
    } else if (line.startsWith(">") && depth < MAX_DEPTH) {
      const end = run(lines, at, (each) => each.startsWith(">"));
      made.push(h("blockquote", {}, blocks(lines.slice(at, end).map((each) => each.replace(/^> ?/, "")), depth + 1)));
      at = end;
    } else if (ITEM.test(line) && depth < MAX_DEPTH) {
      const [block, next] = list(lines, at, depth);
      made.push(block);
      at = next;
    } else if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "") && lines[at + 1].includes("-") && lines[at + 1].includes("|")) {
      const end = run(lines, at + 2, (each) => each.includes("|"));
      made.push(table(lines[at], lines.slice(at + 2, end)));
      at = end;
    } else {
      const end = run(lines, at + 1, (each) => each.trim() !== "" && !FENCE.test(each) && !HEADING.test(each) && !ITEM.test(each) && !each.startsWith(">"));
      made.push(h("p", {}, inline(lines.slice(at, end).join("\n"))));
      at = end;
    }
  }
  return made;
}

function run(lines, at, goesOn) {
  while (at < lines.length && goesOn(lines[at])) at += 1;
  return at;
}

function fence(lines, at, [, mark, language]) {
  const end = run(lines, at + 1, (each) => !(each.trim().startsWith(mark) && each.trim().replaceAll(mark[0], "") === ""));
  const code = h("code", {}, lines.slice(at + 1, end).join("\n"));
  const pre = h("pre", { tabindex: "0", "aria-label": language.trim() ? `Code, ${language.trim()}` : "Code" }, code);
  return [pre, end + 1];
}

function list(lines, at, depth) {
  const [, { length: indent }, mark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length !== indent || /\d/.test(found[2]) !== isOrdered) break;
    const isOutside = (each) => each.trim() !== "" && each.search(/\S/) <= indent;
    let end = run(lines, at + 1, (each) => !isOutside(each));
    while (end > at + 1 && lines[end - 1].trim() === "") end -= 1;
    const inner = lines.slice(at + 1, end);
    const shift = Math.min(...inner.filter((each) => each.trim()).map((each) => each.search(/\S/)), 99);
    const body = blocks(inner.map((each) => each.slice(shift)), depth + 1);
    items.push(h("li", {}, inline(found[3]), body));
    at = run(lines, end, (each) => each.trim() === "");
  }
  return [h(isOrdered ? "ol" : "ul", isOrdered ? { start: parseInt(mark, 10) } : {}, items), at];
}

function table(head, rows) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((each) => each.trim());
  const names = cells(head);
  const row = (line) => h("tr", {}, cells(line).slice(0, names.length).map((each) => h("td", {}, inline(each))));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, names.map((each) => h("th", {}, inline(each))))), h("tbody", {}, rows.map(row))));
}

// code, links, bare addresses, strong, emphasis, struck; each pattern takes time in the length of its text only
const INLINE = /`([^`]{1,2000})`|\[([^\][\n]{1,300})\]\(([^()\s]{1,2000})\)|(https?:\/\/[^\s<>()[\]\"'`]{1,2000})|\*\*([^*\n]{1,2000})\*\*|\*([^*\s][^*\n]{0,2000})\*|~~([^~\n]{1,2000})~~/g;

function inline(text) {
  const made = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    made.push(text.slice(at, found.index));
    at = found.index + found[0].length;
    const [, code, label, target, address, strong, emphasis, struck] = found;
    if (code !== undefined) made.push(h("code", {}, code));
    else if (label !== undefined) made.push(link(target, label, found[0]));
    else if (address !== undefined) made.push(link(address, address, address));
    else if (strong !== undefined) made.push(h("strong", {}, inline(strong)));
    else if (emphasis !== undefined) made.push(h("em", {}, inline(emphasis)));
    else made.push(h("del", {}, inline(struck)));
  }
  made.push(text.slice(at));
  return made;
}

function link(target, label, otherwise) {
  if (!/^(https?:|mailto:)/i.test(target)) return otherwise; // no script, and no path of this server
  return h("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, label);
}
