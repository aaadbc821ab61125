/** Small pictures of numbers over time, as SVG, each with a text for those who do not see it. */

import { h, svg, toggle } from "./dom.js";
import { number, title } from "./format.js";

const SPAN_MS = 300_000; // the time from left to right

/**
 * @typedef {{time: number, value: number}} Point
 * @typedef {{name: string, points: Point[]}} Series
 */

/**
 * A line without axes that fits beside a number; what it shows is said there.
 */
export function sparkline() {
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const element = svg(
    "svg",
    { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    area,
    line,
  );
  return {
    element,
    /** @param {Point[]} points */
    update(points) {
      const path = trace(points, Math.max(...points.map((point) => point.value), 1e-9), 100, 22, 1);
      line.setAttribute("d", path);
      area.setAttribute("d", path && `${path}V24H${100 - width(points, 100)}Z`);
    },
  };
}

/**
 * Lines of several series on one scale, with a legend.
 *
 * @param {string} name what is shown, for the text
 * @param {(value: number) => string} [write] how a value is written
 */
export function lines(name, write = number) {
  const picture = svg("svg", { class: "plot", viewBox: "0 0 600 160", preserveAspectRatio: "none", "aria-hidden": "true" });
  const top = h("span", { class: "scale" });
  const legend = h("ul", { class: "legend" });
  const empty = h("p", { class: "hint" }, "Collecting data…");
  const element = h(
    "figure",
    { class: "chart" },
    h("div", { class: "frame" }, top, picture, empty),
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, "5 min ago"), h("span", {}, "now")),
    legend,
    h("figcaption", { class: "unseen" }, name),
  );
  picture.append(...[40, 80, 120].map((y) => svg("line", { class: "grid", x1: 0, x2: 600, y1: y, y2: y })));

  /** @param {Series[]} series */
  function update(series) {
    const highest = nice(Math.max(...series.flatMap((each) => each.points.map((point) => point.value)), 0));
    top.textContent = write(highest);
    toggle(empty, !series.some((each) => each.points.length > 1));
    picture.querySelectorAll("path").forEach((path) => path.remove());
    picture.append(
      ...series.map((each) => svg("path", { class: `line ${each.name}`, d: trace(each.points, highest, 600, 156, 2) })),
    );
    legend.replaceChildren(
      ...series.map((each) =>
        h("li", { class: each.name }, title(each.name), " ", h("b", {}, write(each.points.at(-1)?.value ?? 0))),
      ),
    );
  }

  return { element, update };
}

/**
 * The least round number that is not below *value*.
 *
 * @param {number} value
 */
export function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

/**
 * The quantile of a histogram of [upper bound, count].
 *
 * @param {[number, number][]} cells
 * @param {number} share
 * @returns {number | null} null if nothing was counted
 */
export function quantile(cells, share) {
  const all = cells.reduce((sum, [, count]) => sum + count, 0);
  let left = all * share;
  for (const [bound, count] of cells) {
    left -= count;
    if (count && left <= 0) return bound;
  }
  return null;
}

/**
 * @param {Point[]} points
 * @param {number} highest
 * @param {number} wide
 * @param {number} high
 * @param {number} above
 */
function trace(points, highest, wide, high, above) {
  if (points.length < 2) return "";
  const end = points[points.length - 1].time;
  const at = points.map(({ time, value }) => [wide - ((end - time) * wide) / SPAN_MS, above + high * (1 - value / highest)]);
  return `M${at.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
}

/**
 * @param {Point[]} points
 * @param {number} wide
 */
function width(points, wide) {
  return points.length < 2 ? 0 : ((points[points.length - 1].time - points[0].time) * wide) / SPAN_MS;
}
