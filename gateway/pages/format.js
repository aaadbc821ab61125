/** Writes numbers, times and names for people. A unit stays on the line of its number. */

const UNITS = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
];

/** How the protocols are called by people, by their names in `/v1`. */
export const PROTOCOLS = new Map([
  ["topic_relay", "topic relay"],
  ["sprout", "Sprout"],
  ["streamr", "Streamr"],
  ["rest", "REST"],
]);

/**
 * The title of a protocol.
 *
 * @param {string} name
 */
export function title(name) {
  return PROTOCOLS.get(name) ?? name;
}

/**
 * A number with separators; one below 10 that is no whole number keeps a digit.
 *
 * @param {number} value
 */
export function number(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

/**
 * A size in bytes.
 *
 * @param {number} value
 */
export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${number(value)}\u00a0${unit}`;
    value /= 1024;
  }
  return "";
}

/**
 * A duration, by its two largest units.
 *
 * @param {number} seconds
 */
export function duration(seconds) {
  const parts = [];
  let rest = Math.max(0, Math.floor(seconds));
  for (const [size, unit] of /** @type {[number, string][]} */ (UNITS)) {
    if (rest >= size || parts.length) parts.push(`${Math.floor(rest / size)} ${unit}`);
    rest %= size;
  }
  if (parts.length < 2) parts.push(`${rest} s`);
  return parts.slice(0, 2).join(" ");
}

/**
 * A short time, such as a latency.
 *
 * @param {number} ms
 */
export function milliseconds(ms) {
  if (ms < 1) return `${Math.round(ms * 1000)}\u00a0µs`;
  return ms < 1000 ? `${number(ms)}\u00a0ms` : `${number(ms / 1000)}\u00a0s`;
}

/**
 * A moment: the time of day, with the date if it is another day.
 *
 * @param {number} ms since 1970
 */
export function moment(ms) {
  const then = new Date(ms);
  const time = then.toLocaleTimeString("en-GB");
  return then.toDateString() === new Date().toDateString() ? time : `${day(ms)}, ${time}`;
}

/**
 * A date.
 *
 * @param {number} ms since 1970
 */
export function day(ms) {
  return new Date(ms).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}

/**
 * How long ago something was.
 *
 * @param {number} ms since 1970
 */
export function ago(ms) {
  const seconds = (Date.now() - ms) / 1000;
  return seconds < 2 ? "just now" : `${duration(seconds)} ago`;
}

/**
 * The beginning of a long text.
 *
 * @param {string} text
 * @param {number} length in characters
 */
export function shorten(text, length) {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}
