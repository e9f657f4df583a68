// The list of problems: search, filters, and rows that are made as they are needed.

import { brief, counted, h } from "./dom.js";
import { cell, outcome, repaired } from "./store.js";
import { address } from "./route.js";

const ROWS = 100;
const LABELLED = 3; // more settings than these are told by their sign alone

const WANTED = [
  ["", "any"],
  ["correct", "right"],
  ["wrong", "wrong"],
  ["rescued", "rescued: evicted wrong, KV-Rescue right"],
  ["lost", "lost: evicted right, KV-Rescue wrong"],
  ["mixed", "settings disagree"],
  ["failed", "failed"],
  ["ungraded", "ungraded"],
  ["unfinished", "unfinished"],
  ["none", "not run"],
];

const normal = (text) => text.normalize("NFKC").toLowerCase();

/** What is searched of a problem. */
function haystack(problem) {
  const answers = problem.cells.map((found) => found?.[1] ?? "");
  return normal([problem.id, problem.question, problem.gold ?? "", ...answers].join("\n"));
}

/** Whether one setting of a problem is what the filters ask for. */
function suits(problem, settings, setting, wanted) {
  const found = cell(problem, setting);
  if (found === null) {
    return wanted.outcome === "none" && !wanted.aborted && !wanted.degraded && !wanted.traced;
  }
  if (wanted.aborted && !found.aborted) return false;
  if (wanted.degraded && !found.degraded) return false;
  if (wanted.traced && !found.traced) return false;
  if (["rescued", "lost"].includes(wanted.outcome)) {
    return repaired(problem, settings, setting) === wanted.outcome;
  }
  return ["", "mixed"].includes(wanted.outcome) || found.outcome === wanted.outcome;
}

/** Whether some setting is right and another wrong. */
function isMixed(problem) {
  const found = new Set(problem.cells.map((row) => row?.[0]));
  return found.has("correct") && found.has("wrong");
}

/** Positions of the problems that search and filters leave. */
function filtered(index, haystacks, wanted) {
  const terms = normal(wanted.search).split(/\s+/u).filter(Boolean);
  const columns =
    wanted.setting === null ? index.settings.map((_, place) => place) : [wanted.setting];
  const places = index.problems.map((_, place) => place);
  return places.filter((place) => {
    const problem = index.problems[place];
    if (!terms.every((term) => haystacks[place].includes(term))) return false;
    if (wanted.outcome === "mixed" && !isMixed(problem)) return false;
    return columns.some((setting) => suits(problem, index.settings, setting, wanted));
  });
}

/** A setting's outcome of a problem, as a small sign. */
export function chip(index, problem, setting, labelled = true) {
  const found = cell(problem, setting);
  const { sign, label } = outcome(found?.outcome);
  const { short } = index.settings[setting];
  const flags = [found?.degraded ? "degraded" : null, repaired(problem, index.settings, setting)];
  const told = [label, ...flags.filter(Boolean)].join(", ");
  return h(
    "span",
    { class: "chip", "data-outcome": found?.outcome ?? "none", title: `${short}: ${told}` },
    h("span", { class: "sign", "aria-hidden": "true" }, sign, found?.degraded ? "~" : ""),
    labelled ? h("span", { class: "name" }, short) : null,
    h("span", { class: "heard" }, labelled ? told : `${short}: ${told}`),
  );
}

/** The list with its search and filters; `chosen` gives the setting that rows link to. */
export class ProblemList {
  constructor(index, chosen) {
    this.index = index;
    this.chosen = chosen;
    this.haystacks = index.problems.map(haystack);
    this.places = [];
    this.shown = 0;
    this.current = null;
    this.box = document.getElementById("problems");
    this.more = document.getElementById("more");
    this.form = document.getElementById("filters");
    this.fields = Object.fromEntries(
      ["search", "by-setting", "by-outcome", "by-aborted", "by-degraded", "by-traced"].map(
        (name) => [name, document.getElementById(name)],
      ),
    );
    this.fields["by-setting"].append(
      h("option", { value: "" }, "any"),
      ...index.settings.map((setting, place) => h("option", { value: place }, setting.label)),
    );
    this.fields["by-outcome"].append(
      ...this.#outcomes().map(([value, label]) => h("option", { value }, label)),
    );
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => this.update());
    this.form.addEventListener("reset", () => setTimeout(() => this.update()));
    this.more.addEventListener("click", () => this.#grow());
    this.update();
  }

  /** Only what can occur is offered. */
  #outcomes() {
    const { problems, settings } = this.index;
    const occurs = (value) =>
      problems.some((problem) =>
        value === "mixed"
          ? isMixed(problem)
          : settings.some((_, place) => suits(problem, settings, place, { outcome: value })),
      );
    return WANTED.filter(([value]) => ["", "correct", "wrong"].includes(value) || occurs(value));
  }

  get wanted() {
    const setting = this.fields["by-setting"].value;
    return {
      search: this.fields.search.value,
      setting: setting === "" ? null : Number(setting),
      outcome: this.fields["by-outcome"].value,
      aborted: this.fields["by-aborted"].checked,
      degraded: this.fields["by-degraded"].checked,
      traced: this.fields["by-traced"].checked,
    };
  }

  /** Show what the filters leave. */
  update() {
    this.places = filtered(this.index, this.haystacks, this.wanted);
    this.shown = 0;
    this.box.replaceChildren();
    this.#grow();
    const whole = this.index.problems.length;
    document.getElementById("count").textContent =
      this.places.length === whole
        ? counted(whole, "problem")
        : `${this.places.length} of ${counted(whole, "problem")}`;
  }

  /** Show only the problems of one kind in one setting. */
  only(setting, outcomeName) {
    this.form.reset();
    this.fields["by-setting"].value = String(setting);
    this.fields["by-outcome"].value = outcomeName;
    setTimeout(() => this.update());
  }

  /** Mark the problem that is shown, and bring it into sight. */
  mark(problem) {
    this.current = problem;
    for (const link of this.box.querySelectorAll("a")) this.#link(link);
    this.box.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  /** The problem so many rows after the one that is shown. */
  beside(offset) {
    const here = this.places.indexOf(this.current);
    if (here < 0) return this.places[0] ?? null;
    return this.places[here + offset] ?? null;
  }

  #grow() {
    const until = Math.min(this.places.length, this.shown + ROWS);
    this.box.append(...this.places.slice(this.shown, until).map((place) => this.#row(place)));
    this.shown = until;
    const left = this.places.length - until;
    this.more.hidden = left === 0;
    this.more.textContent = `Show ${Math.min(left, ROWS)} more of ${left}`;
  }

  #row(place) {
    const problem = this.index.problems[place];
    const labelled = this.index.settings.length <= LABELLED;
    const link = h(
      "a",
      { "data-place": place },
      h("span", { class: "id" }, brief(problem.id, 40)),
      h("span", { class: "question" }, brief(problem.question)),
      h(
        "span",
        { class: "chips" },
        this.index.settings.map((_, setting) => chip(this.index, problem, setting, labelled)),
      ),
    );
    this.#link(link);
    return h("li", {}, link);
  }

  #link(link) {
    const problem = Number(link.dataset.place);
    link.href = address(this.index, { problem, setting: this.chosen(problem) });
    if (problem === this.current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}
