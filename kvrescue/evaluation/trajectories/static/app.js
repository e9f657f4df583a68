// Where it comes together: the address decides what is shown.

import { brief, count, counted, h, prose } from "./dom.js";
import { cell, chunk, ending, outcome, readIndex, shade } from "./store.js";
import { address, read } from "./route.js";
import { ProblemList, chip } from "./list.js";
import { cacheCharts, tokenChart } from "./chart.js";
import { band, roundItem } from "./steps.js";
import { comparison } from "./diff.js";
import { overview } from "./overview.js";

const main = document.getElementById("main");
const AT_ONCE = 150; // rounds that are made before the page may breathe

let told; // the index
let list;
let here = { problem: null, setting: null, other: null, step: null };

/** The setting that a problem opens with: the one chosen before, else what there is most to see of. */
function settingOf(problem) {
  const places = told.settings.map((_, place) => place).filter((place) => cell(told.problems[problem], place));
  const wanted = [list?.wanted.setting, here.setting].find((place) => places.includes(place));
  if (wanted !== undefined) return wanted;
  const traced = places.filter((place) => cell(told.problems[problem], place).traced);
  const among = traced.length ? traced : places;
  return among.find((place) => told.settings[place].method === "kv_rescue") ?? among[0] ?? null;
}

function fact(name, ...value) {
  return [h("dt", {}, name), h("dd", {}, ...value)];
}

function totals(problem, setting, data) {
  const { label, sign } = outcome(data.outcome);
  const rules = Object.entries(data.rules).filter(([, verdict]) => verdict !== null);
  const uses = Object.entries(data.uses).map(([name, use]) =>
    h(
      "li",
      { "data-shade": shade(name, data.proposers) },
      h("b", {}, name),
      ` drew ${counted(use.candidates, "candidate")}, ${counted(use.generated, "token")}`,
      use.aborted ? `; ${count(use.aborted)} aborted after ${counted(use.aborted_tokens, "token")}` : "",
      `; wrote ${counted(use.committed_steps, "step")}`,
    ),
  );
  const saved = data.saved === null ? "unknown: a trace does not tell the limit of a step" : `at most ${counted(data.saved, "token")}`;
  const aborted = Object.values(data.uses).some((use) => use.aborted);
  return h(
    "dl",
    { class: "totals" },
    fact("answer", h("span", { class: "verdict-sign", "data-outcome": data.outcome }, `${sign} ${label}`), " ", h("b", { class: "given" }, data.answer === null ? "none" : brief(data.answer))),
    fact("right answer", h("b", { class: "gold" }, problem.gold === null ? "unknown" : brief(problem.gold))),
    fact("steps", `${counted(data.steps, "step")}, ${counted(data.output_tokens, "token")}`, data.failure ? "" : `, ${ending(data)}`),
    fact("tokens spent", h("ul", {}, uses)),
    "rounds" in data && aborted ? fact("saved by aborts", h("span", { class: "saved" }, saved)) : null,
    rules.length > 1 ? fact("rules", rules.map(([name, verdict]) => `${name} ${verdict ? "✓" : "✗"}`).join(", ")) : null,
    data.seconds ? fact("time", `${data.seconds.toFixed(1)} s, other problems beside it`) : null,
    data.degradations.length
      ? fact("degraded", h("ul", { class: "warn" }, data.degradations.map(({ where, message }) => h("li", {}, h("b", {}, where), " ", prose(message, { tag: "span" })))))
      : null,
    data.failure ? fact("failed", h("span", { class: "warn" }, h("b", {}, data.failure.type), " ", prose(data.failure.message, { tag: "span" }))) : null,
  );
}

function tabs(place, setting) {
  const problem = told.problems[place];
  return h(
    "ul",
    { class: "tabs", "aria-label": "Settings" },
    told.settings.map((_, other) =>
      h(
        "li",
        {},
        cell(problem, other)
          ? h("a", { href: address(told, { problem: place, setting: other }), "aria-current": other === setting ? "true" : null }, chip(told, problem, other))
          : h("span", { class: "off" }, chip(told, problem, other)),
      ),
    ),
  );
}

function comparer(data, route) {
  const others = Object.keys(data.trajectories)
    .map(Number)
    .filter((place) => place !== route.setting && "rounds" in data.trajectories[place]);
  if (!others.length || !("rounds" in data.trajectories[route.setting])) return null;
  const key = told.settings[route.setting].id.split("~")[0];
  others.sort((one, other) => rank(other) - rank(one) || one - other);
  function rank(place) {
    if (told.settings[place].id.split("~")[0] === key) return 2;
    return place === told.settings[route.setting].baseline ? 1 : 0;
  }
  const select = h(
    "select",
    {
      id: "compare",
      on: {
        change: () => {
          const other = select.value === "" ? null : Number(select.value);
          location.hash = address(told, { ...route, other, step: null });
        },
      },
    },
    h("option", { value: "" }, "nothing"),
    others.map((place) => h("option", { value: place, selected: place === route.other }, told.settings[place].label)),
  );
  return h("label", { class: "compare" }, "Compare with ", select);
}

