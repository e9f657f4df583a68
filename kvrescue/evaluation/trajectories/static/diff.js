// Two settings of one problem: what they have in common, and where they part.

import { brief, counted, h, prose } from "./dom.js";
import { roundItem, source, verdictText } from "./steps.js";
import { chip } from "./list.js";
import { difference, ending } from "./store.js";

const DRAWS = {
  same: "the same candidates",
  cut: "the same candidates, some aborted on one side",
  different: "other candidates",
};

/** Why two trajectories part, in a sentence. */
function reason({ cause, draws, leftInRight }, left, right) {
  switch (cause) {
    case "none":
      return `They never part: both are ${ending(left.data)}.`;
    case "unfinished":
      return "The trace of one breaks off there.";
    case "end":
      return `Then ${left.name} is ${goesOn(left, right)} and ${right.name} is ${goesOn(right, left)}.`;
    case "draws": {
      const other = Object.keys(draws).filter((name) => draws[name] === "different");
      return `${other.join(" and ")} drew other candidates.`;
    }
    case "proposers": {
      const isForeign = !right.data.proposers.includes(left.source);
      const [who, whose] = isForeign ? [left, right] : [right, left];
      const alike = Object.keys(draws).length ? `${Object.keys(draws).join(" and ")} drew the same on both sides; ` : "";
      return `${alike}${who.name} commits a step of ${who.source}, which ${whose.name} does not have.`;
    }
    case "screened": {
      const [who, whose] = leftInRight?.verdict ? [right, left] : [left, right];
      return `Both drew the same; what ${whose.name} commits was aborted in ${who.name}.`;
    }
    default:
      return "The candidates were equal: only the choice differed.";
  }
}

const goesOn = (one, other) => (one.data.steps > other.data.steps ? "going on" : ending(one.data));

/** What became of one side's step on the other side. */
function fate(candidate, mine, theirs) {
  if (!candidate) return `${theirs.name} had no such candidate.`;
  if (candidate.verdict) return `In ${theirs.name} it was aborted: ${verdictText(candidate.verdict)}.`;
  const scored = typeof candidate.score === "number" ? `scored ${candidate.score.toFixed(3)}` : "was not scored";
  return `In ${theirs.name} it ${scored} and was passed over.`;
}

function side(index, problem, here, there, common, candidate) {
  const { data, setting } = here;
  const rounds = data.rounds.filter(({ step }) => step >= common);
  const parted = rounds.filter(({ step }) => step === common);
  const later = rounds.filter(({ step }) => step > common);
  const has = parted.some(({ chosen }) => chosen !== null);
  return h(
    "section",
    { class: "side", "aria-label": here.name },
    h("h3", {}, here.name, " ", chip(index, problem, setting, false)),
    h("p", { class: "answer" }, "answer ", h("b", {}, data.answer === null ? "none" : brief(data.answer)), `, ${ending(data)}`),
    h(
      "ol",
      { class: "rounds parted" },
      parted.map((round) => roundItem(round, data.proposers, { open: true })),
    ),
    has && there.has ? h("p", { class: "fate" }, fate(candidate, here, there)) : null,
    has ? null : h("p", { class: "fate" }, `No step ${common + 1}: ${ending(data)}.`),
    later.length
      ? h(
          "details",
          { class: "later" },
          h("summary", {}, `${counted(new Set(later.map(({ step }) => step)).size, "later step")}`),
          h("ol", { class: "rounds" }, later.map((round) => roundItem(round, data.proposers))),
        )
      : null,
  );
}

/** Both sides up to their first diverging step, and how each goes on. */
export function comparison(index, problem, chunk, setting, other) {
  const found = difference(chunk, setting, other);
  const [left, right] = [setting, other].map((place) => {
    const data = chunk.trajectories[place];
    return { setting: place, data, name: index.settings[place].short };
  });
  if (found === null) {
    return h("p", { class: "note" }, "These two cannot be compared: the steps of one were not kept.");
  }
  const { common } = found;
  const at = (trajectory) => trajectory.rounds.find(({ step, chosen }) => step === common && chosen !== null);
  const pool = (trajectory, place) => (place === null ? null : at(trajectory)?.candidates[place]);
  const leftInRight = pool(right.data, found.leftInRight);
  const rightInLeft = pool(left.data, found.rightInLeft);
  for (const one of [left, right]) {
    const round = at(one.data);
    one.has = round !== undefined;
    one.source = round?.candidates[round.chosen].source ?? null;
  }
  const shared = left.data.rounds.filter(({ step, chosen }) => step < common && chosen !== null);
  const draws = Object.entries(found.draws).map(([name, told]) =>
    h("li", {}, source(name, left.data.proposers), ` ${DRAWS[told]}`),
  );
  return h(
    "section",
    { class: "comparison", "data-common": common, "data-cause": found.cause },
    h(
      "p",
      { class: "parting" },
      h("b", {}, common ? `The first ${counted(common, "step is", "steps are")} the same. ` : "They differ from the first step on. "),
      reason({ ...found, leftInRight }, left, right),
    ),
    draws.length ? h("ul", { class: "draws" }, draws) : null,
    common
      ? h(
          "details",
          { class: "shared" },
          h("summary", {}, `What they share: ${counted(common, "step")}`),
          h(
            "ol",
            {},
            shared.map((round) => {
              const winner = round.candidates[round.chosen];
              return h("li", {}, source(winner.source, left.data.proposers), " ", prose(winner.text, { tag: "span" }));
            }),
          ),
        )
      : null,
    found.cause === "none"
      ? null
      : h(
          "div",
          { class: "sides" },
          h("h3", { class: "where" }, `Step ${common + 1}`),
          side(index, problem, left, right, common, leftInRight),
          side(index, problem, right, left, common, rightInLeft),
        ),
  );
}
