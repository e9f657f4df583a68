// The address: #p=PROBLEM&s=SETTING&step=NUMBER&d=OTHER_SETTING; steps count from 1.

/** Where the address points to, as far as it exists. */
export function read(index) {
  const asked = new URLSearchParams(location.hash.slice(1));
  const place = (list, name) => {
    const found = list.findIndex((entry) => entry.id === asked.get(name));
    return found < 0 ? null : found;
  };
  const step = Number.parseInt(asked.get("step") ?? "", 10);
  return {
    problem: place(index.problems, "p"),
    setting: place(index.settings, "s"),
    other: place(index.settings, "d"),
    step: Number.isNaN(step) ? null : step,
  };
}

/** The address of a place. */
export function address(index, { problem, setting = null, other = null, step = null }) {
  const parts = new URLSearchParams();
  parts.set("p", index.problems[problem].id);
  if (setting !== null) parts.set("s", index.settings[setting].id);
  if (other !== null) parts.set("d", index.settings[other].id);
  if (step !== null) parts.set("step", String(step));
  return `#${parts}`;
}