function stepList(data, route) {
  const go = (step) => {
    location.hash = address(told, { ...route, step });
  };
  const opened = (step) => {
    here.step = step;
    history.replaceState(null, "", address(told, { ...route, step }));
  };
  const rounds = h("ol", { class: "rounds", id: "rounds" });
  const add = (from) => {
    const part = data.rounds.slice(from, from + AT_ONCE);
    rounds.append(...part.map((round) => roundItem(round, data.proposers, { opened })));
    if (from + AT_ONCE < data.rounds.length && route.step === null) {
      requestAnimationFrame(() => rounds.isConnected && add(from + AT_ONCE));
    } else if (from + AT_ONCE < data.rounds.length) add(from + AT_ONCE);
  };
  add(0);
  return [
    h("div", { class: "charts" }, cacheCharts(data, go), tokenChart(data, go)),
    h(
      "div",
      { class: "steps-head" },
      h("h3", {}, "Steps"),
      h("button", { type: "button", id: "unfold", on: { click: unfold } }, "Show all candidates"),
    ),
    band(data, (step) => address(told, { ...route, step })),
    rounds,
  ];
}

/** Open every round, or close them where all are open. */
function unfold() {
  const rounds = [...main.querySelectorAll("#rounds > li > .round")];
  const open = !rounds.every((round) => round.open);
  for (const round of rounds) round.open = open;
  const button = document.getElementById("unfold");
  if (button) button.textContent = open ? "Hide all candidates" : "Show all candidates";
}

function withoutSteps(data) {
  return h(
    "section",
    { class: "plain" },
    h("p", { class: "note" }, "The steps of this problem were not kept: a run keeps those of its first problems. This is what it wrote."),
    data.text ? prose(data.text) : null,
  );
}

async function showProblem(route) {
  const problem = told.problems[route.problem];
  const data = await chunk(route.problem);
  if (here !== route) return; // the reader has gone on
  const trajectory = route.setting === null ? null : data.trajectories[route.setting];
  const isCompared = route.other !== null && route.other !== route.setting && data.trajectories[route.other];
  const head = h(
    "header",
    { class: "problem" },
    h("p", { class: "back" }, h("a", { href: "#" }, "← All problems")),
    h("h2", {}, h("span", { class: "heard" }, "Problem "), brief(problem.id, 120)),
    prose(problem.question, { name: "prose asked" }),
    tabs(route.problem, route.setting),
  );
  const body = trajectory
    ? [
        h("h3", { class: "setting" }, told.settings[route.setting].label),
        totals(problem, route.setting, trajectory),
        comparer(data, route),
        isCompared
          ? comparison(told, problem, data, route.setting, route.other)
          : "rounds" in trajectory
            ? stepList(trajectory, route)
            : withoutSteps(trajectory),
      ]
    : h("p", { class: "note" }, "This problem was not run in this setting.");
  main.replaceChildren(head, ...[body].flat(Infinity).filter(Boolean));
  document.title = `${problem.id} · ${told.title}`;
  if (route.step === null) scrollTo({ top: 0 });
  else openStep(route.step);
}

/** Unfold a step and bring it into sight. */
function openStep(step) {
  const rounds = main.querySelectorAll(`#rounds > li > [data-step="${step}"]`);
  for (const round of rounds) round.open = true;
  rounds[0]?.scrollIntoView({ block: "start" });
  rounds[0]?.querySelector("summary").focus({ preventScroll: true });
}

function show() {
  const route = read(told);
  const before = here;
  here = route;
  document.body.dataset.view = route.problem === null ? "list" : "problem";
  if (route.problem === null) {
    here.setting = before.setting;
    main.replaceChildren(overview(told, (setting, kind) => list.only(setting, kind)));
    document.title = `${told.title} · trajectories`;
    list.mark(null);
    return undefined;
  }
  if (route.setting === null || !cell(told.problems[route.problem], route.setting)) {
    route.setting = before.setting;
    route.setting = settingOf(route.problem);
  }
  list.mark(route.problem);
  const same = ["problem", "setting", "other"].every((part) => before[part] === route[part]);
  if (same && route.step !== null && main.querySelector("#rounds")) {
    openStep(route.step);
    return undefined;
  }
  return showProblem(route);
}

function go(route) {
  if (route.problem !== null && route.problem !== undefined) location.hash = address(told, route);
}

/** The setting so many tabs after the one that is shown. */
function settingBeside(offset) {
  if (here.problem === null || here.setting === null) return;
  const places = told.settings.map((_, place) => place).filter((place) => cell(told.problems[here.problem], place));
  const next = places[places.indexOf(here.setting) + offset];
  if (next !== undefined) go({ problem: here.problem, setting: next });
}

const KEYS = {
  "/": () => list.fields.search.focus(),
  j: () => beside(1),
  k: () => beside(-1),
  "[": () => settingBeside(-1),
  "]": () => settingBeside(1),
  e: unfold,
};

function beside(offset) {
  const problem = list.beside(offset);
  if (problem !== null) go({ problem, setting: settingOf(problem) });
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof Element && event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

async function start() {
  told = await readIndex();
  const names = told.sources.map(({ name, problems }) => (problems ? `${name}: ${problems}` : name));
  document.getElementById("sources").textContent = names.join(" · ");
  list = new ProblemList(told, settingOf);
  document.getElementById("skip").addEventListener("click", () => main.focus());
  addEventListener("hashchange", show);
  addEventListener("keydown", pressed);
  await show();
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  main.replaceChildren(h("p", { class: "note" }, `The data cannot be shown: ${error.message}`));
  throw error;
});
