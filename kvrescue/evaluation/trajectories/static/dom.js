// Elements, and texts that a model wrote: always as text nodes, never as markup.

const COUNT = new Intl.NumberFormat("en-US");
const SHOWN = 1200;
// Controls, marks of direction and other characters that cannot be seen; joiners make emoji.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]+/gu;

/** An element: properties are attributes, `on` holds listeners; texts become text nodes. */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) {
        element.addEventListener(event, listener);
      }
    } else if (name === "vars") {
      for (const [key, set] of Object.entries(value)) element.style.setProperty(key, String(set));
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function count(number) {
  return typeof number === "number" ? COUNT.format(number) : "?";
}

/** A count with its noun. */
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A measured value, as short as its size allows; texts (nan, inf) stay. */
export function measured(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(3))) : String(value);
}

/** Nodes of a text; what cannot be seen is named. */
function nodes(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(UNSEEN)) {
    found.push(text.slice(end, match.index), h("span", { class: "unseen" }, named(match[0])));
    end = match.index + match[0].length;
  }
  found.push(text.slice(end));
  return found;
}

function named(characters) {
  return Array.from(characters, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  }).join("");
}

/** A model's text: its own direction, line breaks at its end left out, long ones cut. */
export function prose(text, { tag = "div", whole = false, name = "prose" } = {}) {
  const body = text.replace(/\n+$/u, "");
  const box = h(tag, { class: name, dir: "auto" });
  if (!body.trim()) {
    const blank = body + "⏎".repeat(text.length - body.length);
    box.append(h("span", { class: "unseen" }, ...nodes(blank), blank ? "" : "nothing"));
  } else if (whole || body.length <= SHOWN) {
    box.append(...nodes(body));
  } else {
    const cut = body.codePointAt(SHOWN - 1) > 0xffff ? SHOWN - 1 : SHOWN;
    const more = h(
      "button",
      {
        type: "button",
        class: "all",
        on: {
          click: (event) => {
            event.preventDefault();
            box.replaceChildren(...nodes(body));
          },
        },
      },
      `show all ${count(body.length)} characters`,
    );
    box.append(...nodes(body.slice(0, cut)), "… ", more);
  }
  return box;
}

/** One line of a text, for lists. */
export function brief(text, length = 220) {
  const line = text.slice(0, length * 2).replace(/\s+/gu, " ").trim();
  const cut = Array.from(line).slice(0, length).join("");
  return h("bdi", {}, ...nodes(cut), cut.length < line.length || text.length > length * 2 ? "…" : "");
}
