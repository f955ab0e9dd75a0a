// The endpoints by API, as /openapi.json has them: for each a curl line, its fields, and a form that sends it.

import { getJson, key } from "./api.js";
import { button, byId, make } from "./dom.js";
import { start, untilReady } from "./start.js";

const BASE = new URL(".", location.href);
const MAX_SHOWN = 200_000; // characters of an answer
let components = {};

async function begin() {
  await untilReady();
  try {
    const description = await getJson("openapi.json");
    components = description.components.schemas;
    byId("status").textContent = `version ${description.info.version}`;
    show(description);
  } catch (error) {
    if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
    else byId("status").textContent = error.message;
  }
}

function show({ tags, paths }) {
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ method: method.toUpperCase(), path, ...operation })));
  const sections = tags.map(({ name }) => {
    const own = operations.filter((one) => one.tags[0] === name);
    return make("section", { id: slug(name) }, make("h2", {}, name), own.map(showOperation));
  });
  byId("apis").replaceChildren(...sections);
  byId("groups").replaceChildren(...tags.map(({ name }) => make("a", { href: `#${slug(name)}` }, name)));
  filter();
  openNamed();
}

const slug = (text) => text.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-");

function showOperation(operation) {
  const { method, path, summary } = operation;
  const details = make("details", { id: slug(`${method} ${path}`), className: "operation" },
    make("summary", {}, make("b", {}, method), " ", make("code", {}, path), " ", make("span", { className: "soft" }, summary)));
  details.addEventListener("toggle", () => details.append(...form(operation)), { once: true });
  return details;
}

/** What is inside of an endpoint, made when it is first opened. */
function form(operation) {
  const content = operation.requestBody?.content["application/json"];
  const isControl = operation.security?.some((one) => "control" in one) ?? false;
  const path = make("input", { value: filled(operation), spellcheck: false, "aria-label": "Path and query" });
  const body = make("textarea", { className: "code", spellcheck: false, "aria-label": "Body",
    value: content ? JSON.stringify(content.example, null, 1) : "" });
  body.rows = Math.min(12, body.value.split("\n").length);
  const curl = make("pre", { className: "curl" });
  const variable = isControl ? "WEFT_CONTROL_API_KEY" : operation.security && key() ? "WEFT_API_KEY" : null;
  const update = () => { curl.textContent = asCurl(operation.method, path.value, content ? body.value : null, variable); };
  for (const field of [path, body]) field.addEventListener("input", update);
  update();
  return [
    curl,
    make("p", { className: "row" }, button("Copy", () => navigator.clipboard?.writeText(curl.textContent))),
    content ? fields(content.schema) : null,
    ...(isControl
      ? [make("p", { className: "soft" }, "It takes a control key, and nothing that a browser sends: use the line above.")]
      : [path, content ? body : null, ...sender(operation.method, path, content ? body : null)]),
  ].filter((part) => part !== null);
}

/** The path with what is known of its parameters. */
function filled({ path, parameters = [] }) {
  return parameters.reduce((text, { name, example }) =>
    text.replace(`{${name}}`, example === undefined ? name.toUpperCase() : encodeURIComponent(example)), path);
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function asCurl(method, path, body, variable) {
  const words = ["curl", quoted(target(path).href)];
  if (method !== "GET" && !(method === "POST" && body !== null)) words.push(`-X ${method}`);
  if (variable) words.push(`-H "Authorization: Bearer $${variable}"`);
  if (body !== null) words.push("-H 'content-type: application/json'", `-d ${quoted(body)}`);
  if (/"stream"\s*:\s*true/.test(body ?? "")) words.push("--no-buffer");
  return words.join(" \\\n  ");
}

/** Behind the path that a proxy may have put the server under, and nowhere else. */
function target(path) {
  const url = new URL(`./${path.replace(/^\/+/, "")}`, BASE);
  return url.origin === BASE.origin ? url : BASE;
}

function sender(method, path, body) {
  const status = make("span", { className: "soft", role: "status" });
  const answer = make("pre", { className: "answer", hidden: true });
  let running = null;
  const send = button("Send", async () => {
    running = new AbortController();
    [send.disabled, stop.disabled, answer.hidden] = [true, false, false];
    try {
      await exchange({ method, url: target(path.value), body: body?.value, signal: running.signal }, status, answer);
    } catch (error) {
      status.textContent = error.name === "AbortError" ? "stopped" : "the server cannot be reached";
    }
    [send.disabled, stop.disabled] = [false, true];
  }, { className: "primary" });
  const stop = button("Stop", () => running.abort(), { disabled: true });
  return [make("p", { className: "row" }, send, stop, status), answer];
}

async function exchange({ method, url, body, signal }, status, answer) {
  const headers = key() ? { authorization: `Bearer ${key()}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const began = performance.now();
  [status.textContent, answer.textContent] = ["waiting", ""];
  const response = await fetch(url, { method, headers, body, signal, credentials: "omit", cache: "no-store" });
  const first = performance.now() - began;
  let text = "";
  for await (const piece of pieces(response)) {
    if (text.length < MAX_SHOWN) answer.textContent = text += piece;
  }
  if (response.headers.get("content-type")?.startsWith("application/json")) answer.textContent = pretty(text);
  if (text.length >= MAX_SHOWN) answer.append(" … and more");
  const whole = performance.now() - began;
  status.textContent = `${response.status} ${response.statusText}, ${Math.round(whole)} ms (headers after ${Math.round(first)} ms)`;
}

async function* pieces(response) {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

/** The fields of a body: name, type and default, those that are required first. */
function fields(schema) {
  const { properties, required = [] } = resolved(schema);
  if (!properties) return null;
  const rows = Object.entries(properties).map(([name, one]) => ({ name, one, must: required.includes(name) }));
  rows.sort((a, b) => b.must - a.must);
  return make("details", {}, make("summary", {}, `${rows.length} fields`),
    make("table", {}, make("tbody", {}, rows.map(({ name, one, must }) => make("tr", {},
      make("td", {}, make("code", {}, name)), make("td", {}, typeName(one)),
      make("td", {}, must ? "required" : one.default == null ? "" : JSON.stringify(one.default)))))));
}

const resolved = (schema) => (schema.$ref ? components[schema.$ref.split("/").at(-1)] : schema);

function typeName(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (schema.anyOf) return schema.anyOf.filter((one) => one.type !== "null").map(typeName).join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items ?? {})}`;
  return schema.type ?? "anything";
}

function filter() {
  const wanted = byId("filter").value.trim().toLowerCase();
  for (const section of byId("apis").children) {
    const all = [...section.querySelectorAll(".operation")];
    for (const one of all) one.hidden = !one.firstElementChild.textContent.toLowerCase().includes(wanted);
    section.hidden = all.every((one) => one.hidden);
  }
}

function openNamed() {
  const named = document.getElementById(location.hash.slice(1));
  if (named?.matches("details")) named.open = true;
  named?.scrollIntoView();
}

byId("filter").addEventListener("input", filter);
addEventListener("hashchange", openNamed);
start(begin);
