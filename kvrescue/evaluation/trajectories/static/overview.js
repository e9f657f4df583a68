// The first view: every setting with its outcomes, each leading to its problems.

import { count, h } from "./dom.js";
import { cell, repaired } from "./store.js";

/** Outcomes and work of one setting over all problems. */
function totals(index, setting) {
  const found = { correct: 0, wrong: 0, failed: 0, rescued: 0, lost: 0, aborted: 0, run: 0, traced: 0, tokens: {} };
  for (const problem of index.problems) {
    const here = cell(problem, setting);
    if (here === null) continue;
    found.run += 1;
    found.traced += here.traced ? 1 : 0;
    if (here.outcome in found) found[here.outcome] += 1;
    found.aborted += here.aborted;
    const change = repaired(problem, index.settings, setting);
    if (change) found[change] += 1;
    for (const [name, tokens] of Object.entries(here.tokens)) {
      found.tokens[name] = (found.tokens[name] ?? 0) + tokens;
    }
  }
  return found;
}

function row(index, setting, only) {
  const { label, about, baseline } = index.settings[setting];
  const found = totals(index, setting);
  const graded = found.correct + found.wrong;
  const link = (number, kind) =>
    number ? h("button", { type: "button", class: "count", "data-outcome": kind, on: { click: () => only(setting, kind) } }, count(number)) : "–";
  const spent = Object.entries(found.tokens).map(([name, tokens]) => `${name} ${count(Math.round(tokens / Math.max(1, found.run)))}`);
  return h(
    "tr",
    { "data-setting": setting },
    h(
      "th",
      { scope: "row" },
      about.length
        ? h("details", {}, h("summary", {}, label), h("ul", {}, about.map((line) => h("li", {}, line))))
        : label,
    ),
    h("td", {}, graded ? `${((100 * found.correct) / graded).toFixed(1)} %` : "–"),
    h("td", {}, link(found.correct, "correct")),
    h("td", {}, link(found.wrong, "wrong")),
    h("td", {}, link(found.failed, "failed")),
    h("td", {}, baseline === null ? "" : link(found.rescued, "rescued")),
    h("td", {}, baseline === null ? "" : link(found.lost, "lost")),
    h("td", {}, found.aborted ? count(found.aborted) : "–"),
    h("td", { class: "wide" }, spent.join(", ") || "–"),
    h("td", {}, `${count(found.traced)} of ${count(found.run)}`),
  );
}

/** The table of settings; `only` narrows the list to one kind of problems. */
export function overview(index, only) {
  const heads = ["setting", "accuracy", "✓", "✗", "failed", "rescued", "lost", "aborted", "tokens per problem", "with steps"];
  return h(
    "section",
    { class: "overview" },
    h("h2", {}, "Settings"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings and their outcomes" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, index.settings.map((_, setting) => row(index, setting, only))),
      ),
    ),
    h("p", { class: "note" }, "Choose a problem to see its steps. Rescued: the evicted base is wrong and this setting is right; lost: the other way round. Tokens count every candidate."),
  );
}
