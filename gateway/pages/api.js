/**
 * Asks the gateway. Requests go to `/v1` beside the folder of the console, and carry the key of this tab, if there is
 * one, in a header: an address that is logged never contains it.
 */

import { key } from "./key.js";

const MAX_EMPTY = 32; // answers without a channel; the gateway looked at 4,096 for each, and has 100,000 by default

/** What is said when there is no answer. */
export const OFFLINE = "The gateway does not answer.";

/** The address below which the gateway's paths are. */
export const ROOT = new URL("../", import.meta.url);

/** A request that the gateway refused (RFC 9457). */
export class Refused extends Error {
  /**
   * @param {number} status 0 if there was no answer
   * @param {string} detail
   */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/**
 * Ask, and return the answer; `Refused` if it is not a success.
 *
 * @param {string} path below the root, without a leading slash
 * @param {{method?: string, body?: string, signal?: AbortSignal, headers?: Record<string, string>}} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, { method = "GET", body, signal, headers = {} } = {}) {
  const secret = key.secret;
  const sent = { ...headers, ...(secret ? { Authorization: `Bearer ${secret}` } : {}) };
  const options = { method, body, signal, headers: sent, cache: /** @type {RequestCache} */ ("no-store") };
  let response;
  try {
    response = await fetch(new URL(path, ROOT), options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, OFFLINE);
  }
  if (response.ok) return response;
  if (response.status === 401 && key.secret === secret) key.demand(); // not if a key was given meanwhile
  throw new Refused(response.status, await detail(response));
}

/**
 * Ask for JSON.
 *
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, signal) {
  return (await request(path, { signal })).json();
}

/**
 * Send *value* as JSON; return the answer, null if it has no body.
 *
 * @param {string} method
 * @param {string} path
 * @param {unknown} [value]
 * @returns {Promise<any>}
 */
export async function send(method, path, value) {
  const body = value === undefined ? undefined : JSON.stringify(value);
  const headers = body === undefined ? undefined : { "Content-Type": "application/json" };
  const response = await request(path, { method, body, headers });
  return response.status === 204 ? null : response.json();
}

/**
 * The path of a channel; `Refused` for one called . or .., which browsers take out of every address (WHATWG URL).
 *
 * @param {string} name
 * @param {string} [rest] behind it
 */
export function channelPath(name, rest = "") {
  if (/^\.\.?$/.test(name)) throw new Refused(0, `A web page cannot ask for a channel called ${name} by its address.`);
  return `v1/channels/${encodeURIComponent(name)}${rest}`;
}

/**
 * The first channels that the caller may see, by name, in as few answers as the gateway gives.
 *
 * @param {number} count of channels, or a few more
 * @param {Record<string, string>} wanted parameters of the list, such as `contains`
 * @param {AbortSignal} signal
 * @returns {Promise<{channels: any[], more: boolean}>} and whether there may be more of them
 */
export async function listChannels(count, wanted, signal) {
  /** @type {any[]} */
  const channels = [];
  /** @type {string | null} */
  let path = `v1/channels?${new URLSearchParams({ ...wanted, limit: "200" })}`;
  for (let empty = 0; path !== null && channels.length < count && empty < MAX_EMPTY; ) {
    const answer = await get(path, signal);
    channels.push(...answer.channels);
    if (!answer.channels.length) empty += 1;
    path = answer.next?.slice(1) ?? null;
  }
  return { channels, more: path !== null };
}

/** @param {Response} response */
async function detail(response) {
  try {
    return (await response.json()).detail ?? response.statusText;
  } catch {
    return response.statusText || `The answer was ${response.status}.`;
  }
}
