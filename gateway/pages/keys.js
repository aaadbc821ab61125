/** API keys, for those who may administer: list, add, rotate, revoke. */

import { get, send } from "./api.js";
import { h, setText } from "./dom.js";
import { ago, moment } from "./format.js";
import { announce, heading, labelled, notice, section } from "./parts.js";
import { table } from "./table.js";

const RIGHTS = "subscribe:* publish:* direct:* history:*";
const DAY_MS = 86_400_000;

/**
 * Show the page.
 *
 * @param {HTMLElement} place
 * @param {string[]} _parts
 * @param {AbortSignal} signal
 */
export async function show(place, _parts, signal) {
  const problem = notice();
  const secret = h("div", { class: "secret", role: "status", hidden: true });
  const act = async (/** @type {() => Promise<any>} */ call, /** @type {string} */ done) => {
    problem.clear();
    try {
      const answer = await call();
      if (answer?.secret) reveal(secret, answer);
      announce(done);
      await load();
    } catch (error) {
      problem.show(error);
    }
  };
  const list = makeTable(act);
  const load = async () => {
    try {
      list.update((await get("v1/keys", signal)).keys);
    } catch (error) {
      if (!signal.aborted) problem.show(error);
    }
  };
  place.append(
    heading("Keys", "Who may use the gateway, and for what. Make the first key with ", h("code", {}, "trellis key add NAME --admin"), "."),
    problem.element,
    secret,
    section("All keys", list.element),
    section("Add a key", makeForm(act)),
  );
  await load();
}

/** @param {(call: () => Promise<any>, done: string) => Promise<void>} act */
function makeTable(act) {
  const path = (/** @type {string} */ name) => `v1/keys/${encodeURIComponent(name)}`;
  const rotate = (/** @type {any} */ row) => act(() => send("POST", `${path(row.name)}/rotate`, { overlapSeconds: 3600 }), "A new secret was made.");
  const revoke = (/** @type {any} */ row) => {
    if (confirm(`Revoke the key ${row.name}? Its connections end at once.`)) void act(() => send("DELETE", path(row.name)), "Revoked.");
  };
  return table(
    "Keys",
    [
      { title: "Name", cell: (/** @type {any} */ row) => row.name },
      { title: "Rights", cell: (row) => row.rights.join(" ") },
      { title: "Expires", cell: (row) => (row.expires === null ? "never" : `${moment(row.expires)}${row.valid ? "" : " (expired)"}`) },
      { title: "Last used", cell: (row) => (row.lastUsed === null ? "never" : ago(row.lastUsed)), minor: true },
      {
        title: "Change",
        cell: (row) =>
          h(
            "span",
            { class: "actions" },
            h("button", { type: "button", class: "link", click: () => void rotate(row), "aria-label": `Rotate ${row.name}` }, "Rotate"),
            h("button", { type: "button", class: "link", click: () => revoke(row), "aria-label": `Revoke ${row.name}` }, "Revoke"),
          ),
      },
    ],
    (row) => row.id,
    "There are no keys to show.",
  );
}

/** @param {(call: () => Promise<any>, done: string) => Promise<void>} act */
function makeForm(act) {
  const name = /** @type {HTMLInputElement} */ (h("input", { id: "name", required: true, maxlength: 64, autocomplete: "off" }));
  const rights = /** @type {HTMLInputElement} */ (h("input", { id: "rights", required: true, value: RIGHTS, autocomplete: "off" }));
  const days = /** @type {HTMLInputElement} */ (h("input", { id: "days", type: "number", min: 1, max: 36500 }));
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const expires = days.value ? Date.now() + Number(days.value) * DAY_MS : null;
    const body = { name: name.value, rights: rights.value.split(/\s+/).filter(Boolean), expires };
    void act(() => send("POST", "v1/keys", body), "The key was made.");
  };
  return h(
    "form",
    { class: "stack", submit },
    labelled("Name", name, "Messages that are published with the key carry this name."),
    labelled("Rights", rights, "VERB:PATTERN, separated by spaces. A ! in front denies."),
    labelled("Days until it expires", days, "Leave it empty for a key that does not expire."),
    h("p", { class: "actions" }, h("button", { type: "submit" }, "Add the key")),
  );
}

/** @param {HTMLElement} place @param {{name: string, secret: string}} made */
function reveal(place, made) {
  const code = h("code", {});
  setText(code, made.secret);
  place.replaceChildren(h("p", {}, `The key of ${made.name}. Copy it now: it is not shown again.`), code);
  place.hidden = false;
}
