/**
 * Reads an event stream (WHATWG HTML, section 9.2) with `fetch`, because an `EventSource` can send the key in no other
 * place than the address, which proxies log.
 */

import { request, Refused } from "./api.js";

const RETRY_MS = [500, 1_000, 2_000, 5_000, 10_000];
const FINAL = [401, 403, 404]; // refusals that another attempt does not change

/**
 * One event: its name, its data, and its id, if it has one.
 *
 * @typedef {{name: string, data: any, id: string | null}} StreamEvent
 */

/**
 * Listen until *signal* is aborted, and connect again after each interruption, from the last id that was seen.
 *
 * @param {string} path
 * @param {number} after the last sequence that is known
 * @param {(event: StreamEvent) => void} receive
 * @param {(state: string) => void} tell gets `open`, `waiting`, or the reason for which it ended
 * @param {AbortSignal} signal
 */
export async function listen(path, after, receive, tell, signal) {
  let last = after;
  let failures = 0;
  while (!signal.aborted) {
    try {
      const response = await request(`${path}?after=${last}`, { signal, headers: { Accept: "text/event-stream" } });
      failures = 0;
      tell("open");
      for await (const event of events(response)) {
        if (event.id !== null) last = Number(event.id);
        receive(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && FINAL.includes(error.status)) {
        tell(error.message);
        return;
      }
    }
    if (signal.aborted) return;
    tell("waiting");
    await pause(RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)], signal);
  }
}

/**
 * The events in a response.
 *
 * @param {Response} response
 * @returns {AsyncGenerator<StreamEvent>}
 */
export async function* events(response) {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const event = parse(part);
      if (event !== null) yield event;
    }
  }
}

/**
 * The event in one block of lines; null if it is a comment.
 *
 * @param {string} block
 * @returns {StreamEvent | null}
 */
export function parse(block) {
  let name = "message";
  let id = null;
  const data = [];
  for (const line of block.split("\n")) {
    const [field, value] = divide(line);
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
    else if (field === "id") id = value;
  }
  return data.length ? { name, id, data: JSON.parse(data.join("\n")) } : null;
}

/** @param {string} line */
function divide(line) {
  const at = line.indexOf(":");
  return at < 0 ? [line, ""] : [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
}

/**
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
