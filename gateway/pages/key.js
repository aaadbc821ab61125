/**
 * The API key of this tab. It is kept in the tab's session storage, which ends with the tab, and is sent in a header.
 * A dialog asks for it when the gateway does.
 */

import { h, setText } from "./dom.js";

const NAME = "trellis-key";

class Key extends EventTarget {
  #asking = false;

  /** The secret, or null. */
  get secret() {
    return sessionStorage.getItem(NAME);
  }

  /**
   * Keep *secret*, or forget it if it is empty, and tell listeners of `change`.
   *
   * @param {string} secret
   */
  keep(secret) {
    if (secret) sessionStorage.setItem(NAME, secret);
    else sessionStorage.removeItem(NAME);
    this.dispatchEvent(new Event("change"));
  }

  /** Ask because a request was refused without a valid key; once, until the dialog is closed. */
  demand() {
    this.ask(this.secret ? "The gateway does not know this key, or not any more." : "This gateway asks for a key.");
  }

  /**
   * Open the dialog.
   *
   * @param {string} reason
   */
  ask(reason) {
    if (this.#asking) return;
    this.#asking = true;
    const dialog = makeDialog(reason, this.secret ?? "", (secret) => this.keep(secret));
    dialog.addEventListener("close", () => {
      this.#asking = false;
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  }
}

/** The key of this tab. */
export const key = new Key();

/**
 * Show on *button* whether there is a key; it opens the dialog.
 *
 * @param {HTMLElement} button
 */
export function keyButton(button) {
  const show = () => setText(button, key.secret ? "Change key" : "Enter key");
  button.addEventListener("click", () => key.ask("A key says who you are, and what you may do."));
  key.addEventListener("change", show);
  show();
}

/**
 * @param {string} reason
 * @param {string} secret
 * @param {(secret: string) => void} keep
 */
function makeDialog(reason, secret, keep) {
  const field = /** @type {HTMLInputElement} */ (
    h("input", { id: "key-field", type: "password", autocomplete: "off", spellcheck: "false", value: secret })
  );
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": "key-title" }));
  const close = (/** @type {string | null} */ kept) => {
    dialog.close();
    if (kept !== null) keep(kept);
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    close(field.value.trim());
  };
  dialog.append(
    h(
      "form",
      { class: "stack", submit },
      h("h2", { id: "key-title" }, "Key"),
      h("p", {}, reason),
      h("label", { for: "key-field" }, "API key"),
      field,
      h("p", { class: "hint" }, "It stays in this tab and is gone when you close it. ", h("code", {}, "trellis key add NAME"), " makes one."),
      h(
        "p",
        { class: "actions" },
        h("button", { type: "submit" }, "Use this key"),
        secret ? h("button", { type: "button", class: "quiet", click: () => close("") }, "Forget it") : null,
        h("button", { type: "button", class: "quiet", click: () => close(null) }, "Cancel"),
      ),
    ),
  );
  return dialog;
}
