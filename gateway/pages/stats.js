/**
 * Follows `GET /v1/stats`: one poll for all pages, and a history of five minutes that stays while pages change. Nothing
 * is asked while the page is hidden.
 */

import { get } from "./api.js";
import { key } from "./key.js";

const EVERY_MS = 2_000;
const KEPT = 150; // samples

/**
 * The answer of `/v1/stats` and when it came.
 *
 * @typedef {{time: number, stats: any}} Sample
 */

class Stats extends EventTarget {
  /** @type {Sample[]} */
  samples = [];
  /** @type {unknown} why there is no newer sample */
  error = null;
  #timer = 0;
  #users = 0;

  /** The newest answer, or null. */
  get latest() {
    return this.samples.at(-1)?.stats ?? null;
  }

  /**
   * Call *show* now and after each poll, until *signal* is aborted.
   *
   * @param {() => void} show
   * @param {AbortSignal} signal
   */
  follow(show, signal) {
    this.addEventListener("change", show, { signal });
    if (this.#users++ === 0) void this.#poll();
    signal.addEventListener("abort", () => {
      this.#users -= 1;
    });
    if (this.latest !== null || this.error !== null) show();
  }

  /** Forget what was seen with another key. */
  restart() {
    this.samples = [];
    this.error = null;
    if (this.#users) void this.#poll();
  }

  /**
   * The change of *read* between samples, for each second: a point for each sample but the first.
   *
   * @param {(stats: any) => number} read
   * @returns {{time: number, value: number}[]}
   */
  rates(read) {
    const points = [];
    for (let at = 1; at < this.samples.length; at++) {
      const [before, now] = [this.samples[at - 1], this.samples[at]];
      const change = Math.max(0, read(now.stats) - read(before.stats));
      points.push({ time: now.time, value: (change * 1000) / Math.max(1, now.time - before.time) });
    }
    return points;
  }

  /**
   * What *read* was in each sample.
   *
   * @param {(stats: any) => number} read
   * @returns {{time: number, value: number}[]}
   */
  values(read) {
    return this.samples.map(({ time, stats }) => ({ time, value: read(stats) }));
  }

  async #poll() {
    clearTimeout(this.#timer);
    if (!document.hidden) {
      try {
        const stats = await get("v1/stats");
        if (this.latest !== null && stats.uptimeSeconds < this.latest.uptimeSeconds) this.samples = []; // it was restarted
        this.samples = [...this.samples, { time: Date.now(), stats }].slice(-KEPT);
        this.error = null;
      } catch (error) {
        this.error = error;
      }
      this.dispatchEvent(new Event("change"));
    }
    clearTimeout(this.#timer);
    if (this.#users) this.#timer = setTimeout(() => void this.#poll(), EVERY_MS);
  }
}

/** The statistics of the gateway. */
export const stats = new Stats();

key.addEventListener("change", () => stats.restart());

/**
 * The sum of one count over all protocols.
 *
 * @param {any} stats
 * @param {string} name such as `messages`
 */
export function total(stats, name) {
  return Object.values(stats.protocols).reduce((sum, /** @type {any} */ row) => sum + (row[name] ?? 0), 0);
}
