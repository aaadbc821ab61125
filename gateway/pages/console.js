/**
 * The frame of the console: the pages by address, the key, and whether the gateway is ready.
 *
 * An address is `#/PAGE/ARGUMENT/…`; what is behind `#` stays in the browser. A page is a module with `show`, which
 * fills the element that it is given, and stops when its signal is aborted.
 */

import { OFFLINE, Refused, ROOT } from "./api.js";
import { h, setText } from "./dom.js";
import { key, keyButton } from "./key.js";
import { explain, heading } from "./parts.js";

const HEALTH_MS = 5_000;

/**
 * The pages: the first part of the address, the title, and the module.
 *
 * @typedef {{show: (place: HTMLElement, parts: string[], signal: AbortSignal) => Promise<void> | void}} Page
 * @type {{path: string, title: string, load: () => Promise<Page>}[]}
 */
const PAGES = [
  { path: "", title: "Overview", load: () => import("./overview.js") },
  { path: "channels", title: "Channels", load: () => import("./channels.js") },
  { path: "peers", title: "Peers", load: () => import("./peers.js") },
  { path: "trace", title: "Trace", load: () => import("./trace.js") },
  { path: "cluster", title: "Cluster", load: () => import("./cluster.js") },
  { path: "limits", title: "Limits", load: () => import("./limits.js") },
  { path: "keys", title: "Keys", load: () => import("./keys.js") },
  { path: "pipeline", title: "Pipeline", load: () => import("./pipeline.js") },
];

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
let leaving = new AbortController();
let failed = false; // whether the page could not be shown; it is tried again once the gateway is ready

/** Show the page that the address names; *moved* says that the user went there. */
async function route(moved = true) {
  const [path, ...parts] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  const page = PAGES.find((each) => each.path === path) ?? PAGES[0];
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  document.title = `${page.title} – Trellis`;
  for (const link of document.querySelectorAll("#pages a")) {
    const here = link.getAttribute("href") === `#/${page.path}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (here) link.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone they are wider than the page
  }
  const place = h("div", { class: "page" });
  try {
    const module = await page.load().catch(() => Promise.reject(new Refused(0, OFFLINE)));
    if (signal.aborted) return;
    main.replaceChildren(place);
    await module.show(place, parts, signal);
    failed = false;
  } catch (error) {
    if (signal.aborted) return;
    failed = true;
    if (!place.querySelector("h1")) place.append(heading(page.title));
    place.append(h("p", { class: "notice", role: "alert" }, explain(error)));
    main.replaceChildren(place);
  }
  if (moved && !signal.aborted) {
    scrollTo(0, 0);
    /** @type {HTMLElement | null} */ (place.querySelector("h1"))?.focus({ preventScroll: true });
  }
}

/** Say whether the gateway is ready. */
async function checkHealth() {
  const element = /** @type {HTMLElement} */ (document.getElementById("health"));
  let text = "no answer";
  let good = false;
  try {
    const response = await fetch(new URL("readyz", ROOT), { cache: "no-store" });
    good = response.ok;
    const { status, detail } = await response.json();
    text = detail ?? status;
  } catch {
    // the text says so
  }
  element.className = `health ${good ? "good" : "bad"}`;
  setText(element, text);
  if (good && failed) void route(false);
  setTimeout(() => void checkHealth(), HEALTH_MS);
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

document.getElementById("pages")?.append(
  h(
    "ul",
    {},
    ...PAGES.map((page) => h("li", {}, h("a", { href: `#/${page.path}` }, page.title))),
    h("li", {}, h("a", { href: "chat.html" }, "Chat")),
  ),
);
document.getElementById("skip")?.addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
keyButton(/** @type {HTMLElement} */ (document.getElementById("key")));
key.addEventListener("change", () => void route(false));
addEventListener("hashchange", () => void route());
void route(false).then(() => PAGES.forEach((page) => page.load().catch(() => {}))); // for when the gateway is away
void checkHealth();
