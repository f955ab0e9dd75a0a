// Elements from values. Text is only ever text: nothing here takes markup.

export const byId = (id) => document.getElementById(id);

/** An element; properties that begin with "on" are listeners, those with a dash or "role" are attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const button = (label, onclick, properties = {}) =>
  make("button", { type: "button", className: "small", onclick, ...properties }, label);

/** Rows of names and values for a <dl>. */
export function facts(pairs) {
  return pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]);
}

export const number = (value, digits = 0) =>
  Number(value).toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: 0 });

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) { value /= 1024; power += 1; }
  return `${number(value, value < 10 && power ? 1 : 0)} ${units[power]}`;
}
