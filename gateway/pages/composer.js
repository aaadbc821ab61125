/** The box below a conversation: it publishes, replies to a message, or writes to one peer alone. */

import { channelPath, send } from "./api.js";
import { h, setText, toggle } from "./dom.js";
import { shorten } from "./format.js";
import { plain } from "./messages.js";
import { announce, notice, peerName } from "./parts.js";

/**
 * A box for the channel called *channel*.
 *
 * @param {string} channel
 */
export function composer(channel) {
  const problem = notice();
  const field = /** @type {HTMLTextAreaElement} */ (
    h("textarea", { id: "write", rows: 2, required: true, placeholder: "Write a message", "aria-describedby": "write-hint" })
  );
  const json = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", id: "as-json" }));
  const label = h("label", { for: "write", class: "unseen" }, "Message");
  const target = h("span");
  const context = h("p", { class: "context", hidden: true }, target, h("button", { type: "button", class: "link", click: () => reset() }, "Cancel"));
  const button = h("button", { type: "submit" }, "Publish");
  /** @type {import("./messages.js").Message | null} */
  let parent = null;
  /** @type {any} */
  let receiver = null;

  function reset() {
    [parent, receiver] = [null, null];
    toggle(context, false);
    setText(button, "Publish");
    setText(label, "Message");
  }

  /** @param {string} about @param {string} verb */
  function aim(about, verb) {
    setText(target, about);
    setText(label, about);
    setText(button, verb);
    toggle(context, true);
    field.focus();
  }

  async function submit(/** @type {Event} */ event) {
    event.preventDefault();
    problem.clear();
    try {
      const content = read(field.value, json.checked, parent?.id ?? null);
      if (receiver === null) await send("POST", channelPath(channel, "/messages"), content);
      else await send("POST", channelPath(channel, `/peers/${receiver.number}/messages`), content);
      announce(receiver === null ? "Published." : `Sent to ${peerName(receiver)}.`);
      field.value = "";
      reset();
    } catch (error) {
      problem.show(error);
    }
    field.focus();
  }

  const form = h(
    "form",
    { class: "composer", submit },
    context,
    problem.element,
    label,
    field,
    h(
      "div",
      { class: "actions" },
      h("span", { class: "choice" }, json, h("label", { for: "as-json" }, "as JSON")),
      h("span", { class: "hint", id: "write-hint" }, "Enter sends. Shift+Enter starts a new line."),
      button,
    ),
  );
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      /** @type {HTMLFormElement} */ (form).requestSubmit();
    }
  });

  return {
    element: form,
    /** @param {import("./messages.js").Message} message */
    answer(message) {
      reset();
      parent = message;
      aim(`Reply to ${peerName(message.sender)}: ${shorten(plain(message.content), 60)}`, "Reply");
    },
    /** @param {any} peer */
    address(peer) {
      reset();
      receiver = peer;
      aim(`Only to ${peerName(peer)}, peer ${peer.number}`, "Send");
    },
  };
}

/**
 * The content to send: the text as `content`, which every protocol's clients show as text, or the JSON value in it; an
 * answer is an object that says what it answers.
 *
 * @param {string} text
 * @param {boolean} asJson
 * @param {string | null} parent
 */
function read(text, asJson, parent) {
  const value = asJson ? parse(text) : { content: text };
  if (parent === null) return value;
  if (value !== null && typeof value === "object" && !Array.isArray(value)) return { ...value, inReplyTo: parent };
  throw new Error("A reply in JSON has to be an object.");
}

/** @param {string} text */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error instanceof Error ? error.message : error}`);
  }
}
