// Small charts over the rounds of a trajectory, as SVG.

import { count, counted, h } from "./dom.js";
import { shade } from "./store.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 360;
const HEIGHT = 132;
const TICK = new Intl.NumberFormat("en-US", { notation: "compact" });
const EDGE = { left: 34, right: 10, top: 12, bottom: 20 };

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A round upper end for an axis. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((end) => end >= value);
}

function frame(label, most, last, first) {
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const end = ceiling(most);
  const x = (at) =>
    EDGE.left + ((at - first) / Math.max(1, last - first)) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - (value / end) * (HEIGHT - EDGE.top - EDGE.bottom);
  for (const value of [0, end / 2, end]) {
    svg.append(
      draw("line", { class: "grid", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(value), y2: y(value) }),
      draw("text", { class: "tick", x: EDGE.left - 5, y: y(value) + 3, "text-anchor": "end" }, TICK.format(value)),
    );
  }
  const whole = [Math.ceil(first), Math.floor(last)];
  const ticks = whole[1] - whole[0] > 3 ? [whole[0], Math.round((whole[0] + whole[1]) / 2), whole[1]] : whole;
  for (const at of new Set(ticks)) {
    svg.append(draw("text", { class: "tick", x: x(at), y: HEIGHT - 6, "text-anchor": "middle" }, at));
  }
  return { svg, x, y };
}

const path = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x} ${y}`).join("");

/** Room to point at: each round tells its numbers and leads to its step. */
function pointers(svg, places, x, told, go) {
  const wide = places.length > 1 ? x(places[1]) - x(places[0]) : WIDTH - EDGE.left - EDGE.right;
  for (const [number, at] of places.entries()) {
    const area = draw("rect", {
      class: "pointer",
      x: x(at) - wide / 2,
      y: EDGE.top,
      width: wide,
      height: HEIGHT - EDGE.top - EDGE.bottom,
    });
    area.append(draw("title", {}, told(number)));
    if (at > 0) area.addEventListener("click", () => go(at));
    svg.append(area);
  }
}

/** One view's cache: entries held against tokens read. */
function cacheChart(name, points, proposers, go) {
  const bound = points.at(-1).bound;
  const most = Math.max(...points.map(({ logical, physical }) => Math.max(logical, physical)), bound ?? 0);
  const last = points.at(-1);
  const label =
    `${name}: ${count(last.physical)} entries held of ${count(last.logical)} tokens read` +
    (bound === null ? ", no evictor" : `, bound ${count(bound)}, ${counted(last.evictions, "eviction")}`);
  const { svg, x, y } = frame(label, most, last.at, points[0].at);
  const held = points.map(({ at, physical }) => [x(at), y(physical)]);
  const floor = y(0);
  svg.append(
    draw("path", { class: "held", d: `${path(held)}L${held.at(-1)[0]} ${floor}L${held[0][0]} ${floor}Z` }),
    draw("path", { class: "held-line", d: path(held) }),
    draw("path", { class: "read-line", d: path(points.map(({ at, logical }) => [x(at), y(logical)])) }),
  );
  if (bound !== null) {
    svg.append(
      draw("line", { class: "bound", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(bound), y2: y(bound) }),
      draw("text", { class: "bound-name", x: EDGE.left + 4, y: y(bound) - 4 }, `bound ${count(bound)}`),
    );
  }
  const told = (number) => {
    const { at, logical, physical, evictions } = points[number];
    const when = at === 0 ? "the question" : `after step ${at}`;
    return `${when}: ${count(physical)} held of ${count(logical)} read, ${counted(evictions, "eviction")}`;
  };
  pointers(svg, points.map(({ at }) => at), x, told, go);
  return h(
    "figure",
    { class: "chart cache", "data-view": name, "data-shade": shade(name, proposers) },
    h("figcaption", {}, h("b", {}, `${name}'s cache`), h("span", {}, label.slice(name.length + 2))),
    svg,
    h(
      "p",
      { class: "legend" },
      h("span", { class: "key held-key" }, "held"),
      h("span", { class: "key read-key" }, "read"),
      bound === null ? null : h("span", { class: "key bound-key" }, "bound"),
    ),
  );
}

/** The caches of every view, over the committed steps; null where the trace has none. */
export function cacheCharts(trajectory, go) {
  const charts = [];
  for (const name of trajectory.proposers) {
    const points = [];
    const add = (at, stats) => {
      if (stats) points.push({ at, logical: stats[0], physical: stats[1], evictions: stats[3], bound: stats[5] });
    };
    add(0, trajectory.opened[name]);
    for (const round of trajectory.rounds) {
      if (round.chosen !== null) add(round.step + 1, round.caches[name]);
    }
    if (points.length > 1) charts.push(cacheChart(name, points, trajectory.proposers, go));
  }
  return charts.length ? charts : null;
}

/** Tokens of every step: drawn by each proposer, and at most saved by aborts. */
export function tokenChart(trajectory, go) {
  const steps = new Map();
  for (const round of trajectory.rounds) {
    const row = steps.get(round.step) ?? { at: round.step + 1, spent: {}, saved: 0 };
    for (const [name, tokens] of Object.entries(round.spent)) {
      row.spent[name] = (row.spent[name] ?? 0) + tokens;
    }
    row.saved += round.saved ?? 0;
    steps.set(round.step, row);
  }
  const rows = [...steps.values()];
  if (rows.length < 2) return null;
  const sum = ({ spent }) => Object.values(spent).reduce((total, tokens) => total + tokens, 0);
  const whole = rows.reduce((total, row) => total + sum(row), 0);
  const label = `${counted(whole, "token")} drawn`;
  const most = Math.max(...rows.map((row) => sum(row) + row.saved));
  const { svg, x, y } = frame(`Tokens: ${label}`, most, rows.at(-1).at + 0.5, rows[0].at - 0.5);
  const wide = Math.max(1, (x(rows[0].at + 1) - x(rows[0].at)) * 0.72);
  for (const row of rows) {
    let below = 0;
    const bar = (height, extra) => {
      svg.append(
        draw("rect", {
          ...extra,
          x: x(row.at) - wide / 2,
          y: y(below + height),
          width: wide,
          height: Math.max(0, y(below) - y(below + height)),
        }),
      );
      below += height;
    };
    for (const name of trajectory.proposers) {
      if (row.spent[name]) bar(row.spent[name], { class: "bar", "data-shade": shade(name, trajectory.proposers) });
    }
    if (row.saved) bar(row.saved, { class: "bar saved" });
  }
  const told = (number) => {
    const { at, spent, saved } = rows[number];
    const parts = Object.entries(spent).map(([name, tokens]) => `${name} ${count(tokens)}`);
    return `step ${at}: drawn ${parts.join(", ")}${saved ? `; at most ${count(saved)} saved` : ""}`;
  };
  pointers(svg, rows.map(({ at }) => at), x, told, go);
  return h(
    "figure",
    { class: "chart tokens" },
    h("figcaption", {}, h("b", {}, "Tokens per step"), h("span", {}, label)),
    svg,
    h(
      "p",
      { class: "legend" },
      trajectory.proposers.map((name) =>
        h("span", { class: "key", "data-shade": shade(name, trajectory.proposers) }, name),
      ),
      trajectory.saved ? h("span", { class: "key saved-key" }, "saved, at most") : null,
    ),
  );
}
