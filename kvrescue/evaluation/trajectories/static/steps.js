// Rounds: the step that was committed, its rivals, and what came of them.

import { brief, count, counted, h, measured, prose } from "./dom.js";
import { shade } from "./store.js";

const FEW = 40; // candidates that are shown at once

/** What a detector measured, and where it stopped the candidate. */
export function verdictText({ detector, value, threshold, position }) {
  const order =
    typeof value !== "number" || typeof threshold !== "number"
      ? "against"
      : value > threshold
        ? ">"
        : value < threshold
          ? "<"
          : "reached";
  return `${detector} ${measured(value)} ${order} ${measured(threshold)} at token ${position}`;
}

/** A score as number and bar. */
function score(value) {
  if (typeof value !== "number") {
    return h("span", { class: "score none" }, value === null ? "not scored" : String(value));
  }
  const share = Math.min(1, Math.max(0, value));
  return h(
    "span",
    { class: "score", title: `score ${value}` },
    h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "fill", vars: { "--share": share } })),
    h("span", { class: "figure" }, value.toFixed(3)),
  );
}

export function source(name, proposers) {
  return h("span", { class: "source", "data-shade": shade(name, proposers) }, brief(name, 30));
}

const STOPS = {
  separator: "to the separator",
  eos: "ended by EOS",
  length: "cut at the step's limit",
  context: "cut at the token limit",
  aborted: "aborted",
};

/** A candidate with its score or verdict. */
export function candidateItem(candidate, proposers, isChosen) {
  const { verdict } = candidate;
  const state = isChosen ? "chosen" : verdict ? "aborted" : "rival";
  const text = prose(candidate.text, { tag: verdict ? "s" : "div" });
  return h(
    "li",
    { class: "candidate", "data-state": state, "data-shade": shade(candidate.source, proposers) },
    h(
      "div",
      { class: "head" },
      source(candidate.source, proposers),
      h("span", { class: "index" }, `#${candidate.index + 1}`),
      isChosen ? h("span", { class: "mark" }, "committed") : null,
      h("span", { class: "facts" }, `${counted(candidate.tokens, "token")}, ${STOPS[candidate.stop] ?? candidate.stop}`),
      verdict ? null : score(candidate.score),
    ),
    text,
    verdict
      ? h(
          "p",
          { class: "verdict" },
          h("b", {}, verdictText(verdict)),
          h("span", { class: "reason" }, brief(verdict.reason, 400)),
        )
      : null,
  );
}

function candidateList(round, proposers) {
  const items = round.candidates.map((candidate, place) => [candidate, place === round.chosen]);
  const list = h("ol", { class: "candidates" });
  const add = (from) => {
    const part = items.slice(from, from + FEW);
    list.append(...part.map(([candidate, chosen]) => candidateItem(candidate, proposers, chosen)));
    const left = items.length - from - part.length;
    if (left === 0) return;
    const more = h("button", { type: "button", class: "all" }, `show ${Math.min(left, FEW)} more of ${left}`);
    const row = h("li", { class: "rest" }, more);
    more.addEventListener("click", () => {
      row.remove();
      add(from + FEW);
    });
    list.append(row);
  };
  add(0);
  return list;
}

/** What a round took, in one line. */
function cost(round, proposers) {
  const aborted = round.candidates.filter(({ verdict }) => verdict).length;
  const spent = proposers.filter((name) => round.spent[name]).map((name) => `${name} ${count(round.spent[name])}`);
  const caches = Object.entries(round.caches)
    .filter(([, stats]) => stats[5] !== null || stats[1] !== stats[0])
    .map(([name, stats]) => `${name} holds ${count(stats[1])} of ${count(stats[0])}`);
  return h(
    "span",
    { class: "cost" },
    h("span", {}, counted(round.candidates.length, "candidate")),
    aborted ? h("span", { class: "aborted" }, `${aborted} aborted`) : null,
    spent.length ? h("span", {}, `tokens: ${spent.join(", ")}`) : null,
    round.saved ? h("span", { class: "saved" }, `at most ${count(round.saved)} saved`) : null,
    caches.map((told) => h("span", {}, told)),
    round.degradations.length ? h("span", { class: "warn" }, "degraded") : null,
  );
}

const SKIPPED = {
  flagged: "Nothing committed: every candidate was aborted",
  empty: "Nothing committed: no candidate had anything to say",
  undecided: "The trace ends before this round was decided",
};

/** One round, folded; its candidates are made when it is opened. */
export function roundItem(round, proposers, { open = false, opened = null } = {}) {
  const winner = round.chosen === null ? null : round.candidates[round.chosen];
  const inside = h("div", { class: "inside" });
  const details = h(
    "details",
    {
      class: "round",
      "data-step": round.step + 1,
      "data-state": winner ? "committed" : round.skipped,
      "data-shade": winner ? shade(winner.source, proposers) : "none",
    },
    h(
      "summary",
      {},
      h("span", { class: "number", "aria-label": `Step ${round.step + 1}` }, round.step + 1),
      winner
        ? h("span", { class: "text" }, prose(winner.text, { tag: "span" }))
        : h("span", { class: "text skipped" }, SKIPPED[round.skipped]),
      winner ? h("span", { class: "who" }, source(winner.source, proposers), score(winner.score)) : null,
      cost(round, proposers),
    ),
    inside,
  );
  const fill = () => {
    if (inside.childElementCount) return;
    inside.append(
      ...round.degradations.map(({ where, message }) =>
        h("p", { class: "warn" }, h("b", {}, where), " failed: ", prose(message, { tag: "span" })),
      ),
      candidateList(round, proposers),
    );
  };
  details.addEventListener("toggle", () => details.open && fill());
  // A click, not a toggle: only what the reader opened is where the reader is.
  details.firstElementChild.addEventListener("click", () => details.open || opened?.(round.step + 1));
  if (open) {
    fill();
    details.open = true;
  }
  return h("li", {}, details);
}

/** The steps as a band: as wide as they are long, in the colour of who wrote them. */
export function band(trajectory, hrefOf) {
  return h(
    "div",
    { class: "band", "aria-hidden": "true" },
    trajectory.rounds.map((round) => {
      const winner = round.chosen === null ? null : round.candidates[round.chosen];
      const aborted = round.candidates.some(({ verdict }) => verdict);
      const told = winner ? `${winner.source}, ${counted(winner.tokens, "token")}` : "nothing committed";
      return h("a", {
        href: hrefOf(round.step + 1),
        tabindex: -1,
        title: `step ${round.step + 1}: ${told}${aborted ? ", candidates aborted" : ""}`,
        "data-shade": winner ? shade(winner.source, trajectory.proposers) : "none",
        "data-aborted": aborted,
        vars: { "--tokens": winner?.tokens ?? 1 },
      });
    }),
  );
}
