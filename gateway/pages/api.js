/**
 * Asks the gateway. Requests go to `/v1` beside the folder of the console, and carry the key of this tab, if there is
 * one, in a header: an address that is logged never contains it.
 */

import { key } from "./key.js";

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
    throw new Refused(0, "The gateway does not answer.");
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
 * The path of a channel.
 *
 * @param {string} name
 * @param {string} [rest] behind it
 */
export function channelPath(name, rest = "") {
  return `v1/channels/${encodeURIComponent(name)}${rest}`;
}

/** @param {Response} response */
async function detail(response) {
  try {
    return (await response.json()).detail ?? response.statusText;
  } catch {
    return response.statusText || `The answer was ${response.status}.`;
  }
}
