// The page: which view is shown (the address says it), theme, key, shortcuts, and whether the server is ready.

import { ApiError, askForKey, get, hasKey, whileShown } from "./api.js";
import { chatView } from "./chat.js";
import { byId, h } from "./dom.js";
import { laneView } from "./lane.js";
import { ledgerView } from "./ledger.js";
import { liveView, state } from "./live.js";
import { requestsView } from "./requests.js";
import { treeView } from "./tree.js";

const paths = new Set();
const server = { modalities: ["text"], hasLogprobs: false, has: (path) => paths.has(path) };
const lane = laneView();
const chat = chatView(server, (answer) => lane.take(answer));
const VIEWS = [
  { name: "chat", title: "Chat", view: chat },
  { name: "tokens", title: "Tokens", view: lane },
  { name: "live", title: "Live", view: liveView(server) },
  { name: "tree", title: "Tree", view: treeView() },
  { name: "requests", title: "Requests", view: requestsView(), needs: "/v1/requests" },
  { name: "ledger", title: "Ledger", view: ledgerView(server) },
];

function build() {
  for (const [at, { name, title, view, needs }] of VIEWS.entries()) {
    view.element.hidden = true;
    byId("main").append(view.element);
    byId("views").append(h("a", { href: `#${name}`, hidden: needs !== undefined, dataset: { needs: needs ?? "" }, "aria-keyshortcuts": String(at + 1) }, title));
  }
  byId("shortcuts").append(...VIEWS.flatMap(({ title }, at) => shortcut(String(at + 1), title)), ...shortcut("/", "Write a message"), ...shortcut("t", "Next theme"), ...shortcut("?", "This help"), ...shortcut("Esc", "Stop the answer"), ...shortcut("← →", "Move among tokens or nodes"));
}

const shortcut = (key, what) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)];

/** Show the view that the address names, with what follows a slash as its argument. */
function route() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const chosen = VIEWS.find((each) => each.name === name) ?? VIEWS[0];
  for (const each of VIEWS) each.view.element.hidden = each !== chosen;
  for (const link of byId("views").children) {
    if (link.hash === `#${chosen.name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${chosen.title} – Millstream`;
  document.body.dataset.view = chosen.name;
  chosen.view.show?.(argument(rest.join("/")));
}

function argument(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  remember("millstream.theme", theme);
}

function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "system";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // a browser that keeps nothing
  }
}

function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function onKey(event) {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) chat.stop();
  const isTyping = event.target.closest("input, textarea, select, [contenteditable], dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !byId("shortcuts-on").checked) return;
  const at = Number(event.key) - 1;
  if (VIEWS[at]) location.hash = VIEWS[at].name;
  else if (event.key === "/") openPrompt(event);
  else if (event.key === "?") byId("help-dialog").showModal();
  else if (event.key === "t") nextTheme();
}

function openPrompt(event) {
  event.preventDefault();
  location.hash = "chat";
  route(); // now: what is hidden takes no focus
  chat.focus();
}

/** Learn what the server is and can. */
async function meet() {
  try {
    const { model, endpoints } = await get("v1/capabilities", { ask: true });
    for (const { path } of endpoints) paths.add(path);
    for (const link of byId("views").children) link.hidden = link.dataset.needs !== "" && !paths.has(link.dataset.needs);
    server.modalities = model.input_modalities;
    server.hasLogprobs = model.has_logprobs;
    byId("model").textContent = model.id;
    chat.show();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("model").textContent = error.status === 401 ? "no key" : "not ready";
  }
  document.body.dataset.model = byId("model").textContent; // met, one way or the other
}

async function showHealth() {
  const { isReady, why } = await state();
  const badge = byId("health");
  const text = isReady ? "ready" : why;
  if (badge.textContent === text) return; // said once, not each time
  const wasReady = badge.dataset.ready === "true";
  badge.textContent = text;
  badge.dataset.ready = String(isReady);
  badge.className = `badge ${isReady ? "good" : "bad"}`;
  if (isReady && !wasReady) await meet();
}

build();
setTheme(THEMES.find((each) => each === recall("millstream.theme")) ?? "system");
byId("shortcuts-on").checked = recall("millstream.shortcuts") !== "off";
byId("shortcuts-on").addEventListener("change", (event) => remember("millstream.shortcuts", event.target.checked ? "on" : "off"));
byId("theme").addEventListener("click", nextTheme);
byId("help").addEventListener("click", () => byId("help-dialog").showModal());
byId("key").addEventListener("click", () => askForKey(hasKey() ? "A key is kept for this tab; an empty one forgets it." : "No key is kept."));
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names a view
  byId("main").focus();
});
document.addEventListener("keydown", onKey);
document.addEventListener("key", meet);
window.addEventListener("hashchange", route);
route();
whileShown(() => true, 3000, showHealth).now();
