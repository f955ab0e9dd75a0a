// A JSON value against the plain keywords of a JSON schema. What is not among them is named, not judged.

const NOTES = new Set(["$schema", "$id", "title", "description", "default", "examples", "$comment", "$defs", "definitions"]);

const typeOf = (value) => value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
const same = (a, b) => {
  if (typeOf(a) !== typeOf(b)) return false;
  if (a === null || typeof a !== "object") return a === b;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((k) => Object.hasOwn(b, k) && same(a[k], b[k]));
};
const isType = (value, name) =>
  name === "integer" ? Number.isInteger(value) : typeOf(value) === name;
const length = (text) => [...text].length;

// Each keyword: which values it speaks of, and what has to hold.
const RULES = {
  type: [() => true, (v, s) => [s].flat().some((name) => isType(v, name)), (s) => `is not of type ${[s].flat().join(" or ")}`],
  enum: [() => true, (v, s) => s.some((one) => same(one, v)), (s) => `is none of ${JSON.stringify(s)}`],
  const: [() => true, (v, s) => same(s, v), (s) => `is not ${JSON.stringify(s)}`],
  minimum: ["number", (v, s) => v >= s, (s) => `is below ${s}`],
  maximum: ["number", (v, s) => v <= s, (s) => `is above ${s}`],
  exclusiveMinimum: ["number", (v, s) => v > s, (s) => `is not above ${s}`],
  exclusiveMaximum: ["number", (v, s) => v < s, (s) => `is not below ${s}`],
  minLength: ["string", (v, s) => length(v) >= s, (s) => `is shorter than ${s}`],
  maxLength: ["string", (v, s) => length(v) <= s, (s) => `is longer than ${s}`],
  minItems: ["array", (v, s) => v.length >= s, (s) => `has fewer than ${s} items`],
  maxItems: ["array", (v, s) => v.length <= s, (s) => `has more than ${s} items`],
};

/** `{ problems, unchecked }`: what is wrong with the value, and keywords that only the server knows. */
export function check(value, schema) {
  const found = { problems: [], unchecked: new Set() };
  walk(value, schema, "the answer", found);
  return { problems: found.problems, unchecked: [...found.unchecked] };
}

function walk(value, schema, where, found) {
  if (schema === true || typeOf(schema) !== "object") return;
  for (const [keyword, said] of Object.entries(schema)) {
    if (NOTES.has(keyword)) continue;
    if (Object.hasOwn(RULES, keyword)) {
      const [of, holds, reason] = RULES[keyword];
      const applies = typeof of === "function" || typeOf(value) === of;
      if (applies && !holds(value, said)) found.problems.push(`${where} ${reason(said)}`);
    } else if (keyword === "properties" || keyword === "required" || keyword === "additionalProperties") {
      if (typeOf(value) === "object") OBJECT[keyword](value, said, schema, where, found);
    } else if (keyword === "items" && typeOf(said) === "object") {
      if (Array.isArray(value)) value.forEach((item, i) => walk(item, said, `${where}[${i}]`, found));
    } else found.unchecked.add(keyword);
  }
}

const OBJECT = {
  properties(value, said, _schema, where, found) {
    for (const [name, part] of Object.entries(said)) {
      if (Object.hasOwn(value, name)) walk(value[name], part, `${where}.${name}`, found);
    }
  },
  required(value, said, _schema, where, found) {
    for (const name of said) {
      if (!Object.hasOwn(value, name)) found.problems.push(`${where} has no ${JSON.stringify(name)}`);
    }
  },
  additionalProperties(value, said, schema, where, found) {
    if (schema.patternProperties) return;
    const known = schema.properties ?? {};
    for (const name of Object.keys(value).filter((one) => !Object.hasOwn(known, one))) {
      if (said === false) found.problems.push(`${where} has ${JSON.stringify(name)}, which the schema does not`);
      else walk(value[name], said, `${where}.${name}`, found);
    }
  },
};
