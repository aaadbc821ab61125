/** A chat: the page of a channel that is heard on every protocol, in forty lines. */

import { Refused, Trellis } from "./trellis.js";

const find = (/** @type {string} */ id) => /** @type {HTMLInputElement} */ (document.getElementById(id));
const [channel, key, state, problem, list, text] = ["channel", "key", "state", "problem", "messages", "text"].map(find);
/** @type {Trellis | undefined} */
let trellis;
let here = ""; // the channel that was joined

/** @param {import("./trellis.js").Message} message */
function show({ sender, content }) {
  const words = typeof content === "string" ? content : (content?.text ?? content?.content ?? JSON.stringify(content));
  const [line, name] = [document.createElement("p"), document.createElement("strong")];
  const called = [sender.name, sender.identity].find((each) => each && each !== "(no key)") ?? "anonymous";
  name.textContent = `${called} (${sender.protocol}) `;
  line.append(name, String(words)); // text, never markup
  list.append(line);
  list.scrollTop = list.scrollHeight;
}

function fail(/** @type {unknown} */ error) {
  if (error instanceof Refused && error.code === "closed") return; // because another channel was joined
  problem.textContent = error instanceof Error ? error.message : "";
  problem.hidden = !problem.textContent;
}

async function join() {
  trellis?.close();
  list.replaceChildren();
  fail(null);
  here = channel.value;
  const onstate = (/** @type {string} */ now, /** @type {unknown} */ error) => {
    state.textContent = now;
    if (error) fail(error);
  };
  const current = (trellis = new Trellis({ key: key.value.trim(), onstate }));
  const { messages } = await current.history(here, { newestFirst: true });
  for (const message of messages.reverse()) show(message);
  await current.subscribe(here, { message: show, direct: show }, { after: messages.at(-1)?.sequence ?? 0 });
}

function submitted(/** @type {string} */ id, /** @type {() => Promise<unknown>} */ act) {
  find(id).addEventListener("submit", (event) => {
    event.preventDefault();
    act().catch(fail);
  });
}

submitted("join", join);
submitted("write", async () => {
  await trellis?.publish(here, { content: text.value }); // which Arbor and the topic relay show as plain text
  text.value = "";
});
function enter() {
  try {
    channel.value = decodeURIComponent(location.hash.slice(1)) || "lobby";
  } catch {
    channel.value = location.hash.slice(1); // a % that encodes nothing
  }
  join().catch(fail);
}

addEventListener("hashchange", enter);
enter();
