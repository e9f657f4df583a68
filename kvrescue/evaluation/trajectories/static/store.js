// The data: blocks of the page, read when they are needed.

const KEPT = 24;
const chunks = new Map();
let told = null;

/** A block's data; large ones are compressed. */
async function block(name) {
  const element = document.getElementById(name);
  if (element.type === "application/json") return JSON.parse(element.textContent);
  const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Problems, settings and what a list shows of them. */
export async function readIndex() {
  told ??= await block("index");
  return told;
}

/** The trajectories of a problem, and how they differ. */
export async function chunk(place) {
  const found = chunks.get(place) ?? block(`chunk-${place}`);
  chunks.delete(place);
  chunks.set(place, found); // the newest is the last
  if (chunks.size > KEPT) chunks.delete(chunks.keys().next().value);
  return found;
}

/** The difference of two settings of a chunk, seen from `left`. */
export function difference(data, left, right) {
  const found = data.diffs.find(
    ([one, other]) => (one === left && other === right) || (one === right && other === left),
  );
  if (found === undefined) return null;
  const [one, , common, cause, draws, here, there] = found;
  const turned = one !== left;
  return {
    common,
    cause,
    draws,
    leftInRight: turned ? there : here,
    rightInLeft: turned ? here : there,
  };
}

const OUTCOMES = {
  correct: ["✓", "right"],
  wrong: ["✗", "wrong"],
  failed: ["!", "failed"],
  ungraded: ["·", "ungraded"],
  unfinished: ["…", "unfinished"],
};

/** Sign and name of an outcome. */
export function outcome(name) {
  const [sign, label] = OUTCOMES[name] ?? ["–", "not run"];
  return { sign, label };
}

/** A cell of the index by its parts; null where a problem was not run. */
export function cell(problem, setting) {
  const found = problem.cells[setting];
  if (!found) return null;
  const [result, answer, aborted, degraded, traced, tokens] = found;
  return { outcome: result, answer, aborted, degraded: degraded === 1, traced: traced === 1, tokens };
}

/** Whether the repair turned a wrong answer into a right one, or the other way round. */
export function repaired(problem, settings, setting) {
  const { baseline } = settings[setting];
  if (baseline === null) return null;
  const pair = [cell(problem, baseline)?.outcome, cell(problem, setting)?.outcome].join(" ");
  return { "wrong correct": "rescued", "correct wrong": "lost" }[pair] ?? null;
}

/** Place of a proposer's colour: the base and the helper have their own. */
export function shade(source, proposers) {
  const known = ["base", "helper"];
  if (known.includes(source)) return known.indexOf(source);
  const others = proposers.filter((name) => !known.includes(name));
  return 2 + (Math.max(0, others.indexOf(source)) % 4);
}

const ENDINGS = {
  eos: "EOS",
  answer: "its answer",
  context: "the token limit",
  steps: "the limit of steps",
  empty: "rounds without a step",
  flagged: "aborts of every candidate",
};

/** How a trajectory ended, in words. */
export function ending({ stop }) {
  return stop ? `ended by ${ENDINGS[stop] ?? stop}` : "broken off";
}
